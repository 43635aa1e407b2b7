// Is a call of attention by itself as long as its kernels and exchanges, and nothing else of the layer in it?
#include "study/validation/attention_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

constexpr std::int64_t kSequence = 65536, kHeads = 32, kKeyHeads = 8, kHeadDim = 128;

// One layer of a decoder with rotary positions over eight devices of a node; `plan` laid over it.
Json scenario(const Json& plan, const char* node = "dgx-a100") {
  Json document{{"model",
                 {{"layers", 1},
                  {"hidden", kHeads * kHeadDim},
                  {"heads", kHeads},
                  {"kv_heads", kKeyHeads},
                  {"ffn", 8192},
                  {"vocab", 1000},
                  {"positions", "rotary"}}},
                {"cluster", {{"node", node}}},
                {"workload", {{"sequence_length", kSequence}, {"global_batch_size", 1}}},
                {"plan", {{"framework", "fsdp"}, {"recompute", "none"}, {"micro_batch_size", 1}}}};
  document["plan"].update(plan);
  return document;
}

class AttentionCall : public ::testing::Test {
 protected:
  AttentionCall() { simulator_.use(none_); }
  void evaluate(const Json& document) {
    simulation_.emplace(simulator_.evaluate(document, {"test", {}}, {.ops = true}));
    for (layer_ = 0; !is_layer(simulation_->program->pieces.at(layer_));) ++layer_;
  }
  double seconds(AttentionPasses passes) { return attention_seconds(*simulation_, layer_, passes); }
  // Of the ops of the layer's forward or backward whose name ends so, once each.
  double of_ops(const std::string& block, const std::string& end) const {
    double sum = 0;
    for (const OpReport& op : simulation_->report.ops)
      if (op.piece == layer_ && op.name.find(block) != std::string::npos && op.name.ends_with(end)) sum += op.seconds;
    return sum;
  }
  std::vector<double> each(const std::string& block, const std::string& end) const {
    std::vector<double> all;
    for (const OpReport& op : simulation_->report.ops)
      if (op.piece == layer_ && op.name.find(block) != std::string::npos && op.name.ends_with(end))
        all.push_back(op.seconds);
    return all;
  }
  double host() const { return simulation_->program->runtime.host_seconds_per_op; }

  const StepCalibration none_;
  Simulator simulator_;
  std::optional<Simulation> simulation_;
  std::size_t layer_ = 0;
};

TEST_F(AttentionCall, OnOneDeviceIsItsKernel) {
  Json document = scenario(Json::object());
  document["cluster"]["devices_per_node"] = 1;
  evaluate(document);
  EXPECT_NEAR(seconds(AttentionPasses::forward), of_ops(".forward.", "attention") + host(), 1e-12);
  EXPECT_NEAR(seconds(AttentionPasses::backward), of_ops(".backward.", "attention") + host(), 1e-12);
}

TEST_F(AttentionCall, OfUlyssesIsItsKernelAndFourExchanges) {
  evaluate(scenario({{"context_parallel", 8}, {"context_parallel_type", "ulysses"}}));
  const double kernel = of_ops(".forward.", "attention");
  const double exchanges = of_ops(".forward.", "ulysses.queries") + 2 * of_ops(".forward.", "ulysses.keys") +
                           of_ops(".forward.", "ulysses.context");
  ASSERT_GT(exchanges, 20 * host());
  EXPECT_NEAR(seconds(AttentionPasses::forward), kernel + exchanges, 2 * host());
}

// Over NVLink keys arrive while the kernels before run; over PCIe the kernels wait for all but the first.
TEST_F(AttentionCall, OfARingIsItsKernelsOrItsShiftsWhicheverIsLonger) {
  const Json ring{{"context_parallel", 8}};
  evaluate(scenario(ring));
  const double kernels = of_ops(".forward.", "attention"), merges = of_ops(".forward.", "ring.merge");
  ASSERT_GT(kernels, of_ops(".forward.", "ring.keys"));
  // Kernels beside a shift are slower.
  EXPECT_GE(seconds(AttentionPasses::forward), kernels + merges);
  EXPECT_LE(seconds(AttentionPasses::forward), (kernels + merges) * (1 + simulation_->kernels->overlap_slowdown));
  Json slow = scenario(ring, "pcie-8");
  slow["cluster"]["device"] = "A100-SXM4-80GB";
  slow["model"]["kv_heads"] = kHeads;
  slow["workload"]["sequence_length"] = kSequence / 8;
  evaluate(slow);
  const std::vector<double> steps = each(".forward.", "attention");
  ASSERT_EQ(steps.size(), 8u);
  const double shifts = of_ops(".forward.", "ring.keys"), merge = each(".forward.", "ring.merge").front();
  ASSERT_GT(shifts, 4 * of_ops(".forward.", "attention"));
  EXPECT_NEAR(seconds(AttentionPasses::forward) / (shifts + steps.back() + merge), 1, 0.02);
}

TEST_F(AttentionCall, BothWaysIsOneAfterTheOther) {
  for (const char* type : {"ring", "ulysses", "all_gather"}) {
    evaluate(scenario({{"context_parallel", 8}, {"context_parallel_type", type}}));
    const double apart = seconds(AttentionPasses::forward) + seconds(AttentionPasses::backward);
    EXPECT_LE(seconds(AttentionPasses::both), apart) << type;
    EXPECT_NEAR(seconds(AttentionPasses::both) / apart, 1, 0.01) << type;
  }
}

TEST_F(AttentionCall, KnowsNothingElseOfTheModel) {
  const Json ring{{"context_parallel", 8}, {"context_parallel_fp32_gradients", true}};
  Json document = scenario(ring);
  evaluate(document);
  const double before = seconds(AttentionPasses::both);
  document["model"]["ffn"] = 16384;
  document["model"]["vocab"] = 64000;
  document["model"]["positions"] = "none";
  document["model"]["layers"] = 3;
  document["plan"]["zero_stage"] = 1;
  evaluate(document);
  EXPECT_DOUBLE_EQ(seconds(AttentionPasses::both), before);
}

TEST_F(AttentionCall, OfManyMicroBatchesIsOfOne) {
  const Json plan{{"context_parallel", 8}, {"context_parallel_type", "ulysses"}};
  evaluate(scenario(plan));
  const double one = seconds(AttentionPasses::both);
  Json many = scenario(plan);
  many["workload"]["global_batch_size"] = 4;
  evaluate(many);
  EXPECT_NEAR(seconds(AttentionPasses::both) / one, 1, 0.01);
}

// Rings sum the gradients of their steps: these sums and casts are of the call, what makes gradients of weights is not.
TEST_F(AttentionCall, HoldsTheSumsOfPartialResults) {
  evaluate(scenario({{"context_parallel", 8}, {"context_parallel_fp32_gradients", true}}));
  const Program alone = attention_alone(*simulation_->program, layer_, AttentionPasses::both);
  const auto names = [](const Block& block) {
    std::multiset<std::string> all;
    for (const Op& op : block.ops) all.insert(op.name);
    return all;
  };
  const std::multiset<std::string> forward = names(alone.pieces[layer_].forward),
                                   backward = names(alone.pieces[layer_].backward);
  EXPECT_EQ(forward.size(), 8u + 7 + 7);
  EXPECT_EQ(forward.count("ring.keys"), 7u);
  EXPECT_EQ(forward.count("ring.merge"), 7u);
  EXPECT_EQ(backward.count("ring.keys"), 7u);
  EXPECT_EQ(backward.count("ring.key_gradients"), 8u);
  EXPECT_EQ(backward.count("ring.gradient_sum"), 14u);
  EXPECT_EQ(backward.count("ring.gradient_cast"), 3u);
  EXPECT_EQ(backward.size(), 8u + 7 + 8 + 14 + 3);
  for (const Piece& piece : alone.pieces) EXPECT_TRUE(piece.update.ops.empty());
}

TEST_F(AttentionCall, IsOfOneStage) {
  Json document = scenario({{"pipeline_parallel", 2}, {"context_parallel", 4}});
  document["model"]["layers"] = 2;
  evaluate(document);
  try {
    seconds(AttentionPasses::forward);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/plan/pipeline_parallel"));
  }
}

}  // namespace
}  // namespace orrery
