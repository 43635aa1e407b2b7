// Three levels of sharding: the bytes of each state, which group each collective runs over and when, and the schemes
// that are points of the same degrees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Four nodes of eight, two micro-batches.
Scenario three_levels(std::int64_t weights, std::int64_t gradients) {
  Scenario s = zero3_of_deepspeed(4);
  s.plan.zero_topo = {weights, gradients};
  return s;
}

struct LevelCollective {
  OpKind kind;
  std::int64_t ranks;
  When when;
  std::int64_t bytes;  // of the larger side
  auto operator<=>(const LevelCollective&) const = default;
};
std::vector<LevelCollective> level_collectives(const Program& p) {
  std::vector<LevelCollective> all;
  const Piece& layer = piece_named(p, "layer");
  for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
    for (const Op& op : block->ops)
      if (is_communication(op.kind) && op.kind != OpKind::all_reduce)
        all.push_back({op.kind, p.mesh.size(op.group), op.when,
                       std::max(layer.tensors[op.reads[0]].bytes(), layer.tensors[op.writes[0]].bytes())});
  return all;
}

// The memory of the scheme: 2 P / p_w + 2 P / p_g + 12 P / p_o.
TEST(ZeroTopo, DividesEachStateOverItsOwnGroup) {
  for (const auto& [weights, gradients] :
       std::vector<std::pair<int, int>>{{2, 8}, {1, 8}, {8, 8}, {2, 32}, {0, 0}, {4, 0}}) {
    Program p;
    lower(three_levels(weights, gradients), p);
    for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
    const Piece& layer = piece_named(p, "layer");
    double n = 0;
    for (const ParameterGradient& g : layer.parameters) n += static_cast<double>(layer.tensors[g.parameter].elements());
    const PlacedBytes m = piece_memory(layer, 1).resident;
    const auto divided = [](int degree) { return degree > 0 ? degree : 32; };
    EXPECT_NEAR(m.of(Place::device, Category::parameter) / (2 * n / divided(weights)), 1, 1e-3) << weights;
    EXPECT_NEAR(m.of(Place::device, Category::gradient) / (2 * n / divided(gradients)), 1, 1e-3) << gradients;
    EXPECT_NEAR(m.of(Place::device, Category::optimizer_state) / (12 * n / 32), 1, 1e-3);
  }
}

// In every micro-batch weights are gathered by pairs and gradients summed in the node. Once a step the parts of
// gradients are summed between the nodes, and updated weights take the inverse path: between the nodes, then between
// the packages of a node.
TEST(ZeroTopo, CrossesNodesOnceAStep) {
  Program p;
  lower(three_levels(2, 8), p);
  const Piece& layer = piece_named(p, "layer");
  std::map<std::pair<OpKind, std::int64_t>, std::vector<When>> met;
  for (const LevelCollective& c : level_collectives(p)) met[{c.kind, c.ranks}].push_back(c.when);
  const auto when = [&](OpKind kind, std::int64_t ranks) { return met[std::pair(kind, ranks)]; };
  EXPECT_THAT(when(OpKind::all_gather, 2), ElementsAre(When::every_micro_batch, When::every_micro_batch));
  EXPECT_THAT(when(OpKind::all_gather, 4), ElementsAre(When::first_micro_batch, When::first_micro_batch));
  EXPECT_THAT(when(OpKind::reduce_scatter, 2), ElementsAre(When::every_micro_batch));
  EXPECT_THAT(when(OpKind::reduce_scatter, 4), ElementsAre(When::every_micro_batch, When::last_micro_batch));
  EXPECT_EQ(met.size(), 4u);
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) {
      if (!is_communication(op.kind) || op.when != When::every_micro_batch) continue;
      for (std::size_t d = 0; d < p.mesh.digits().size(); ++d) {
        const bool leaves_the_node = p.mesh.digits()[d].stride >= 8;
        EXPECT_FALSE(leaves_the_node && op.group.contains(static_cast<int>(d))) << op.name;
      }
    }
}

// Context-parallel ranks hold the same weights, and divide every state as well.
TEST(ZeroTopo, ContextParallelRanksDivideEachStateToo) {
  Scenario s = three_levels(2, 4);
  s.plan.context.degree = 2;
  Program p;
  lower(s, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  const ShardGroups& over = piece_named(p, "layer").sets[0].over;
  EXPECT_EQ(p.mesh.size(over.weights), 4);
  EXPECT_EQ(p.mesh.size(over.gradients), 8);
  EXPECT_EQ(p.mesh.size(over.states), 32);
}

// The forward gathers anew in every micro-batch, whatever the stack keeps; reshard_after_forward decides only whether
// the backward does.
TEST(ZeroTopo, GathersAnewInEveryMicroBatch) {
  for (const framework::Stack stack : {framework::Stack::deepspeed, framework::Stack::megatron_core})
    for (const bool reshard : {true, false}) {
      Scenario s = three_levels(2, 8);
      s.plan.framework.stack = stack;
      s.plan.data.reshard_after_forward = reshard;
      Program p;
      lower(s, p);
      int gathers = 0;
      for (const LevelCollective& c : level_collectives(p))
        gathers += c.kind == OpKind::all_gather && c.ranks == 2 && c.when == When::every_micro_batch ? 1 : 0;
      EXPECT_EQ(gathers, reshard ? 2 : 1);
    }
}

// ZeRO-3 is three equal degrees.
TEST(ZeroTopo, OfEqualDegreesIsZero3) {
  Program p, zero3;
  lower(three_levels(32, 32), p);
  lower(three_levels(0, 0), zero3);
  EXPECT_EQ(level_collectives(p), level_collectives(zero3));
}

// MiCS and HSDP divide all three states over one group.
TEST(ZeroTopo, OfEqualDegreesWithinShardGroupsIsMics) {
  Scenario mics = zero3_of_deepspeed(4), s = three_levels(8, 8);
  mics.plan.mics.shard_size = 8;
  s.plan.data.shard_degree = 8;
  Program p, as_mics;
  lower(s, p);
  lower(mics, as_mics);
  EXPECT_EQ(level_collectives(p), level_collectives(as_mics));
}

TEST(ZeroTopo, RefusesWhatItCannotLayOut) {
  const auto refusal = [](auto change) {
    Scenario s = three_levels(2, 8);
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_EQ(refusal([](Plan&) {}), "nothing");
  EXPECT_THAT(refusal([](Plan& p) { p.data.zero_stage = 2; }), HasSubstr("/plan/zero_weights_degree: found 2"));
  EXPECT_THAT(refusal([](Plan& p) { p.zero_topo.weights = 3; }),
              HasSubstr("/plan/zero_weights_degree: found 3, expected a divisor of the 8 ranks that divide"));
  EXPECT_THAT(refusal([](Plan& p) { p.zero_topo.weights = 16; }), HasSubstr("a divisor of the 8 ranks that divide"));
  EXPECT_THAT(refusal([](Plan& p) { p.zero_topo.gradients = 12; }),
              HasSubstr("/plan/zero_gradients_degree: found 12, expected a divisor of the 32 ranks of a shard group"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.shard_degree = 4; }), HasSubstr("a divisor of the 4 ranks"));
  EXPECT_THAT(refusal([](Plan& p) { p.mics.shard_size = 8; }), HasSubstr("/plan/mics_shard_size: found 8"));
  EXPECT_THAT(refusal([](Plan& p) { p.zero_topo.gradients = 0; }), "nothing");
  EXPECT_THAT(refusal([](Plan& p) { p.zeropp.secondary = 8; }), HasSubstr("/plan/zero_hpz_partition_size: found 8"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.reduce_gradients = data_parallel::Reduction::once; }),
              HasSubstr("/plan/reduce_gradients: found \"once\""));
  Scenario experts = three_levels(2, 8);
  experts.model = read_model("mixtral-8x7b", {});
  EXPECT_THAT(refusal_of(experts),
              HasSubstr("/plan/zero_weights_degree: found 2, expected 0 for a model with experts"));
}

}  // namespace
}  // namespace orrery
