// MEMO's alpha and what it rests on: the two bounds of arXiv 2407.12117, section 4.1, for the paper's 7B model on eight
// A800.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "strategies/memo/alpha.h"
#include "strategies/read_scenario.h"
#include "study/simulation/simulation.h"

namespace orrery {
namespace {

constexpr double kHidden = 4096, kLayers = 32, kRanks = 8;

Scenario memo_of(std::int64_t tokens) {
  return read_scenario(
      {{"model", {{"preset", "gpt3-6.7b"}, {"max_positions", tokens}, {"positions", "rotary"}, {"dropout", 0}}},
       {"cluster", {{"node", "hgx-a800"}, {"nodes", 1}}},
       {"workload", {{"sequence_length", tokens}, {"global_batch_size", 1}}},
       {"plan", {{"tensor_parallel", 8}, {"sequence_parallel", true}, {"memo", true}}}},
      {});
}
Simulation simulated(const Scenario& scenario) {
  static Simulator simulator;
  return simulator.evaluate(scenario, {.ops = true});
}
memo::Alpha alpha_of(const Scenario& scenario) {
  return memo::find_alpha(scenario, [](const Scenario& other) { return evaluated(simulated(other)); });
}

TEST(MemoAlpha, ItsBoundsAreThePapers) {
  for (const std::int64_t tokens : {131072, 1048576}) {
    const Scenario s = memo_of(tokens);
    const memo::Alpha a = alpha_of(s);
    const double x = 2.0 * static_cast<double>(tokens) * kHidden / kRanks,
                 of_attention = 4.0 * static_cast<double>(tokens) * 32 / kRanks,
                 of_norms = 4.0 * static_cast<double>(tokens) * 2 * 2 / kRanks;
    EXPECT_DOUBLE_EQ(a.whole_bytes, 2 * x + of_attention);
    EXPECT_DOUBLE_EQ(a.other_bytes, 14 * x + of_norms);
    EXPECT_DOUBLE_EQ(a.bytes_per_second, 25.7e9 / 2) << "two devices on one up-link";
    // The causal layer's FLOPs at 40 to 70 % of the device's peak.
    const double flops =
        (24 * kHidden * kHidden + 2 * static_cast<double>(tokens) * kHidden) * static_cast<double>(tokens) / kRanks;
    EXPECT_GT(a.layer_seconds, flops / 0.7 / 312e12);
    EXPECT_LT(a.layer_seconds, flops / 0.4 / 312e12);
    EXPECT_NEAR(a.hidden(), (a.bytes_per_second * a.layer_seconds - a.whole_bytes) / a.other_bytes, 1e-12);
    // 2 TB but for the eight ranks' processes (stacks.json), all layers but two.
    constexpr double kProcess = 2106e6;
    const double of_rank = (s.cluster.node.host_memory_bytes / kRanks - kProcess) / (kLayers - 2);
    EXPECT_NEAR(a.room(), (of_rank - a.whole_bytes) / a.other_bytes, 1e-6);
    EXPECT_EQ(a.steps.size(), a.chosen() == 1 ? 9u : 10u);
  }
}

// The paper: from 192K on.
TEST(MemoAlpha, SwappingAllHidesFromALengthOn) {
  EXPECT_LT(alpha_of(memo_of(131072)).hidden(), 1);
  EXPECT_GT(alpha_of(memo_of(262144)).hidden(), 1);
}

// A layer's forward is shorter by what attention within documents spares, so that less hides under it.
TEST(MemoAlpha, CopiesHideUnderAttentionWithinDocuments) {
  const Scenario whole = memo_of(131072);
  Scenario packed = whole;
  packed.workload.documents = "wikipedia";
  const auto attention = [](const Scenario& s) {
    for (const OpReport& op : simulated(s).report.ops)
      if (op.name.ends_with("forward.attention")) return op.seconds;
    return 0.0;
  };
  const double spared = attention(whole) - attention(packed);
  ASSERT_GT(spared, 0.1 * attention(whole));
  EXPECT_NEAR(alpha_of(whole).layer_seconds - alpha_of(packed).layer_seconds, spared, 1e-6 * spared);
}

// What hides is not felt; what does not is.
TEST(MemoAlpha, TheEngineWaitsForWhatDoesNotHide) {
  const memo::Alpha a = alpha_of(memo_of(65536));
  ASSERT_LT(a.hidden(), 0.9);
  ASSERT_GT(a.hidden(), 0);
  for (const memo::StepByAlpha& step : a.steps) {
    const double waits = (step.to_host_seconds + step.to_device_seconds) / step.seconds;
    if (step.alpha <= a.chosen()) {
      EXPECT_LT(waits, 0.02) << step.alpha;
    } else if (step.alpha == 1) {
      EXPECT_GT(waits, 0.05);
    }
  }
}

TEST(MemoAlpha, OutOfHostMemoryIsNotOutOfDeviceMemory) {
  Scenario s = memo_of(131072);
  const auto verdict = [&] { return memory_verdict(simulated(s).report); };
  EXPECT_EQ(verdict(), MemoryVerdict::fits);
  s.cluster.node.host_memory_bytes = 100e9;
  EXPECT_EQ(verdict(), MemoryVerdict::does_not_fit_node);
  EXPECT_EQ(name_of(verdict()), "does not fit the node");
  EXPECT_LT(alpha_of(s).room(), 1);
  s.cluster.node.host_memory_bytes = 10e9;
  const memo::Alpha none = alpha_of(s);
  EXPECT_LT(none.room(), 0);
  EXPECT_EQ(none.chosen(), 0);
  EXPECT_NE(text_of(none).find("OOHM at alpha 0"), std::string::npos);
  s.cluster.device.memory_bytes = 10e9;
  EXPECT_EQ(verdict(), MemoryVerdict::does_not_fit) << "of both, the device's";
}

TEST(MemoAlpha, IsOfPlansThatSwap) {
  Scenario s = memo_of(131072);
  s.plan.memo = {};
  EXPECT_THROW(alpha_of(s), InputError);
  s = memo_of(131072);
  s.model.layers = 2;
  EXPECT_THROW(alpha_of(s), InputError) << "both stay";
}

}  // namespace
}  // namespace orrery
