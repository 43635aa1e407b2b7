// Are experts, their rows and their gradients laid out as the degrees say, over which ranks, and what is refused?
#include "strategies/expert_parallel/expert_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/program/check.h"
#include "sim/program/rewrite.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using testing::HasSubstr;

// Eight experts, two a token; 64 ranks, a step of 64 sequences.
Scenario mixtral(std::int64_t tensor = 1) {
  Scenario s = scenario_of("mixtral-8x7b", "dgx-h100", 8);
  s.workload.sequence_length = 4096;
  s.workload.global_batch_size = 64;
  s.plan.batch.micro_batch_size = 1;
  s.plan.tensor.degree = tensor;
  s.plan.tensor.sequence_parallel = tensor > 1;
  s.plan.expert.tensor_degree = 1;
  s.plan.data.zero_stage = 1;
  return s;
}
Scenario deepseek() {
  Scenario s = mixtral();
  s.model = read_model("deepseek-v2-lite", {});
  return s;
}

Program proven(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  return program;
}

const Op& op_named(const Block& block, std::string_view name) {
  for (const Op& op : block.ops)
    if (name == op.name) return op;
  throw std::runtime_error("no such op");
}

TEST(ExpertParallel, EveryFoldingIsProven) {
  for (const std::int64_t tp : {1, 2, 8})
    for (const std::int64_t etp : {1, 2, 4})
      for (const std::int64_t ep : {1, 2, 8})
        for (const std::int64_t zero : {0, 1, 3})
          for (const std::int64_t cp : {1, 2})
            for (const std::int64_t pp : {1, 2}) {
              Scenario s = mixtral(tp);
              s.plan.expert.degree = ep;
              s.plan.expert.tensor_degree = etp;
              s.plan.data.zero_stage = zero;
              s.plan.context.degree = cp;
              s.plan.pipeline.degree = pp;
              SCOPED_TRACE("tp " + std::to_string(tp) + " etp " + std::to_string(etp) + " ep " + std::to_string(ep) +
                           " zero " + std::to_string(zero) + " cp " + std::to_string(cp) + " pp " + std::to_string(pp));
              const Program p = proven(s);
              EXPECT_EQ(p.mesh.size(MeshAxis::ep), ep);
              EXPECT_EQ(p.mesh.size(MeshAxis::etp), etp);
              EXPECT_EQ(p.mesh.size(expert_parallel::expert_replicas(p.mesh)) * ep * etp * pp, 64);
            }
}

TEST(ExpertParallel, ARankHasItsExpertsAndTheRowsOfAllWhoShareThem) {
  Scenario s = mixtral(2);
  s.plan.expert.degree = 4;
  s.plan.expert.tensor_degree = 2;
  const Program p = proven(s);
  const Piece& layer = piece_named(p, "expert_layer");
  const Op& fc1 = op_named(layer.forward, "expert_fc1");
  const GemmShape shape = gemm_shape(fc1, layer.tensors);
  // 2,048 tokens a rank, two rows each, over eight experts; of four ranks, and both halves of an expert see all of two.
  EXPECT_EQ(shape.batch, 2);
  EXPECT_EQ(shape.m, 2048 * 2 / 8 * 4 * 2);
  EXPECT_EQ(shape.k, 4096);
  EXPECT_EQ(shape.n, 2 * 14336 / 2);
  const Op& dispatch = op_named(layer.forward, "dispatch");
  EXPECT_EQ(dispatch.group, p.mesh.group(MeshAxis::ep));
  EXPECT_EQ(layer.tensors[dispatch.reads[0]].bytes(), 2048 * 2 * 4096 * 2);
}

TEST(ExpertParallel, GradientsOfExpertsAreSummedOverThoseWhoHoldThem) {
  Scenario s = mixtral(2);
  s.plan.expert.degree = 8;
  const Program p = proven(s);
  const Piece& layer = piece_named(p, "expert_layer");
  ASSERT_EQ(layer.sets.size(), 2u);
  const auto of_experts = [&](std::size_t set) {
    for (const ParameterGradient& g : layer.parameters)
      if (g.set == set && layer.tensors[g.parameter].find(Axis::experts) >= 0) return true;
    return false;
  };
  for (std::size_t set = 0; set < 2; ++set) {
    const std::int64_t ranks = p.mesh.size(layer.sets[set].over.states);
    EXPECT_EQ(ranks, of_experts(set) ? 8 : 32);
  }
}

TEST(ExpertParallel, TokensTravelAsTheDispatcherSays) {
  using expert_parallel::Dispatcher;
  for (const auto& [dispatcher, algorithm] : {std::pair{Dispatcher::alltoall, CollectiveAlgorithm::automatic},
                                              {Dispatcher::hierarchical, CollectiveAlgorithm::hierarchical},
                                              {Dispatcher::flex, CollectiveAlgorithm::by_token}}) {
    Scenario s = mixtral();
    s.plan.expert.degree = 4;
    s.plan.expert.dispatcher = dispatcher;
    const Program p = proven(s);
    const Piece& layer = piece_named(p, "expert_layer");
    EXPECT_EQ(op_named(layer.forward, "dispatch").algorithm, algorithm);
    EXPECT_EQ(op_named(layer.forward, "dispatch").router.experts, 8);
    // Rows that travel lie by rank, and are sorted by expert; tokens are put into rows where they arrive.
    const bool sorts = dispatcher != Dispatcher::flex;
    int sorted = 0;
    for (const Op& op : layer.forward.ops) sorted += std::string_view(op.name) == "sort_rows";
    EXPECT_EQ(sorted > 0, sorts);
  }
}

TEST(ExpertParallel, SharedExpertsComputeWhileTokensTravel) {
  for (const std::int64_t tp : {1, 2}) {
    Scenario s = deepseek();
    s.plan.tensor.degree = tp;
    s.plan.tensor.sequence_parallel = tp > 1;
    s.plan.expert.degree = 8;
    s.plan.expert.overlap_shared = true;
    for (const precision::Mix mix : {precision::Mix::bf16, precision::Mix::fp8}) {
      s.plan.precision.mix = mix;
      const Program p = proven(s);
      const Piece& layer = piece_named(p, "expert_layer");
      for (const Block* block : {&layer.forward, &layer.backward}) {
        // Between an exchange and the first op that reads what came there are products of the shared experts.
        int hidden = 0;
        for (std::size_t i = 0; i < block->ops.size(); ++i) {
          if (block->ops[i].stream != Stream::expert_communication) continue;
          for (std::size_t j = i + 1; j < block->ops.size(); ++j) {
            const Op& op = block->ops[j];
            if (std::ranges::find(op.reads, block->ops[i].writes[0]) != op.reads.end()) break;
            hidden += is_matmul(op.kind) && op.group_dims == 0;
          }
        }
        EXPECT_GE(hidden, block == &layer.forward ? 2 : 4);
      }
    }
  }
}

TEST(ExpertParallel, CapacityPadsSlots) {
  for (const double factor : {0.0, 1.0, 1.25, 2.0}) {
    Scenario s = mixtral();
    s.plan.expert.degree = 8;
    s.plan.expert.capacity_factor = factor;
    const Program p = proven(s);
    const Piece& layer = piece_named(p, "expert_layer");
    const GemmShape shape = gemm_shape(op_named(layer.forward, "expert_fc1"), layer.tensors);
    EXPECT_EQ(shape.m, static_cast<std::int64_t>(1024 * (factor > 0 ? factor : 1)) * 8);
    EXPECT_EQ(p.runtime.graphs_leave_experts, factor == 0);
  }
}

TEST(ExpertParallel, RefusesWhatDoesNotDivide) {
  const auto refused = [](auto change) {
    Scenario s = mixtral(2);
    s.plan.expert.degree = 2;
    change(s);
    return refusal_of(s);
  };
  EXPECT_EQ(refused([](Scenario&) {}), "nothing");
  EXPECT_THAT(refused([](Scenario& s) { s.plan.expert.degree = 3; }), HasSubstr("a divisor of the model's 8 experts"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.expert.degree = 16; }), HasSubstr("a divisor of the model's 8 experts"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.expert.tensor_degree = 3; }), HasSubstr("inner width of 14336"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.expert.tensor_degree = 64; }), HasSubstr("divides the 64 ranks"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.tensor.sequence_parallel = false; }), HasSubstr("/plan/sequence_parallel"));
  EXPECT_THAT(refused([](Scenario& s) { s.plan.expert.overlap_shared = true; }), HasSubstr("without shared experts"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.expert.overlap_pairs = true;
                s.plan.pipeline.degree = 2;
              }),
              HasSubstr("virtual_pipeline 1"));
  EXPECT_THAT(refused([](Scenario& s) {
                s.plan.expert.overlap_pairs = true;
                s.plan.expert.degree = 1;
              }),
              HasSubstr("where no token travels"));
  EXPECT_THAT(refused([](Scenario& s) { s.model = read_model("llama-3-8b", {}); }),
              HasSubstr("for a model without experts"));
}

}  // namespace
}  // namespace orrery
