// MiCS: the memory of partition groups, the two hops of gradients, the two stages of gathers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/base/error.h"
#include "sim/program/check.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Four nodes of eight, two micro-batches.
Scenario mics_of(std::int64_t size) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 4);
  s.workload = {1024, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.precision.gradients = precision::GradientDtype::bf16;
  s.plan.data.zero_stage = 3;
  s.plan.mics.shard_size = size;
  return s;
}

struct MicsCollective {
  OpKind kind;
  std::int64_t ranks;
  When when;
  double elements;  // of the larger side
};
std::vector<MicsCollective> mics_collectives(const Program& p, const Block& block) {
  std::vector<MicsCollective> all;
  const Piece& layer = piece_named(p, "layer");
  for (const Op& op : block.ops)
    if (is_communication(op.kind))
      all.push_back({op.kind, p.mesh.size(op.group), op.when,
                     static_cast<double>(std::max(layer.tensors[op.reads[0]].elements(),
                                                  layer.tensors[op.writes[0]].elements()))});
  return all;
}

double parameters_of_layer(const Piece& layer) {
  double n = 0;
  for (const ParameterGradient& g : layer.parameters) n += static_cast<double>(layer.tensors[g.parameter].elements());
  return n;
}

// Zhang et al. 2022, section 3.2: all states divided by the ranks of a partition group, (2 + 2 + 12) P / p.
TEST(Mics, DividesAllStatesByThePartitionGroup) {
  for (const std::int64_t size : {2, 8, 32}) {
    Program p;
    lower(mics_of(size), p);
    for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
    const Piece& layer = piece_named(p, "layer");
    const double n = parameters_of_layer(layer) / static_cast<double>(size);
    const PlacedBytes m = piece_memory(layer, 1).resident;
    EXPECT_NEAR(m.of(Place::device, Category::parameter) / (2 * n), 1, 1e-4) << size;
    EXPECT_NEAR(m.of(Place::device, Category::gradient) / (2 * n), 1, 1e-4) << size;
    EXPECT_NEAR(m.of(Place::device, Category::optimizer_state) / (12 * n), 1, 1e-4) << size;
  }
}

// Section 3.4: gradients are reduced within the group in each micro-batch, between groups at the boundary of
// accumulation; whatever the stack does of itself.
TEST(Mics, ReducesGradientsInTwoHops) {
  for (const auto stack : {framework::Stack::deepspeed, framework::Stack::megatron_2021, framework::Stack::fsdp})
    for (const std::int64_t pipeline : {1, 2}) {
      Scenario s = mics_of(8);
      s.plan.framework.stack = stack;
      s.plan.pipeline.degree = pipeline;
      Program p;
      lower(s, p);
      const Piece& layer = piece_named(p, "layer");
      std::vector<MicsCollective> reductions;
      for (const MicsCollective& c : mics_collectives(p, layer.backward))
        if (c.kind != OpKind::all_gather) reductions.push_back(c);
      ASSERT_EQ(reductions.size(), 2u);
      EXPECT_EQ(reductions[0].kind, OpKind::reduce_scatter);
      EXPECT_EQ(reductions[0].ranks, 8);
      EXPECT_EQ(reductions[0].when, When::every_micro_batch);
      EXPECT_NEAR(reductions[0].elements / parameters_of_layer(layer), 1, 1e-4);
      EXPECT_EQ(reductions[1].kind, OpKind::all_reduce);
      EXPECT_EQ(reductions[1].ranks, 4 / pipeline);
      EXPECT_EQ(reductions[1].when, When::last_micro_batch);
      EXPECT_NEAR(reductions[1].elements / (parameters_of_layer(layer) / 8), 1, 1e-4);
    }
}

// Section 3.3: p = 16 ranks on nodes of k = 8; between nodes (p - k) M / p instead of (p - 1) M / p bytes.
TEST(Mics, GathersBetweenNodesFirst) {
  Scenario s = mics_of(16);
  s.plan.mics.hierarchical = true;
  Program p;
  lower(s, p);
  for (const Violation& v : check(p)) ADD_FAILURE() << v.text;
  const Piece& layer = piece_named(p, "layer");
  const double n = parameters_of_layer(layer);
  for (const Block* block : {&layer.forward, &layer.backward}) {
    const std::vector<MicsCollective> all = mics_collectives(p, *block);
    ASSERT_GE(all.size(), 2u);
    EXPECT_EQ(all[0].kind, OpKind::all_gather);
    EXPECT_EQ(all[0].ranks, 2) << "one of each node";
    EXPECT_NEAR(all[0].elements / (n / 8), 1, 1e-4);
    EXPECT_EQ(all[1].kind, OpKind::all_gather);
    EXPECT_EQ(all[1].ranks, 8) << "of one node";
    EXPECT_NEAR(all[1].elements / n, 1, 1e-4);
    for (std::size_t i = 2; i < all.size(); ++i) EXPECT_NE(all[i].kind, OpKind::all_gather);
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::all_gather) continue;
      const bool between = p.mesh.size(op.group) == 2;
      for (std::size_t d = 0; d < p.mesh.digits().size(); ++d)
        EXPECT_EQ(op.group.contains(static_cast<int>(d)), p.mesh.digits()[d].stride == (between ? 8 : 1)) << d;
    }
  }
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_shard), 16);
  EXPECT_EQ(p.mesh.size(MeshAxis::dp_replicate), 2);
  // Tensor-parallel ranks lie within a node: four ranks of a partition group share it.
  s.model = read_model("gpt3-1.3B", {});
  s.plan.tensor.degree = 2;
  s.plan.mics.shard_size = 8;
  lower(s, p);
  std::vector<std::int64_t> ranks;
  for (const Op& op : piece_named(p, "layer").forward.ops)
    if (op.kind == OpKind::all_gather && op.stream == Stream::parameter_communication)
      ranks.push_back(p.mesh.size(op.group));
  EXPECT_THAT(ranks, ElementsAre(2, 4));
}

// Partition groups gather in every micro-batch, whatever the stack does with shards that it keeps.
TEST(Mics, GathersAnewInEveryMicroBatch) {
  for (const framework::Stack stack :
       {framework::Stack::megatron_core, framework::Stack::deepspeed, framework::Stack::fsdp}) {
    Scenario s = mics_of(8);
    s.plan.framework.stack = stack;
    s.plan.data.reshard_after_forward = false;
    if (stack == framework::Stack::deepspeed) s.plan.pipeline.degree = 2;  // where it reduces other shards once
    Program p;
    lower(s, p);
    int gathers = 0;
    for (const MicsCollective& c : mics_collectives(p, piece_named(p, "layer").forward)) {
      if (c.kind != OpKind::all_gather) continue;
      EXPECT_EQ(c.when, When::every_micro_batch);
      ++gathers;
    }
    EXPECT_EQ(gathers, 1);
  }
}

TEST(Mics, RefusesWhatItCannotLayOut) {
  const auto refusal = [](auto change) {
    Scenario s = mics_of(8);
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_EQ(refusal([](Plan&) {}), "nothing");
  EXPECT_THAT(refusal([](Plan& p) { p.data.zero_stage = 2; }), HasSubstr("/plan/mics_shard_size: found 8, expected 0"));
  EXPECT_THAT(refusal([](Plan& p) { p.mics.shard_size = 5; }),
              HasSubstr("/plan/mics_shard_size: found 5, expected a divisor of the data-parallel degree 32"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.shard_degree = 8; }), HasSubstr("/plan/zero_shard_degree: found 8"));
  EXPECT_THAT(refusal([](Plan& p) { p.data.reduce_gradients = data_parallel::Reduction::once; }),
              HasSubstr("/plan/reduce_gradients: found \"once\""));
  EXPECT_THAT(refusal([](Plan& p) { p.zeropp.secondary = 2; }), HasSubstr("/plan/zero_hpz_partition_size: found 2"));
  EXPECT_THAT(refusal([](Plan& p) { p.mics.hierarchical = true; }),
              HasSubstr("/plan/mics_hierarchical_params_gather: found true"));
  const auto of_contexts = [&](const char* order) {
    return refusal([order](Plan& p) {
      p.mics = {16, true};
      p.context.degree = 2;
      p.framework.mesh_order = order;
    });
  };
  EXPECT_EQ(of_contexts("tp-cp-dp-pp"), "nothing");
  EXPECT_THAT(of_contexts("tp-dp-cp-pp"), HasSubstr("/plan/mesh_order: found \"tp-dp-cp-pp\""));
  EXPECT_THAT(refusal([](Plan& p) {
                p.mics = {0, true};
              }),
              HasSubstr("/plan/mics_hierarchical_params_gather: found true, expected false with mics_shard_size 0"));
}

}  // namespace
}  // namespace orrery
