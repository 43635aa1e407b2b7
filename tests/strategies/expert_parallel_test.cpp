// Expert parallelism: how many slots there are, what travels, and what runs beside it.
#include "strategies/expert_parallel/expert_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sim/program/check.h"
#include "sim/program/pair.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using expert_parallel::Dispatcher;
using testing::ElementsAre;
using testing::HasSubstr;

// 64 experts of 1408, six a token, and shared ones of 2816; 2048 tokens a micro-batch on one node of eight.
Scenario deepseek_moe(std::int64_t experts = 4, std::int64_t tensor = 1) {
  Scenario s = scenario_of("deepseek-moe-16b", "dgx-h100", 1);
  s.workload = {2048, 0, 64};
  s.plan.batch.micro_batch_size = 1;
  s.plan.data.degree = 8 / tensor;
  s.plan.tensor.degree = tensor;
  s.plan.tensor.sequence_parallel = tensor > 1;
  s.plan.expert.degree = experts;
  return s;
}

Program lowered(const Scenario& scenario) {
  Program program;
  lower(scenario, program);
  for (const Violation& v : check(program)) ADD_FAILURE() << v.text;
  return program;
}

std::vector<Op> ops_of(const Block& block, OpKind kind) {
  std::vector<Op> found;
  for (const Op& op : block.ops)
    if (op.kind == kind) found.push_back(op);
  return found;
}

std::vector<std::int64_t> sizes_of(const Tensor& t) { return {t.sizes.begin(), t.sizes.begin() + t.rank}; }

// Sizes that the host must know before it calls: of messages, and of kernels that each have one expert.
TEST(ExpertParallel, TheHostReadsCountsOfRowsWhereCallsNeedThem) {
  using framework::Stack;
  const auto reads = [](Stack stack, std::int64_t ranks, double capacity_factor = 0) {
    Scenario s = deepseek_moe(ranks);
    s.plan.framework.stack = stack;
    s.plan.expert.capacity_factor = capacity_factor;
    return lowered(s).runtime.reads_row_counts;
  };
  EXPECT_TRUE(reads(Stack::megatron_core, 4));
  EXPECT_TRUE(reads(Stack::megatron_core, 1));  // a kernel for each expert
  EXPECT_TRUE(reads(Stack::fsdp, 4));
  EXPECT_FALSE(reads(Stack::fsdp, 1));  // one kernel for all of them
  EXPECT_FALSE(reads(Stack::jax, 4));
  EXPECT_FALSE(reads(Stack::megatron_core, 4, 1.25));  // fixed slots
  Scenario dense = scenario_of("llama-3-8b", "dgx-h100", 1);
  dense.workload.global_batch_size = 8;
  EXPECT_FALSE(lowered(dense).runtime.reads_row_counts);
}

// Switch (Fedus et al. 2021, arXiv 2101.03961), eq. 3: capacity factor x tokens / experts, of each of k choices;
// Megatron-Core's get_capacity rounds up.
TEST(ExpertParallel, SlotsAreThoseOfTheCapacityFactorRoundedUp) {
  for (const double factor : {0.0, 0.51, 1.0, 1.25, 20.0}) {
    Scenario s = deepseek_moe();
    s.plan.expert.capacity_factor = factor;
    const Program program = lowered(s);
    const Piece& layer = piece_named(program, "expert_layer");
    const Op permute = ops_of(layer.forward, OpKind::permute).at(0);
    const auto balanced = 2048.0 * 6 / 64;
    const auto slots =
        static_cast<std::int64_t>(std::min(2048.0, std::ceil(factor > 0 ? factor * balanced : balanced)));
    EXPECT_THAT(sizes_of(layer.tensors[permute.writes[0]]), ElementsAre(64, slots, 2048)) << factor;
  }
}

// Of its experts a rank has the rows of all ranks that share them; those that share an expert's matrices, the rows of
// each other.
// Slots are executed, filled or not: those of the layer that predicts one more token, too.
TEST(ExpertParallel, SlotsOfEveryLayerWithExpertsAreExecuted) {
  for (const std::int64_t predicting : {0, 1}) {
    Scenario s = deepseek_moe();
    s.model.mtp_num_layers = predicting;
    const auto executed = [&](double factor) {
      s.plan.expert.capacity_factor = factor;
      return lowered(s).model.executed_flops_per_step;
    };
    const double of_token = 2 * 3 * 3 * 2048.0 * 1408 * 6, layers = static_cast<double>(27 + predicting);
    EXPECT_NEAR((executed(1.5) - executed(1)) / (0.5 * of_token * 64 * 2048 * layers), 1, 1e-9) << predicting;
  }
}

TEST(ExpertParallel, ARankHasTheRowsThatComeFromAll) {
  for (const auto& [experts, tensor] : {std::pair{1, 1}, {4, 1}, {8, 1}, {4, 2}, {1, 2}}) {
    const Program program = lowered(deepseek_moe(experts, tensor));
    const Piece& layer = piece_named(program, "expert_layer");
    const std::int64_t slots = 2048 / tensor * 6 / 64;
    int met = 0;
    for (const Op& op : layer.forward.ops) {
      if (op.kind != OpKind::linear || op.group_dims == 0) continue;
      const Tensor &x = layer.tensors[op.reads[0]], &w = layer.tensors[op.reads[1]];
      EXPECT_EQ(x.sizes[0], 64 / experts);
      EXPECT_EQ(x.sizes[1], slots * experts * tensor);
      EXPECT_EQ(w.elements(), 64 / experts * 2048 * 1408 / tensor * (met++ == 0 ? 2 : 1));
    }
    EXPECT_EQ(met, 2);
    EXPECT_EQ(ops_of(layer.forward, OpKind::redistribute).size(), experts > 1 ? 3u : 0u) << "rows, weights, rows";
    // Beside those of sequence parallelism, of the projections and the shared experts.
    int gathers = 0, scatters = 0;
    for (const Op& op : layer.forward.ops) {
      gathers += std::string_view(op.name) == "dispatch.all_gather";
      scatters += std::string_view(op.name) == "combine.reduce_scatter";
    }
    EXPECT_EQ(gathers, tensor > 1 ? 2 : 0) << "rows and their weights";
    EXPECT_EQ(scatters, tensor > 1 ? 1 : 0);
  }
}

// A rank holds its own experts' gradients and reduces them with those that hold the same.
TEST(ExpertParallel, ReplicasAreTheRestOfTheRanks) {
  for (const auto& [experts, tensor, replicas] : {std::tuple{4, 1, 2}, {8, 1, 1}, {2, 2, 2}, {4, 2, 1}}) {
    const Program program = lowered(deepseek_moe(experts, tensor));
    EXPECT_EQ(program.mesh.size(expert_parallel::expert_replicas(program.mesh)), replicas) << experts << " " << tensor;
  }
}

TEST(ExpertParallel, DispatchersSayHowTokensTravel) {
  const auto exchanges = [](Dispatcher dispatcher, std::int64_t experts) {
    Scenario s = deepseek_moe(experts);
    s.plan.expert.dispatcher = dispatcher;
    const Program program = lowered(s);
    const Piece& layer = piece_named(program, "expert_layer");
    std::set<CollectiveAlgorithm> algorithms;
    for (const Op& op : ops_of(layer.forward, OpKind::redistribute)) algorithms.insert(op.algorithm);
    EXPECT_EQ(algorithms.size(), 1u);
    int sorts = 0;
    for (const Op& op : layer.forward.ops) sorts += std::string_view(op.name) == "sort_rows";
    return std::pair(*algorithms.begin(), sorts);
  };
  const Op none;
  // Rows and their weights by rank as they come, rows by rank as they go; of one expert a rank there is no order.
  EXPECT_EQ(exchanges(Dispatcher::alltoall, 4), std::pair(none.algorithm, 3));
  EXPECT_EQ(exchanges(Dispatcher::hierarchical, 4), std::pair(CollectiveAlgorithm::hierarchical, 3));
  // Whoever receives a token puts it into its rows.
  EXPECT_EQ(exchanges(Dispatcher::flex, 4), std::pair(CollectiveAlgorithm::by_token, 0));
}

double bytes_of_ops(const Piece& layer, const Block& block, OpKind kind, Axis with, Axis without = Axis::none) {
  double sum = 0;
  for (const Op& op : block.ops) {
    const Tensor& t = layer.tensors[op.reads[0]];
    if (op.kind == kind && op.account == Stream::expert_communication && t.find(with) >= 0 &&
        (without == Axis::none || t.find(without) < 0))
      sum += bytes(op, layer.tensors);
  }
  return sum;
}

// Megatron-Core's MoEAllGatherTokenDispatcher: every rank has the tokens, choices and weights of all e x ranks,
// computes its own experts' part of their sum, and gets back its own tokens'.
TEST(ExpertParallel, AllGatherBringsAllTokensToAllRanksOfTheExperts) {
  const double n = 2048, k = 6, h = 2048;
  for (const auto& [experts, tensor] : {std::pair{8, 1}, {4, 1}, {4, 2}, {2, 4}, {1, 2}}) {
    Scenario s = deepseek_moe(experts);
    s.plan.expert.tensor_degree = tensor;
    const Program exchanged = lowered(s);
    s.plan.expert.dispatcher = Dispatcher::allgather;
    const Program program = lowered(s);
    const Piece &layer = piece_named(program, "expert_layer"), &other = piece_named(exchanged, "expert_layer");
    const double all = experts * tensor;
    SCOPED_TRACE(all);
    for (const Block* block : {&layer.forward, &layer.backward}) {
      EXPECT_TRUE(ops_of(*block, OpKind::redistribute).empty());
      EXPECT_EQ(bytes_of_ops(layer, *block, OpKind::all_gather, Axis::hidden), 2 * n * h * all);
      EXPECT_EQ(bytes_of_ops(layer, *block, OpKind::reduce_scatter, Axis::hidden), 2 * n * h * all);
    }
    EXPECT_EQ(bytes_of_ops(layer, layer.forward, OpKind::all_gather, Axis::sequence, Axis::hidden), 8 * n * k * all)
        << "choices and weights";
    EXPECT_EQ(bytes_of_ops(layer, layer.backward, OpKind::reduce_scatter, Axis::sequence, Axis::hidden),
              4 * n * k * all)
        << "the weights' gradients; choices have been kept";
    for (const auto& [a, b] : {std::pair{&layer.forward, &other.forward}, {&layer.backward, &other.backward}}) {
      double own = 0, theirs = 0;
      for (const Op& op : a->ops) own += flops(op, layer.tensors);
      for (const Op& op : b->ops) theirs += flops(op, other.tensors);
      EXPECT_EQ(own, theirs) << "products are the same";
    }
  }
}

// DeepSeek-V3, sections 3.3.2 and 3.3.3: to the experts in fp8 with a scale in fp32 for each 128 elements, back in
// bf16; gradients of what experts give alike.
TEST(ExpertParallel, TokensTravelToTheirExpertsInFp8) {
  const double n = 2048, k = 6, h = 2048, quantised = n * k * h * (1 + 4.0 / 128), exact = 2 * n * k * h;
  for (const auto& [products, early] : {std::pair{false, true}, {true, true}, {false, false}, {true, false}})
    for (const Dispatcher dispatcher : {Dispatcher::alltoall, Dispatcher::flex, Dispatcher::allgather}) {
      Scenario s = deepseek_moe(4);
      if (products) s.plan.precision.mix = precision::Mix::fp8;
      if (!early) s.plan.framework.stack = framework::Stack::megatron_deepspeed;
      s.plan.expert.dispatcher = dispatcher;
      s.plan.expert.fp8_dispatch = true;
      const Program program = lowered(s);
      const Piece& layer = piece_named(program, "expert_layer");
      if (dispatcher == Dispatcher::allgather) {
        for (const Block* block : {&layer.forward, &layer.backward})
          EXPECT_EQ(bytes_of_ops(layer, *block, OpKind::all_gather, Axis::hidden), n * h * 4 * (1 + 4.0 / 128));
        continue;
      }
      for (const Block* block : {&layer.forward, &layer.backward})
        EXPECT_EQ(bytes_of_ops(layer, *block, OpKind::redistribute, Axis::hidden), quantised + exact);
      int quantises = 0, dequantises = 0, of_rows = 0;
      TensorId read = kNoTensor;  // by the first product of the experts
      for (const Op& op : layer.forward.ops) {
        if (read == kNoTensor && op.kind == OpKind::linear && op.group_dims > 0) read = op.reads[0];
        if (op.kind != OpKind::cast) continue;
        const Tensor &from = layer.tensors[op.reads[0]], &to = layer.tensors[op.writes[0]];
        quantises += to.dtype == Dtype::fp8_blocks && from.find(Axis::slots) < 0;
        dequantises += from.dtype == Dtype::fp8_blocks && to.dtype == Dtype::bf16;
        of_rows += to.dtype == Dtype::fp8 && from.find(Axis::slots) >= 0 && from.find(Axis::hidden) >= 0;
      }
      EXPECT_EQ(quantises, 1) << "each token once";
      EXPECT_EQ(dequantises, products ? 0 : 1);
      EXPECT_EQ(of_rows, products ? 1 : 0) << "rows have come in fp8; Hopper's weight gradients read them transposed";
      ASSERT_NE(read, kNoTensor);
      EXPECT_EQ(layer.tensors[read].dtype, products ? Dtype::fp8_blocks : Dtype::bf16);
    }
}

// Shared experts run beside the exchanges with all copies of what their products read: in one order or two, of weights
// that stay, that are gathered, or that are frozen.
TEST(ExpertParallel, SharedExpertsBesideExchangesBringTheirCopies) {
  for (const char* node : {"dgx-h100", "dgx-b200"})
    for (const auto mix : {precision::Mix::fp8, precision::Mix::nvfp4})
      for (const int stage : {0, 3})
        for (const std::int64_t rank : {0, 4}) {
          Scenario s = deepseek_moe(2);
          if (mix == precision::Mix::nvfp4 && node == std::string("dgx-h100")) continue;
          s.cluster = scenario_of("deepseek-moe-16b", node, 1).cluster;
          s.plan.precision.mix = mix;
          s.plan.data.zero_stage = stage;
          s.plan.lora.rank = rank;
          if (rank > 0 && stage == 0) s.plan.lora.targets = {2, 3};  // linear_fc1, linear_fc2
          s.plan.expert.overlap_shared = true;
          for (const Violation& v : check(lowered(s))) ADD_FAILURE() << node << stage << rank << ": " << v.text;
        }
}

// GShard's einsums: 2 T E C M FLOPs each, one in either direction of the forward, and of the backward one more where
// weights are part of the mask.
TEST(ExpertParallel, MasksMultiplyAllTokensWithAllRows) {
  for (const bool early : {true, false}) {
    Scenario s = deepseek_moe(4);
    s.plan.expert.capacity_factor = 1.25;
    if (!early) s.plan.framework.stack = framework::Stack::megatron_deepspeed;
    const auto sums = [&] {
      const Program program = lowered(s);
      const Piece& layer = piece_named(program, "expert_layer");
      std::array<double, 3> sum{};  // FLOPs forward and backward, bytes of masks
      for (const Op& op : layer.forward.ops) sum[0] += flops(op, layer.tensors);
      for (const Op& op : layer.backward.ops) sum[1] += flops(op, layer.tensors);
      for (const Op& op : layer.forward.ops)
        if (op.kind == OpKind::slot_mask) sum[2] += static_cast<double>(layer.tensors[op.writes[0]].bytes());
      return sum;
    };
    const auto by_index = sums();
    s.plan.expert.permute = expert_parallel::Permute::einsum;
    const auto by_mask = sums();
    const double slots = std::ceil(1.25 * 2048 * 6 / 64), einsum = 2.0 * 2048 * 64 * slots * 2048;
    EXPECT_EQ(by_mask[0] - by_index[0], 2 * einsum);
    EXPECT_EQ(by_mask[1] - by_index[1], (early ? 2 : 3) * einsum);
    EXPECT_EQ(by_index[2], 0);
    EXPECT_EQ(by_mask[2], (early ? 1 : 2) * 2 * 2048 * 64 * slots) << "of choices, and of weights";
  }
}

// Where ranks have parts of a sequence, its loads are of all of it.
TEST(ExpertParallel, LoadsOfDividedSequencesAreSummed) {
  for (const auto& [tensor, context] : {std::pair{1, 1}, {2, 1}, {1, 2}, {2, 2}}) {
    Scenario s = deepseek_moe(4, tensor);
    s.plan.context.degree = context;
    s.plan.data.degree = 8 / (tensor * context);
    s.model.aux_loss = 0.01;
    const Program program = lowered(s);
    const Piece& layer = piece_named(program, "expert_layer");
    std::vector<Op> sums;
    for (const Op& op : layer.forward.ops)
      if (std::string_view(op.name) == "expert_counts.all_reduce") sums.push_back(op);
    ASSERT_EQ(sums.size(), tensor * context > 1 ? 1u : 0u);
    for (const Op& op : sums) EXPECT_EQ(program.mesh.size(op.group), tensor * context);
    EXPECT_EQ(ops_of(layer.backward, OpKind::router_loss_backward).size(), 1u);
  }
}

// Of all replicas' sequences as well, one number an expert.
TEST(ExpertParallel, LoadsOfAllReplicasAreSummedWhereTheLossIsGlobal) {
  for (const auto& [tensor, context] : {std::pair{1, 1}, {2, 2}}) {
    Scenario s = deepseek_moe(4, tensor);
    s.plan.context.degree = context;
    s.plan.data.degree = 8 / (tensor * context);
    s.model.aux_loss = 0.01;
    s.model.load_balancing = LoadBalancing::global_aux_loss;
    const Program program = lowered(s);
    EXPECT_TRUE(check(program).empty());
    const Piece& layer = piece_named(program, "expert_layer");
    const auto sum = std::ranges::find_if(
        layer.forward.ops, [](const Op& op) { return std::string_view(op.name) == "expert_counts.all_reduce"; });
    ASSERT_NE(sum, layer.forward.ops.end());
    EXPECT_EQ(program.mesh.size(sum->group), 8);
    EXPECT_EQ(layer.tensors[sum->reads[0]].elements(), s.model.experts);
  }
}

// One rank would choose among, or count, other tokens.
TEST(ExpertParallel, RunsOfRoutersThatLookAtAllTokensOfARankNeedThemAlike) {
  const auto refusal = [](const auto& change) -> std::string {
    Scenario s = deepseek_moe(4);
    s.model.router_groups = s.model.router_best_groups = 0;
    change(s);
    try {
      std::ranges::find(all_strategies(), "expert_parallel", &Strategy::name)->check_runnable(s);
    } catch (const InputError& e) {
      return e.what();
    }
    return "";
  };
  const auto divide = [](Scenario& s) { s.plan.context.degree = 2, s.plan.data.degree = 4; };
  EXPECT_THAT(refusal([&](Scenario& s) { s.model.router_type = RouterType::expert_choice, divide(s); }),
              HasSubstr("/model/router_type: found \"expert_choice\""));
  EXPECT_THAT(refusal([&](Scenario& s) { s.model.router_type = RouterType::base, divide(s); }),
              HasSubstr("/model/router_type: found \"base\""));
  EXPECT_THAT(refusal([&](Scenario& s) { s.model.router_type = RouterType::hash, divide(s); }),
              testing::Not(HasSubstr("router_type")));
  EXPECT_THAT(refusal([&](Scenario& s) { s.model.router_type = RouterType::expert_choice; }),
              testing::Not(HasSubstr("router_type")));
  const auto global = [](Scenario& s, std::int64_t batch) {
    s.model.aux_loss = 0.1, s.model.load_balancing = LoadBalancing::global_aux_loss;
    s.model.dropout = 0;
    s.workload.global_batch_size = batch;
  };
  const Scenario s = deepseek_moe(4);
  const std::int64_t one = s.plan.data.degree * s.plan.batch.micro_batch_size;
  EXPECT_THAT(refusal([&](Scenario& other) { global(other, 2 * one); }),
              HasSubstr("/model/moe_router_load_balancing_type"));
  EXPECT_THAT(refusal([&](Scenario& other) { global(other, one); }),
              testing::Not(HasSubstr("moe_router_load_balancing_type")));
  EXPECT_THAT(refusal([&](Scenario& other) { global(other, one), other.model.dropout = 0.1; }),
              HasSubstr("one rank draws other numbers"));
}

// One stream orders the exchanges, the other what shared experts compute behind each of them.
TEST(ExpertParallel, SharedExpertsComputeWhileTokensTravel) {
  for (const std::int64_t tensor : {1, 2}) {
    Scenario s = deepseek_moe(4, tensor);
    s.plan.expert.tensor_degree = 1;
    s.plan.expert.overlap_shared = true;
    const Program program = lowered(s);
    const Piece& layer = piece_named(program, "expert_layer");
    for (const Block* block : {&layer.forward, &layer.backward}) {
      std::vector<std::size_t> travels;  // of rows, on the stream of their own
      for (std::size_t i = 0; i < block->ops.size(); ++i)
        if (block->ops[i].stream == Stream::expert_communication) travels.push_back(i);
      ASSERT_EQ(travels.size(), 2u);
      for (const std::size_t at : travels) {
        EXPECT_EQ(block->ops[at].kind, OpKind::redistribute);
        bool computes = false;  // before anything needs what travels
        for (std::size_t i = at + 1; i < block->ops.size(); ++i) {
          const Op& op = block->ops[i];
          if (std::ranges::find(op.reads, block->ops[at].writes[0]) != op.reads.end()) break;
          computes = computes || (is_matmul(op.kind) && op.group_dims == 0);
        }
        EXPECT_TRUE(computes) << "nothing to hide " << block->ops[at].name << " behind";
      }
    }
  }
}

// The forward's exchanges fall among the backward's kernels and the other way round.
TEST(ExpertParallel, PairsHideEachOthersExchanges) {
  Scenario s = deepseek_moe();
  const Program program = lowered(s);
  const Piece& layer = piece_named(program, "expert_layer");
  Piece pair;
  ASSERT_TRUE(pair_blocks(layer, pair));
  EXPECT_EQ(pair.forward.ops.size(), layer.forward.ops.size() + layer.backward.ops.size());
  const auto& ops = pair.forward.ops;
  std::vector<std::size_t> rows;
  for (std::size_t i = 0; i < ops.size(); ++i)
    if (ops[i].kind == OpKind::redistribute && pair.tensors[ops[i].reads[0]].find(Axis::hidden) >= 0) {
      EXPECT_EQ(ops[i].stream, Stream::expert_communication);
      rows.push_back(i);
    }
  ASSERT_EQ(rows.size(), 4u);
  for (std::size_t n = 0; n + 1 < rows.size(); ++n) {
    bool computes = false;  // behind it, before its first reader
    for (std::size_t i = rows[n] + 1; i < ops.size(); ++i) {
      if (std::ranges::find(ops[i].reads, ops[rows[n]].writes[0]) != ops[i].reads.end()) break;
      computes = computes || is_matmul(ops[i].kind);
    }
    EXPECT_TRUE(computes) << n;
  }
  std::set<TensorId> written;
  for (const Op& op : ops)
    if (op.phase == Phase::forward)
      for (const TensorId id : op.writes) written.insert(id);
  for (const Op& op : ops) {
    if (op.phase == Phase::forward) continue;
    for (const TensorId id : op.reads)
      EXPECT_TRUE(id == kNoTensor || !written.contains(id)) << op.name << " reads the other micro-batch's";
  }
  // The dense layer in front has nothing to hide, but half of its work to do beside either exchange of the other block.
  const Piece& dense = piece_named(program, "layer");
  EXPECT_FALSE(pair_blocks(dense, pair));
  for (const bool forward : {true, false}) {
    const auto of_layer = pair_cuts(layer, forward), of_dense = pair_cuts(dense, forward);
    const auto& own = forward ? layer.forward.ops : layer.backward.ops;
    EXPECT_TRUE(of_layer.exchanges);
    for (const std::size_t at : of_layer.at) EXPECT_EQ(own[at - 1].kind, OpKind::redistribute);
    EXPECT_LT(of_layer.at[0], of_layer.at[1]);
    const auto& all = forward ? dense.forward.ops : dense.backward.ops;
    EXPECT_FALSE(of_dense.exchanges);
    EXPECT_EQ(of_dense.at[forward ? 1 : 0], forward ? all.size() : 0u);
    const auto flops_until = [&](std::size_t end) {
      double sum = 0;
      for (std::size_t i = 0; i < end; ++i) sum += flops(all[i], dense.tensors);
      return sum;
    };
    const std::size_t half = of_dense.at[forward ? 0 : 1];
    EXPECT_GE(2 * flops_until(half), flops_until(all.size()));
    EXPECT_LT(2 * flops_until(half - 1), flops_until(all.size()));
  }
}

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
              const Program p = lowered(s);
              EXPECT_EQ(p.mesh.size(MeshAxis::ep), ep);
              EXPECT_EQ(p.mesh.size(MeshAxis::etp), etp);
              EXPECT_EQ(p.mesh.size(expert_parallel::expert_replicas(p.mesh)) * ep * etp * pp, 64);
            }
}

TEST(ExpertParallel, GradientsOfExpertsAreSummedOverThoseWhoHoldThem) {
  Scenario s = mixtral(2);
  s.plan.expert.degree = 8;
  const Program p = lowered(s);
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

TEST(ExpertParallel, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const char* field, const char* expected, const auto& change) {
    Scenario s = deepseek_moe();
    change(s);
    EXPECT_THAT(refusal_of(s), testing::AllOf(HasSubstr(std::string("/plan/") + field), HasSubstr(expected)));
  };
  EXPECT_EQ(refusal_of(deepseek_moe()), "nothing");
  refused("expert_parallel", "divisor of the model's 64 experts", [](Scenario& s) { s.plan.expert.degree = 3; });
  refused("expert_tensor_parallel", "inner width of 1408", [](Scenario& s) { s.plan.expert.tensor_degree = 3; });
  refused("expert_parallel", "divides the 8 ranks", [](Scenario& s) { s.plan.expert.degree = 16; });
  refused("sequence_parallel", "true with experts",
          [](Scenario& s) { s.plan.tensor.degree = 2, s.plan.data.degree = 4; });
  refused("overlap_moe_expert_parallel_comm", "false with expert_parallel 1",
          [](Scenario& s) { s.plan.expert.degree = 1, s.plan.expert.overlap_pairs = true; });
  refused("overlap_moe_expert_parallel_comm", "both overlap the same exchanges",
          [](Scenario& s) { s.plan.expert.overlap_shared = s.plan.expert.overlap_pairs = true; });
  refused("overlap_moe_expert_parallel_comm", "virtual_pipeline 1",
          [](Scenario& s) { s.plan.pipeline.degree = 2, s.plan.data.degree = 4, s.plan.expert.overlap_pairs = true; });
  refused("moe_shared_expert_overlap", "false with moe_token_dispatcher",
          [](Scenario& s) { s.plan.expert.dispatcher = Dispatcher::allgather, s.plan.expert.overlap_shared = true; });
  refused("overlap_moe_expert_parallel_comm", "false with moe_token_dispatcher",
          [](Scenario& s) { s.plan.expert.dispatcher = Dispatcher::allgather, s.plan.expert.overlap_pairs = true; });
  refused("moe_token_dispatcher", "another one with moe_schedule", [](Scenario& s) {
    s.plan.expert.dispatcher = Dispatcher::allgather, s.plan.fsmoe.schedule = fsmoe::MoeSchedule::fsmoe;
  });
  refused("moe_permute", "without moe_expert_capacity_factor",
          [](Scenario& s) { s.plan.expert.permute = expert_parallel::Permute::einsum; });
  refused("moe_permute", "with moe_fp8_dispatch", [](Scenario& s) {
    s.plan.expert.permute = expert_parallel::Permute::einsum;
    s.plan.expert.capacity_factor = 1, s.plan.expert.fp8_dispatch = true;
  });
  refused("moe_permute", "with moe_schedule", [](Scenario& s) {
    s.plan.expert.permute = expert_parallel::Permute::einsum;
    s.plan.expert.capacity_factor = 1, s.plan.fsmoe.schedule = fsmoe::MoeSchedule::fsmoe;
  });
  refused("moe_fp8_dispatch", "false with expert_parallel 1",
          [](Scenario& s) { s.plan.expert.degree = 1, s.plan.expert.fp8_dispatch = true; });
  refused("moe_fp8_dispatch", "which does not support fp8", [](Scenario& s) {
    s.plan.expert.fp8_dispatch = true;
    s.cluster.device.peak_flops_per_second[static_cast<std::size_t>(Dtype::fp8)] = 0;
  });
  refused("expert_parallel", "without experts", [](Scenario& s) {
    s.model = read_model("gpt2-1.5b", {});
    s.workload.sequence_length = 1024;
  });
}

}  // namespace
}  // namespace orrery
