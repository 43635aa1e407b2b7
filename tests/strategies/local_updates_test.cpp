// Local updates: what the workers send and keep, and which plans are refused.
#include "strategies/local_updates/local_updates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/strategies/support.h"

namespace orrery {
namespace {

using local_updates::OuterOptimizer;
using testing::HasSubstr;

// Four nodes of eight, bf16 parameters with fp32 copies; workers agree every six steps.
Scenario four_nodes(OuterOptimizer optimizer, std::int64_t delay, std::int64_t zero_stage = 0) {
  Scenario s = scenario_of("gpt2-1.5b", "dgx-a100", 4);
  s.workload = {1024, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.data.zero_stage = zero_stage;
  s.plan.local.steps = 6;
  s.plan.local.optimizer = optimizer;
  s.plan.local.delay = delay;
  return s;
}
double elements(const Piece& layer) {
  double n = 0;
  for (const ParameterGradient& g : layer.parameters) n += static_cast<double>(layer.tensors[g.parameter].elements());
  return n;
}
// Bytes that a rank gives to means over workers in an iteration, and the ranks of a mean.
struct Means {
  double bytes = 0;
  std::int64_t ranks = 0;
};
Means means_of(const Program& p, const Piece& layer) {
  Means means;
  for (const Block& block : layer.tasks)
    for (const Op& op : block.ops)
      if (op.reduction == Reduction::mean) {
        means.bytes += static_cast<double>(layer.tensors[op.reads[0]].bytes());
        means.ranks = p.mesh.size(op.group);
      }
  return means;
}

TEST(LocalUpdates, WorkersAreNodesUnlessThePlanSays) {
  Scenario s = four_nodes(OuterOptimizer::average, 0);
  EXPECT_EQ(local_updates::workers(s), 4);
  EXPECT_EQ(local_updates::replicas(s), 8);
  s.plan.tensor.degree = 4;
  EXPECT_EQ(local_updates::replicas(s), 2);
  s.plan.local.workers = 8;
  EXPECT_EQ(local_updates::replicas(s), 1);
  s.plan.local.steps = 0;
  EXPECT_EQ(local_updates::workers(s), 1);
}

// A worker sends its copy once an iteration, whatever its ranks: each rank sends its part. Between nodes that is 2 e P
// (K - 1) / K bytes a node instead of as much in every step.
TEST(LocalUpdates, AWorkerSendsItsCopyOnce) {
  for (const std::int64_t stage : {0, 1, 3})
    for (const auto& [optimizer, delay] :
         {std::pair(OuterOptimizer::average, 0), std::pair(OuterOptimizer::momentum, 1),
          std::pair(OuterOptimizer::nesterov, 0)}) {
      Scenario s = four_nodes(optimizer, delay, stage);
      if (optimizer != OuterOptimizer::average) s.plan.local.dtype = local_updates::OuterDtype::bf16;
      const Program p = proven(s);
      const Piece& layer = piece_named(p, "layer");
      const Means means = means_of(p, layer);
      EXPECT_EQ(means.ranks, 4);
      const double bytes = optimizer == OuterOptimizer::average ? 4 : 2;  // of fp32 copies, of displacements
      EXPECT_NEAR(means.bytes / (bytes * elements(layer) / 8), 1, 1e-4) << stage;
      // Nothing in the step reaches beyond a worker.
      for (const Block* block : {&layer.forward, &layer.backward, &layer.update})
        for (const Op& op : block->ops) EXPECT_FALSE(op.group.meets(p.mesh.group(MeshAxis::worker))) << op.name;
    }
}

// Codes of displacements are exchanged and gathered, each with a scale for 4096 of them.
TEST(LocalUpdates, DisplacementsTravelAsCodes) {
  for (const auto& [dtype, bytes] :
       {std::pair(local_updates::OuterDtype::int8, 1.0), std::pair(local_updates::OuterDtype::fp8, 1.0),
        std::pair(local_updates::OuterDtype::int4, 0.5)}) {
    Scenario s = four_nodes(OuterOptimizer::nesterov, 0);
    s.plan.local.dtype = dtype;
    const Program p = proven(s);
    const Piece& layer = piece_named(p, "layer");
    double exchanged = 0, gathered = 0;
    for (const Op& op : layer.tasks.front().ops) {
      if (op.kind == OpKind::all_to_all) exchanged += static_cast<double>(layer.tensors[op.reads[0]].bytes());
      if (op.kind == OpKind::all_gather && p.mesh.size(op.group) == 4)
        gathered += static_cast<double>(layer.tensors[op.writes[0]].bytes());
    }
    EXPECT_NEAR(exchanged / (elements(layer) / 8 * (bytes + 4.0 / 4096)), 1, 1e-3);
    EXPECT_EQ(gathered, exchanged);
    s.plan.local.delay = 1;
    EXPECT_THAT(refusal_of(s), HasSubstr("kernels sum codes, and workers wait for these"));
    s.plan.local.delay = 0;
    s.plan.tensor.degree = 5;
    s.cluster.nodes = 5;
    EXPECT_THAT(refusal_of(s), HasSubstr("with tensor_parallel: ranks would round what they hold in common"));
    s.cluster.nodes = 4;
    s.plan.tensor.degree = 1;
    s.plan.pipeline.degree = 2;
    s.model.tied_embeddings = true;
    EXPECT_THAT(refusal_of(s), HasSubstr("for tied embeddings on several stages"));
  }
}

// An anchor and a momentum in fp32, and what is under way in the dtype of the wire, over the ranks of a worker.
TEST(LocalUpdates, OuterStatesAreDividedOverAWorker) {
  for (const std::int64_t stage : {0, 2, 3}) {
    const auto held = [&](OuterOptimizer optimizer, std::int64_t delay) {
      Scenario s = four_nodes(optimizer, delay, stage);
      if (optimizer != OuterOptimizer::average) s.plan.local.dtype = local_updates::OuterDtype::bf16;
      const Program p = proven(s);
      return device_bytes(piece_memory(piece_named(p, "layer"), 1).resident);
    };
    Program p;
    lower(four_nodes(OuterOptimizer::average, 0, stage), p);
    const double part = elements(piece_named(p, "layer")) / 8, average = held(OuterOptimizer::average, 0);
    EXPECT_NEAR((held(OuterOptimizer::momentum, 0) - average) / (8 * part), 1, 1e-3) << stage;
    EXPECT_NEAR((held(OuterOptimizer::momentum, 1) - average) / (12 * part), 1, 1e-3) << stage;
  }
}

// CO2's released way: the first rank of each node takes the mean of the whole copy, over one NIC. Every rank keeps all
// outer states, and what is under way.
TEST(LocalUpdates, FirstRanksOfNodesExchangeWholeCopies) {
  for (const auto& [optimizer, delay] : {std::pair(OuterOptimizer::average, 0), std::pair(OuterOptimizer::momentum, 1),
                                         std::pair(OuterOptimizer::pull, 1)}) {
    Scenario s = four_nodes(optimizer, delay);
    const double parts = device_bytes(piece_memory(piece_named(proven(s), "layer"), 1).resident);
    s.plan.local.exchange = local_updates::Exchange::first_ranks;
    const Program p = proven(s);
    const Piece& layer = piece_named(p, "layer");
    const Means means = means_of(p, layer);
    EXPECT_EQ(means.ranks, 32);
    EXPECT_EQ(means.bytes, 4 * elements(layer));
    for (const Block& block : layer.tasks)
      for (const Op& op : block.ops)
        EXPECT_EQ(op.algorithm == CollectiveAlgorithm::first_ranks, is_communication(op.kind)) << op.name;
    const double copies = optimizer == OuterOptimizer::average ? 0 : optimizer == OuterOptimizer::pull ? 2 : 4;
    EXPECT_NEAR(device_bytes(piece_memory(layer, 1).resident) - parts, copies * 4 * elements(layer) * 7 / 8,
                1e-3 * 4 * elements(layer));
  }
}

TEST(LocalUpdates, FirstRanksExchangeOnlyWhereNodesAreWorkers) {
  const auto refused = [](auto change) {
    Scenario s = four_nodes(OuterOptimizer::momentum, 1);
    s.plan.local.exchange = local_updates::Exchange::first_ranks;
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Scenario&) {}), "nothing");
  EXPECT_THAT(
      refused([](Scenario& s) { s.plan.local.workers = 8; }),
      HasSubstr("/plan/outer_exchange: found \"first_ranks\", expected \"all_ranks\" unless each node is a worker"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.workers = 2; }), HasSubstr("unless each node is a worker"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.data.zero_stage = 1; }), HasSubstr("above zero_stage 0"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.local.delay = 0;
                s.plan.local.dtype = local_updates::OuterDtype::int8;
              }),
              HasSubstr("with codes on the wire"));
  EXPECT_THAT(
      refused([](Scenario& s) { s.model = scenario_of("mixtral-8x7b", "dgx-a100", 4).model; }),
      HasSubstr("/plan/outer_exchange: found \"first_ranks\", expected \"all_ranks\" for a model with experts"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.steps = 0; }), HasSubstr("without local_steps"));
}

// CO2's penalty: each of two norms is one number, summed over all that hold different parameters, one of them averaged
// over the workers. A state of one number is kept.
TEST(LocalUpdates, APenaltyByNormsSendsSingleNumbers) {
  for (const std::int64_t stage : {0, 1, 3})
    for (const std::int64_t steps : {1, 6}) {
      Scenario s = four_nodes(OuterOptimizer::momentum, 1, stage);
      s.plan.local.steps = steps;
      const Program constant = proven(s);
      s.plan.local.gap_norms = true;
      const Program p = proven(s);
      EXPECT_EQ(steps_of_iteration(p), steps);
      EXPECT_EQ(p.tasks.size(), constant.tasks.size() + (steps > 1 ? 2 : 1));
      const Piece& layer = piece_named(p, "layer");
      std::vector<std::int64_t> summed, averaged;
      for (const Block& block : layer.tasks)
        for (const Op& op : block.ops)
          if (op.kind == OpKind::all_reduce && layer.tensors[op.reads[0]].elements() == 1)
            (op.reduction == Reduction::mean ? averaged : summed).push_back(p.mesh.size(op.group));
      EXPECT_THAT(summed, testing::ElementsAre(8, 8)) << stage;
      EXPECT_THAT(averaged, testing::ElementsAre(4)) << stage;
      EXPECT_EQ(means_of(p, layer).bytes - 4, means_of(constant, piece_named(constant, "layer")).bytes);
      EXPECT_NEAR(device_bytes(piece_memory(layer, 1).resident),
                  device_bytes(piece_memory(piece_named(constant, "layer"), 1).resident) + 4, 600);
    }
}

TEST(LocalUpdates, APenaltyByNormsIsCo2s) {
  const auto refused = [](auto change) {
    Scenario s = four_nodes(OuterOptimizer::momentum, 1);
    s.plan.local.gap_norms = true;
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Scenario&) {}), "nothing");
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.delay = 0; }),
              HasSubstr("/plan/outer_gap_norms: found true, expected false unless outer_optimizer is \"momentum\""));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.optimizer = OuterOptimizer::nesterov; }),
              HasSubstr("/plan/outer_gap_norms"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.gap_penalty = 2; }),
              HasSubstr("/plan/outer_gap_penalty: found 2, expected 1 with outer_gap_norms"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.local.fragments = 2; }), HasSubstr("/plan/outer_fragments"));
  EXPECT_THAT(refused([](Scenario& s) { s.model = scenario_of("mixtral-8x7b", "dgx-a100", 4).model; }),
              HasSubstr("/plan/outer_gap_norms: found true, expected false for a model with experts"));
}

TEST(LocalUpdates, WithoutThemNothingChanges) {
  Scenario with = four_nodes(OuterOptimizer::average, 0);
  with.plan.local = {};
  Program p;
  lower(with, p);
  EXPECT_TRUE(p.tasks.empty());
  EXPECT_EQ(p.mesh.size(MeshAxis::worker), 1);
  for (const Piece& piece : p.pieces) EXPECT_TRUE(piece.tasks.empty());
}

TEST(LocalUpdates, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    Scenario s = four_nodes(OuterOptimizer::momentum, 0);
    change(s.plan);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Plan&) {}), "nothing");
  EXPECT_THAT(refused([](Plan& plan) { plan.local.workers = 5; }),
              HasSubstr("/plan/local_workers: found 5, expected a divisor of the data-parallel degree 32"));
  EXPECT_THAT(refused([](Plan& plan) { plan.local.workers = 1; }), HasSubstr("there is one worker"));
  EXPECT_THAT(refused([](Plan& plan) { plan.local.steps = 0; }),
              HasSubstr("/plan/outer_optimizer: found \"momentum\", expected \"average\" without local_steps"));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.local.optimizer = OuterOptimizer::average;
                plan.local.delay = 1;
              }),
              HasSubstr("/plan/outer_delay: found 1, expected 0 with outer_optimizer \"average\""));
  EXPECT_THAT(refused([](Plan& plan) { plan.offload.optimizer = true; }), HasSubstr("/plan/local_steps"));
  EXPECT_THAT(refused([](Plan& plan) {
                plan.data.zero_stage = 1;
                plan.data.shard_degree = 16;  // a worker has eight replicas
              }),
              HasSubstr("/plan/zero_shard_degree"));
}

}  // namespace
}  // namespace orrery
