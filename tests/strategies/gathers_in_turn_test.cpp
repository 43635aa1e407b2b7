// Are the matrices of layers that are too large to be gathered whole gathered, held and reduced as DeepSpeed's ZeRO-3
// does it? Its rules are written down a second time here, by hand for two models.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "sim/program/check.h"
#include "sim/program/rewrite.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Scenario zero3_of_175b(std::int64_t nodes) {
  Scenario s = scenario_of("gpt3-175b", "dgx-a100", nodes);
  s.model.tied_embeddings = false;
  s.workload = {2048, 0, 8 * nodes};
  s.plan.batch.micro_batch_size = 1;
  s.plan.precision.mix = precision::Mix::fp16;
  s.plan.precision.gradients = precision::GradientDtype::fp16;
  s.plan.framework.stack = framework::Stack::deepspeed;
  s.plan.data.zero_stage = 3;
  s.plan.recompute.mode = activation_recompute::Mode::full;
  return s;
}

// Of a GPT layer of hidden h: normalisation and QKV; projection; normalisation and fc1; fc2.
std::array<std::int64_t, 4> sets_of_gpt(std::int64_t h) {
  return {2 * h + 3 * h * h + 3 * h, h * h + h, 2 * h + 4 * h * h + 4 * h, 4 * h * h + h};
}

struct Gather {
  std::size_t set = 0;
  bool ahead = false;
  std::size_t kernels_before = 0;  // uses of sets that begin before it in its block
  bool operator==(const Gather&) const = default;
};
void PrintTo(const Gather& g, std::ostream* out) {
  *out << "set " << g.set << (g.ahead ? " ahead" : "") << " behind " << g.kernels_before << " uses";
}

// Walks a block: which sets are gathered, in which order, and how many elements of gathered parameters there are at
// the most, those of the next layer from the kernel on that issues them.
struct Walked {
  std::vector<Gather> gathers;
  std::int64_t most_live = 0;
};
Walked walk(const Piece& piece, const Block& block) {
  Walked w;
  std::map<TensorId, std::size_t> last;  // of gathered copies: op that reads it last
  for (std::size_t i = 0; i < block.ops.size(); ++i)
    for (const TensorId id : block.ops[i].reads)
      if (id != kNoTensor) last[storage_of(piece, id)] = i;
  std::map<TensorId, std::int64_t> live;
  std::set<TensorId> used;
  std::int64_t next_layer = 0, of_ahead = 0;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const Op& op = block.ops[i];
    if (op.kind == OpKind::all_gather && op.stream == Stream::parameter_communication) {
      const ParameterSet* set = set_of(piece, op.reads[0]);
      const TensorId copy = op.writes[0];
      live[copy] = piece.tensors[copy].elements();
      w.gathers.push_back({static_cast<std::size_t>(set - piece.sets.data()), op.prefetch > 0, used.size()});
      if (op.prefetch > 0) of_ahead += live[copy];
    }
    for (const TensorId id : op.reads)
      if (id != kNoTensor && live.contains(storage_of(piece, id))) used.insert(storage_of(piece, id));
    if (op.issues_ahead) next_layer = of_ahead;
    std::int64_t sum = next_layer;
    for (const auto& [copy, elements] : live) sum += elements;
    w.most_live = std::max(w.most_live, sum);
    std::erase_if(live, [&](const auto& copy) { return last[copy.first] == i; });
  }
  return w;
}

TEST(GathersInTurn, SetsAreTheMatricesWithWhatComesBeforeThem) {
  const Program p = proven(zero3_of_175b(8));
  const Piece& layer = running_layer(p);
  const auto expected = sets_of_gpt(12288);
  ASSERT_EQ(layer.sets.size(), 4u);
  std::array<std::int64_t, 4> elements{};
  for (const ParameterGradient& g : layer.parameters) elements[g.set] += layer.tensors[g.parameter].elements();
  EXPECT_EQ(elements, expected);
  for (std::size_t s = 0; s < 4; ++s)  // 64 ranks
    EXPECT_EQ(layer.tensors[layer.sets[s].parameters].elements(), (expected[s] + 63) / 64);
}

// h^2 = 1.51e8: QKV 4.5e8, projection 1.5e8, fc1 and fc2 6.0e8 each. 1e9 may be gathered: a matrix and the next.
TEST(GathersInTurn, AMatrixIsGatheredWhenTheOneBeforeItIsInUse) {
  const Program p = proven(zero3_of_175b(8));
  const Piece& layer = running_layer(p);
  const Walked forward = walk(layer, layer.forward);
  EXPECT_THAT(forward.gathers,
              ElementsAre(Gather{0, true, 0}, Gather{1, false, 0}, Gather{2, false, 1}, Gather{3, false, 2}));
  const auto n = sets_of_gpt(12288);
  EXPECT_EQ(forward.most_live, n[2] + n[3]);
  EXPECT_LT(forward.most_live, 1000000000 + n[3]);
  // Recomputation, then backward: fc2's stays, fc1's is fetched again, as 2 x 6.0e8 are used in between.
  const Walked backward = walk(layer, layer.backward);
  EXPECT_THAT(backward.gathers,
              ElementsAre(Gather{0, true, 0}, Gather{1, false, 0}, Gather{2, false, 1}, Gather{3, false, 2},
                          Gather{2, false, 4}, Gather{1, false, 4}, Gather{0, false, 5}));
  EXPECT_EQ(backward.most_live, n[2] + n[3]);
}

// h^2 = 4.19e8: every matrix but the projection is more than 1e9 by itself, so that nothing is gathered beside it.
TEST(GathersInTurn, NothingIsGatheredAheadBeyondTheLimit) {
  Scenario s = zero3_of_175b(16);
  s.model = read_model("megatron-530b", {});
  s.model.tied_embeddings = false;
  const Program p = proven(s);
  const Piece& layer = running_layer(p);
  const auto n = sets_of_gpt(20480);
  const Walked forward = walk(layer, layer.forward);
  EXPECT_THAT(forward.gathers,
              ElementsAre(Gather{0, false, 0}, Gather{1, false, 1}, Gather{2, false, 1}, Gather{3, false, 3}));
  EXPECT_EQ(forward.most_live, n[1] + n[2]);
  const Walked backward = walk(layer, layer.backward);
  EXPECT_EQ(backward.gathers.size(), 7u);
  EXPECT_EQ(backward.most_live, n[1] + n[2]);
  EXPECT_LT(backward.most_live, 1000000000 + n[2]);
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) EXPECT_FALSE(op.issues_ahead);
}

// A table of 51200 x 12288 = 6.3e8 elements that embedding and head share stays gathered: beside it and the
// projection's 1.5e8 there is room for the next matrix, beside it and another one there is none.
TEST(GathersInTurn, TheTableThatTheEndsShareCounts) {
  Scenario s = zero3_of_175b(8);
  s.model.tied_embeddings = true;
  s.model.vocab = 51200;
  const auto forward = [&] {
    const Program p = proven(s);
    return walk(running_layer(p), running_layer(p).forward).gathers;
  };
  EXPECT_THAT(forward(),
              ElementsAre(Gather{0, false, 0}, Gather{1, false, 1}, Gather{2, false, 1}, Gather{3, false, 3}));
  // Elements that are gathered with fc1 and the table: then fc2's are not, and one more than those lets them be.
  const std::int64_t with_fc1 = sets_of_gpt(12288)[2] + 51200 * 12288;
  s.plan.data.max_live_parameters = with_fc1;
  EXPECT_THAT(forward(),
              ElementsAre(Gather{0, true, 0}, Gather{1, false, 0}, Gather{2, false, 1}, Gather{3, false, 3}));
  s.plan.data.max_live_parameters = with_fc1 + 1;
  EXPECT_THAT(forward(),
              ElementsAre(Gather{0, true, 0}, Gather{1, false, 0}, Gather{2, false, 1}, Gather{3, false, 2}));
  s.model.tied_embeddings = false;
  s.plan.data.max_live_parameters = 1000000000;
  EXPECT_EQ(forward()[3], (Gather{3, false, 2}));
}

TEST(GathersInTurn, WhatIsUsedAgainSoonStaysGathered) {
  Scenario s = zero3_of_175b(8);
  const auto gathers = [&] {
    const Program p = proven(s);
    const Piece& layer = running_layer(p);
    return walk(layer, layer.backward).gathers.size();
  };
  // Between the two uses of fc1: fc2's two, 1.21e9; of the projection: those and fc1's two, 2.4e9; of QKV 2.7e9.
  s.plan.data.max_live_parameters = 3000000000;
  using Case = std::pair<std::int64_t, std::size_t>;
  for (const auto& [distance, expected] : {Case{1000000000, 7}, {1250000000, 6}, {2450000000, 5}, {2750000000, 4}}) {
    s.plan.data.max_reuse_distance = distance;
    EXPECT_EQ(gathers(), expected) << distance;
  }
  s.plan.recompute.mode = activation_recompute::Mode::none;
  s.plan.data.max_reuse_distance = 1;
  EXPECT_EQ(gathers(), 4u);
}

// In every micro-batch a matrix's gradient is reduced before the next one is begun.
TEST(GathersInTurn, GradientsAreReducedOneByOne) {
  for (const bool recompute : {false, true})
    for (const bool shards_in_groups : {false, true}) {
      Scenario s = zero3_of_175b(8);
      if (!recompute) s.plan.recompute.mode = activation_recompute::Mode::none;
      if (shards_in_groups) s.plan.data.shard_degree = 16;
      s.plan.data.bucket_bytes = 180000000;  // as the recipes of deepspeed_azure_2022.json
      const Program p = proven(s);
      const Piece& layer = running_layer(p);
      std::set<TensorId> begun;
      std::int64_t most = 0;
      int reductions = 0;
      for (const Op& op : layer.backward.ops) {
        for (const TensorId id : op.writes) {
          if (id == kNoTensor || op.kind == OpKind::reduce_scatter || op.kind == OpKind::all_reduce) continue;
          const TensorId storage = storage_of(layer, id);
          if (layer.tensors[storage].category == Category::gradient && layer.tensors[storage].elements() > 100000000)
            begun.insert(storage);
        }
        std::int64_t alive = 0;
        for (const TensorId id : begun) alive += layer.tensors[id].elements();
        most = std::max(most, alive);
        if (op.kind != OpKind::reduce_scatter) continue;
        EXPECT_EQ(op.count, 1) << "reduced by itself, however large";
        EXPECT_EQ(begun.erase(storage_of(layer, op.reads[0])), 1u);
        ++reductions;
      }
      EXPECT_EQ(reductions, 4);
      EXPECT_TRUE(begun.empty());
      // fc1's, until the gradient of the normalisation before it is there, and the next one is not begun.
      EXPECT_EQ(most, sets_of_gpt(12288)[2]);
    }
}

TEST(GathersInTurn, SmallLayersAreGatheredWhole) {
  Scenario s = zero3_of_deepspeed(2);
  const auto sets = [&] {
    const Program p = proven(s);
    return running_layer(p).sets.size();
  };
  const Program whole = proven(s);
  std::int64_t layer = 0;
  for (const ParameterGradient& g : piece_named(whole, "layer").parameters)
    layer += piece_named(whole, "layer").tensors[g.parameter].elements();
  s.plan.data.prefetch_bucket_size = 1;
  s.plan.data.max_live_parameters = 2 * layer;
  EXPECT_EQ(sets(), 1u);
  s.plan.data.max_live_parameters = 2 * layer - 1;
  EXPECT_EQ(sets(), 6u);                            // two normalisations and four products, each with its biases
  s.plan.framework.stack = framework::Stack::fsdp;  // any stack, if it is told to
  EXPECT_EQ(sets(), 6u);
  s.plan.data.prefetch_bucket_size = s.plan.data.max_live_parameters = 0;
  s.model = read_model("gpt3-175b", {});
  EXPECT_EQ(sets(), 1u);  // FSDP gathers its units
}

// A step gathers and reduces the same bytes, but for what is gathered anew.
TEST(GathersInTurn, MoveTheVolumesOfZero3) {
  Scenario s = zero3_of_175b(8);
  s.plan.recompute.mode = activation_recompute::Mode::none;
  const auto moved = [&] {
    const Program p = proven(s);
    const Piece& layer = running_layer(p);
    double elements = 0;
    for (const Block* block : {&layer.forward, &layer.backward})
      for (const Op& op : block->ops)
        if (op.kind == OpKind::all_gather || op.kind == OpKind::reduce_scatter)
          elements +=
              static_cast<double>(layer.tensors[op.kind == OpKind::all_gather ? op.writes[0] : op.reads[0]].elements());
    return elements;
  };
  const double in_turn = moved();
  s.plan.data.max_live_parameters = std::int64_t{1} << 40;
  EXPECT_DOUBLE_EQ(in_turn, moved());
  const auto n = sets_of_gpt(12288);
  EXPECT_DOUBLE_EQ(in_turn, 3.0 * static_cast<double>(n[0] + n[1] + n[2] + n[3]));
}

TEST(GathersInTurn, FieldsWithoutAnEffectAreRefused) {
  Scenario s = zero3_of_deepspeed(2);
  s.plan.data.zero_stage = 2;
  s.plan.data.max_live_parameters = 1000;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/stage3_max_live_parameters: found 1000, expected 0 below zero_stage 3"));
  s.plan.data.zero_stage = 3;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.plan.data.max_live_parameters = 0;
  s.plan.data.prefetch_bucket_size = 5;
  EXPECT_EQ(refusal_of(s), "nothing");  // the stack has a limit
  s.plan.framework.stack = framework::Stack::fsdp;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/stage3_prefetch_bucket_size: found 5, expected 0 without "
                                       "stage3_max_live_parameters"));
}

}  // namespace
}  // namespace orrery
