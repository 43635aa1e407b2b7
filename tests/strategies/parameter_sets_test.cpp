// Does one pass give each parameter set the memory and the traffic that the groups it is divided over make?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/program/check.h"
#include "sim/program/rewrite.h"
#include "tests/strategies/support.h"
#include "tests/strategies/two_sets.h"

namespace orrery {
namespace {

// Four micro-batches.
Scenario sixteen_ranks() { return zero3_of_deepspeed(2); }

template <ShardingRule rule>
Program with(const Scenario& scenario) {
  Program program;
  lower(scenario, with_two_sets<rule>(), program);
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  return program;
}

struct SetElements {
  double matrices = 0, rest = 0;
};
SetElements elements_by_set(const Piece& piece) {
  SetElements n;
  for (const ParameterGradient& p : piece.parameters)
    (p.set == 0 ? n.matrices : n.rest) += static_cast<double>(piece.tensors[p.parameter].elements());
  return n;
}

// Resident bytes of a layer: 2 a parameter, 2 a gradient, 12 of states.
void expect_layer_bytes(const Program& program, double weights, double gradients, double states) {
  const PieceMemory m = piece_memory(piece_named(program, "layer"), 1);
  EXPECT_NEAR(m.resident.of(Place::device, Category::parameter) / (2 * weights), 1, 1e-4);
  EXPECT_NEAR(m.resident.of(Place::device, Category::gradient) / (2 * gradients), 1, 1e-4);
  EXPECT_NEAR(m.resident.of(Place::device, Category::optimizer_state) / (12 * states), 1, 1e-4);
}

TEST(ParameterSets, AreDividedEachOverItsOwnGroups) {
  const Scenario s = sixteen_ranks();
  {
    const Program p = with<alike>(s);
    const auto [m, r] = elements_by_set(piece_named(p, "layer"));
    EXPECT_GT(m, 1000 * r);
    EXPECT_GT(r, 0);
    expect_layer_bytes(p, (m + r) / 16, (m + r) / 16, (m + r) / 16);
  }
  {
    const Program p = with<rest_stays_whole>(s);
    const auto [m, r] = elements_by_set(piece_named(p, "layer"));
    expect_layer_bytes(p, m / 16 + r, (m + r) / 16, (m + r) / 16);
  }
  {
    const Program p = with<rest_is_replicated>(s);
    const auto [m, r] = elements_by_set(piece_named(p, "layer"));
    expect_layer_bytes(p, m / 16 + r, m / 16 + r, m / 16 + r);
    const Piece& layer = piece_named(p, "layer");
    EXPECT_EQ(p.mesh.size(layer.sets[0].over.weights), 16);
    EXPECT_TRUE(layer.sets[1].over.states.empty());
  }
}

// Weights, gradients and states over three groups, each within the next: bytes, and what moves over which group.
TEST(ParameterSets, MayDivideEachKindOfStateOverAnotherGroup) {
  Scenario s = sixteen_ranks();
  s.plan.data.shard_degree = 8;
  std::vector<Strategy> strategies = with_two_sets<three_levels>();
  for (Strategy& strategy : strategies)  // pairs of neighbours within the shard groups
    if (strategy.name == std::string_view("data_parallel"))
      strategy.add_digits = [](const Scenario&, Mesh& mesh) {
        mesh.add(MeshAxis::dp_shard, 2, "dp_shard.pair");
        mesh.add(MeshAxis::dp_shard, 4);
        mesh.add(MeshAxis::dp_replicate, 2);
      };
  Program p;
  lower(s, strategies, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  const Piece& layer = piece_named(p, "layer");
  const auto [m, r] = elements_by_set(layer);
  expect_layer_bytes(p, m / 2 + r, m / 8 + r, (m + r) / 16);

  struct Moved {
    OpKind kind;
    std::int64_t ranks;
    When when;
    double elements;  // of the whole side
  };
  std::vector<Moved> moved;  // of the matrices
  for (const Block* block : {&layer.forward, &layer.backward})
    for (const Op& op : block->ops) {
      if (!is_communication(op.kind)) continue;
      const Tensor& whole = layer.tensors[op.kind == OpKind::all_gather ? op.writes[0] : op.reads[0]];
      const auto elements = static_cast<double>(whole.elements());
      if (elements > 2 * r) moved.push_back({op.kind, p.mesh.size(op.group), op.when, elements});
    }
  const std::vector<Moved> expected{{OpKind::all_gather, 2, When::first_micro_batch, m / 8},  // what has been updated
                                    {OpKind::all_gather, 4, When::first_micro_batch, m / 2},
                                    {OpKind::all_gather, 2, When::every_micro_batch, m},
                                    {OpKind::all_gather, 2, When::every_micro_batch, m},
                                    {OpKind::reduce_scatter, 2, When::every_micro_batch, m},
                                    {OpKind::reduce_scatter, 4, When::every_micro_batch, m / 2},
                                    {OpKind::reduce_scatter, 2, When::last_micro_batch, m / 8}};
  ASSERT_EQ(moved.size(), expected.size());
  for (std::size_t i = 0; i < moved.size(); ++i) {
    EXPECT_EQ(moved[i].kind, expected[i].kind) << i;
    EXPECT_EQ(moved[i].ranks, expected[i].ranks) << i;
    EXPECT_EQ(moved[i].when, expected[i].when) << i;
    EXPECT_NEAR(moved[i].elements / expected[i].elements, 1, 1e-4) << i;
  }
}

// DDP to HSDP are values: the groups that a set says, and no other op than these make.
TEST(ParameterSets, SayWhatZeroStagesDivide) {
  Scenario s = sixteen_ranks();
  for (int stage = 0; stage <= 3; ++stage)
    for (const std::int64_t shards : {0, 8}) {
      if (stage == 0 && shards > 0) continue;
      s.plan.data.zero_stage = stage;
      s.plan.data.shard_degree = shards;
      Program p;
      lower(s, p);
      for (const Piece& piece : p.pieces) {
        ASSERT_EQ(piece.sets.size(), 1u);
        const ShardGroups& over = piece.sets[0].over;
        const std::int64_t n = shards == 0 ? 16 : shards;
        EXPECT_EQ(p.mesh.size(over.weights), stage == 3 ? n : 1) << stage;
        EXPECT_EQ(p.mesh.size(over.gradients), stage >= 2 ? n : 1) << stage;
        EXPECT_EQ(p.mesh.size(over.states), stage >= 1 ? n : 1) << stage;
        EXPECT_TRUE(over.secondary.empty());
      }
    }
}

Shardings weights_over_more_than_states(const Mesh&, const data_parallel::Sharding& plan) {
  Shardings wrong{plan, plan};
  wrong[0].over.states = {};
  return wrong;
}
TEST(ParameterSets, RefuseGroupsThatDoNotHoldOneAnother) {
  Program p;
  EXPECT_THROW(lower(sixteen_ranks(), with_two_sets<weights_over_more_than_states>(), p), std::logic_error);
}

}  // namespace
}  // namespace orrery
