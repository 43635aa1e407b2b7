// Does a layer in chunks move, keep and compute what Ulysses-Offload's paper says?
#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "sim/base/error.h"
#include "sim/memory/memory.h"
#include "sim/program/check.h"
#include "sim/program/liveness.h"
#include "sim/program/rewrite.h"
#include "tests/strategies/divided_sequences.h"

namespace orrery {
namespace {

using testing::HasSubstr;

// A sequence of 65536 tokens, of which a chunk has so many parts.
Scenario in_chunks(const char* model, std::int64_t ranks, std::int64_t chunks) {
  Scenario s = divided(model, ranks, "fpdt");
  s.plan.fpdt.chunk_tokens = 65536 / chunks;
  return s;
}

double all_flops(const Program& p, const char* piece, Phase phase) {
  double sum = 0;
  const Piece& of = piece_named(p, piece);
  for (const Block* block : {&of.forward, &of.backward})
    for (const Op& op : block->ops)
      if (op.phase == phase) sum += flops(op, of.tensors);
  return sum;
}

// Bytes that a block's copies move, by direction and what they copy; how many of them there are.
struct Copies {
  double bytes = 0;
  int count = 0;
};
// Of tensors of so many bytes a chunk.
Copies copies(const Program& p, const Block Piece::*block, Place to, std::int64_t bytes_of_a_chunk = 0) {
  const Piece& layer = piece_named(p, "layer");
  Copies c;
  for (const Op& op : (layer.*block).ops) {
    if (!is_copy(op.kind) || layer.tensors[op.writes[0]].place != to) continue;
    const std::int64_t of_chunk = layer.tensors[op.reads[0]].bytes();
    if (bytes_of_a_chunk > 0 && of_chunk != bytes_of_a_chunk) continue;
    EXPECT_EQ(op.stream, to == Place::host ? Stream::device_to_host : Stream::host_to_device);
    c.bytes += bytes(op, layer.tensors);
    ++c.count;
  }
  return c;
}

// The most bytes that storages which `wanted` picks have on the device at once in a block.
template <class Wanted>
double most_bytes(const Piece& piece, const Block& block, Wanted wanted) {
  std::map<TensorId, std::pair<std::size_t, std::size_t>> lives;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    const auto use = [&](TensorId id) {
      if (id == kNoTensor) return;
      const TensorId root = storage_of(piece, id);
      if (piece.tensors[root].place != Place::device || !wanted(root)) return;
      lives.try_emplace(root, i, i).first->second.second = i;
    };
    for (const TensorId id : block.ops[i].reads) use(id);
    for (const TensorId id : block.ops[i].writes) use(id);
  }
  double most = 0;
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    double here = 0;
    for (const auto& [id, life] : lives)
      if (life.first <= i && i <= life.second) here += static_cast<double>(piece.tensors[id].bytes());
    most = std::max(most, here);
  }
  return most;
}

bool has(const Piece& piece, TensorId id, Axis axis) {
  return piece.tensors[id].find(axis) >= 0 && piece.tensors[id].find(Axis::sequence) >= 0;
}

// Yao et al. 2024, section 4: chunks are exchanged as Ulysses exchanges all of it.
TEST(Fpdt, ChunksAreExchangedAsUlyssesExchangesTheWhole) {
  for (const char* model : {"llama-2-7b", "llama-3-8b"})
    for (const std::int64_t chunks : {1, 2, 8}) {
      const LayerTraffic whole = traffic(lowered_of(divided(model, 8, "ulysses")), OpKind::redistribute),
                         t = traffic(lowered_of(in_chunks(model, 8, chunks)), OpKind::redistribute);
      EXPECT_DOUBLE_EQ(t.elements, whole.elements) << model << chunks;
      EXPECT_EQ(t.calls, chunks * whole.calls) << model << chunks;
    }
}

// Causal pairs of chunks are half of the square, whatever the chunks; a step of the whole is two products.
TEST(Fpdt, StepsOfChunksAreTheCausalHalf) {
  const double whole = layer_attention_flops(lowered_of(divided("llama-3-8b", 8, "ulysses")));
  for (const std::int64_t chunks : {1, 4, 16}) {
    const Program p = lowered_of(in_chunks("llama-3-8b", 8, chunks));
    EXPECT_DOUBLE_EQ(layer_attention_flops(p), whole) << chunks;
    const Piece& layer = piece_named(p, "layer");
    EXPECT_EQ(count_ops(layer.forward, OpKind::attention), chunks * (chunks + 1) / 2);
    EXPECT_EQ(count_ops(layer.forward, OpKind::merge_attention), chunks * (chunks - 1) / 2);
    EXPECT_EQ(count_ops(layer.backward, OpKind::attention_backward), chunks * (chunks + 1) / 2);
    EXPECT_EQ(std::ranges::count_if(layer.forward.ops,
                                    [](const Op& op) { return op.kind == OpKind::attention && op.causal; }),
              chunks)
        << "each chunk to itself";
  }
}

// Chunk i of keys and values is fetched for every chunk behind it, and once more in the backward; the queries of a
// chunk for every chunk of keys up to their own. What a step leaves for the next one stays.
TEST(Fpdt, ChunksAreFetchedForEachStepThatUsesThem) {
  constexpr std::int64_t kRanks = 8, kTokens = 65536, kHeadDim = 128;
  for (const std::int64_t u : {2, 4, 8}) {
    const Program p = lowered_of(in_chunks("llama-3-8b", kRanks, u));
    const std::int64_t keys = kTokens / u * 2 * kHeadDim * 2, queries = kTokens / u * 4 * kHeadDim * 2,
                       sums = kTokens / u * 4 * 4, norms = kTokens / kRanks / u * 4096 * 2;
    const auto n = [&](const Block Piece::*block, Place to, std::int64_t of) { return copies(p, block, to, of).count; };
    const auto half = static_cast<int>(u * (u - 1) / 2), chunks = static_cast<int>(u);
    EXPECT_EQ(n(&Piece::forward, Place::device, keys), half);
    EXPECT_EQ(n(&Piece::forward, Place::device, queries), 0);
    EXPECT_EQ(n(&Piece::forward, Place::host, keys), chunks);
    EXPECT_EQ(n(&Piece::forward, Place::host, sums), chunks);
    // Queries and contexts, and the norm's chunks: of as many bytes here.
    ASSERT_EQ(norms, queries);
    EXPECT_EQ(n(&Piece::forward, Place::host, queries), 3 * chunks);
    EXPECT_EQ(n(&Piece::backward, Place::device, keys), chunks);
    EXPECT_EQ(n(&Piece::backward, Place::device, sums), half + chunks - 1);
    // Queries and contexts in each step, gradients of both from the second round on, the norm's once.
    EXPECT_EQ(n(&Piece::backward, Place::device, queries), 2 * (half + chunks - 1) + 2 * (half - 1) + chunks);
    // Gradients of queries until their last round, of contexts in the first round.
    EXPECT_EQ(n(&Piece::backward, Place::host, queries), half - 1 + (u > 2 ? chunks - 1 : 0));
    EXPECT_EQ(n(&Piece::backward, Place::host, keys), 0);
  }
}

TEST(Fpdt, TwoChunksOfKeysAndValuesAreOnTheDevice) {
  constexpr double kKeys = 65536.0 * 2 * 128 * 2;  // of a rank's head
  for (const std::int64_t chunks : {2, 4, 16})
    for (const bool offload : {true, false}) {
      Scenario s = in_chunks("llama-3-8b", 8, chunks);
      s.plan.fpdt.offload = offload;
      const Program p = lowered_of(s);
      const Piece& layer = piece_named(p, "layer");
      std::vector<std::uint8_t> keys(layer.tensors.size());
      for (const Block* block : {&layer.forward, &layer.backward})
        for (const Op& op : block->ops)
          if (is_attention(op.kind)) keys[op.reads[queries_operand(op.kind) + 1]] = 1;
      const auto most = [&](const Block& block) {
        return most_bytes(layer, block, [&](TensorId id) { return keys[id] != 0; });
      };
      const double two = kKeys * 2 / static_cast<double>(chunks);
      EXPECT_DOUBLE_EQ(most(layer.forward), offload ? two : kKeys) << chunks;
      if (offload) {
        EXPECT_DOUBLE_EQ(most(layer.backward), two) << chunks;
      } else {
        EXPECT_EQ(copies(p, &Piece::backward, Place::device).count, 0);
      }
    }
}

// deepspeed/sequence/fpdt_layer.py, FPDT_FFN and FPDT_LogitsLoss: chunks of the MLP are half as long, nothing of one is
// kept, the backward computes it again.
TEST(Fpdt, MlpsAndLogitsAreThereOneChunkAtATime) {
  const Program whole = lowered_of(divided("llama-3-8b", 8, "ulysses"));
  for (const std::int64_t chunks : {1, 4}) {
    const Program p = lowered_of(in_chunks("llama-3-8b", 8, chunks));
    for (const auto& [name, axis] : {std::pair{"layer", Axis::ffn}, {"head", Axis::vocab}}) {
      const Piece &one = piece_named(whole, name), &piece = piece_named(p, name);
      const Axis of = axis;
      const double before = most_bytes(one, one.forward, [&](TensorId id) { return has(one, id, of); });
      EXPECT_GT(before, 0);
      EXPECT_DOUBLE_EQ(most_bytes(piece, piece.forward, [&](TensorId id) { return has(piece, id, of); }),
                       before / static_cast<double>(2 * chunks))
          << name;
      Liveness lives;
      lives.find(piece);
      for (const TensorId id : lives.storages())
        EXPECT_FALSE(has(piece, id, of) && lives.of(id).kept != 0) << name << " " << piece.tensors[id].name;
    }
    // fc1 has two of the three products of a gated MLP; the logits are one.
    EXPECT_DOUBLE_EQ(all_flops(p, "layer", Phase::recompute), 2.0 * 65536 / 8 * 4096 * 2 * 14336);
    EXPECT_DOUBLE_EQ(all_flops(p, "head", Phase::recompute), 2.0 * 65536 / 8 * 4096 * 128256);
    for (const char* name : {"layer", "head"})
      EXPECT_DOUBLE_EQ(all_flops(p, name, Phase::weight_gradient), all_flops(whole, name, Phase::weight_gradient));
  }
}

// Chunk m of all ranks is the m-th piece of the sequence; ranks have its parts in order, also where several share a
// head.
TEST(Fpdt, ChunksOfAllRanksArePiecesOfTheSequence) {
  for (const std::int64_t ranks : {8, 32}) {
    constexpr std::int64_t kChunks = 4;
    const Program p = lowered_of(in_chunks("llama-3-8b", ranks, kChunks));
    EXPECT_TRUE(check(p).empty());
    const Piece& layer = piece_named(p, "layer");
    const Tensor& x = layer.tensors[layer.input];
    const std::int64_t part = 65536 / kChunks / ranks;
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::vector<std::int64_t> own = dealt_indices(x.deal(1), x.over[1], 65536, x.sizes[1], p.mesh, r);
      ASSERT_EQ(static_cast<std::int64_t>(own.size()), kChunks * part);
      for (std::int64_t m = 0; m < kChunks; ++m) {
        const auto begin = static_cast<std::size_t>(m * part);
        EXPECT_EQ(own[begin], m * 65536 / kChunks + r * part);
        EXPECT_EQ(own[begin + static_cast<std::size_t>(part) - 1], own[begin] + part - 1);
      }
    }
    std::int64_t m = 0;
    for (const Op& op : layer.forward.ops) {
      if (op.kind != OpKind::attention || !op.causal) continue;
      EXPECT_EQ(layer.tensors[op.reads[0]].sequence_begin, m++ * 65536 / kChunks);
    }
    EXPECT_EQ(m, kChunks);
  }
}

// Sums of gradients are fp32 in the published code; they are rounded before they travel.
TEST(Fpdt, GradientsAreSummedInFp32) {
  Scenario s = in_chunks("llama-3-8b", 8, 4);
  s.plan.context.fp32_gradients = true;
  const Program p = lowered_of(s);
  EXPECT_TRUE(check(p).empty());
  const Piece& layer = piece_named(p, "layer");
  int sums = 0;
  for (const Op& op : layer.backward.ops) {
    if (std::string_view(op.name) == "fpdt.gradient_sum") {
      ++sums;
      EXPECT_EQ(layer.tensors[op.writes[0]].dtype, Dtype::fp32);
    }
    EXPECT_TRUE(op.kind != OpKind::redistribute || layer.tensors[op.reads[0]].dtype == Dtype::bf16);
  }
  EXPECT_EQ(sums, 2 * (10 - 4)) << "of ten steps all but the first of each chunk, queries and keys";
}

// Table of the paper's section 5: with checkpoints on the host a device has what a layer needs; the more chunks the
// less.
TEST(Fpdt, MoreChunksNeedLessMemoryOfTheDevice) {
  const auto peak = [](std::int64_t chunks) {
    Scenario s = in_chunks("llama-3-8b", 8, chunks);
    s.plan.recompute.mode = activation_recompute::Mode::full;
    s.plan.activation_offload.offload = true;
    const Program p = lowered_of(s);
    return device_bytes(piece_memory(running_layer(p), 1).backward_transient);
  };
  double before = peak(1);
  for (const std::int64_t chunks : {2, 4, 8}) {
    const double now = peak(chunks);
    EXPECT_LT(now, before) << chunks;
    before = now;
  }
}

// Each Program is proven, whatever else the plan has.
TEST(Fpdt, ComposesWithOtherStrategies) {
  int plans = 0;
  for (const bool tensor : {false, true})
    for (const bool pipeline : {false, true})
      for (const std::int64_t zero : {0, 1, 3})
        for (const auto mode : {activation_recompute::Mode::none, activation_recompute::Mode::full})
          for (const auto stack :
               {framework::Stack::megatron_core, framework::Stack::deepspeed, framework::Stack::fsdp})
            for (const auto mix : {precision::Mix::bf16, precision::Mix::fp8}) {
              Scenario s = in_chunks(plans % 2 == 0 ? "llama-3-8b" : "deepseek-v2", 4, 4);
              s.cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 4}}, {});
              // The experts of the second model need sequence parallelism, which its latent attention refuses.
              s.plan.tensor.degree = tensor && plans % 2 == 0 ? 2 : 1;
              s.plan.tensor.sequence_parallel = s.plan.tensor.degree > 1 && plans % 3 > 0;
              s.plan.pipeline.degree = pipeline ? 2 : 1;
              if (pipeline && plans % 5 == 0) s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::zb_h1;
              s.plan.data.zero_stage = zero;
              s.plan.recompute.mode = mode;
              s.plan.activation_offload.offload = plans % 4 > 1;
              s.plan.fpdt.offload = plans % 7 > 1;
              s.plan.context.fp32_gradients = plans % 3 == 0;
              s.plan.framework.stack = stack;
              s.plan.precision.mix = mix;
              for (const Violation& v : check(lowered_of(s))) ADD_FAILURE() << plans << ": " << v.text;
              ++plans;
            }
  EXPECT_EQ(plans, 2 * 2 * 3 * 2 * 3 * 2);
}

// A tensor's number has sixteen bits.
TEST(Fpdt, TheMostChunksHaveNumbersForTheirTensors) {
  Scenario s = in_chunks("llama-3-8b", 32, 64);
  s.plan.recompute.mode = activation_recompute::Mode::full;
  s.plan.context.fp32_gradients = true;
  const Program p = lowered_of(s);
  for (const Piece& piece : p.pieces) EXPECT_LT(piece.tensors.size(), kNoTensor) << piece.name;
  EXPECT_TRUE(check(p).empty());
}

TEST(Fpdt, PlansThatCannotBeCutAreRefusedInOneSentence) {
  struct Bad {
    const char* pointer;
    const char* sentence;
    std::function<void(Scenario&)> change;
  };
  const std::vector<Bad> all{
      {"/plan/fpdt_chunk_tokens", "found 10000, expected a divisor of the sequence of 65536 tokens",
       [](Scenario& s) { s.plan.fpdt.chunk_tokens = 10000; }},
      {"/plan/fpdt_chunk_tokens", "expected a multiple of 16 tokens: 8 ranks divide a chunk",
       [](Scenario& s) {
         s.workload.sequence_length = 128;
         s.plan.fpdt.chunk_tokens = 8;
       }},
      {"/plan/fpdt_chunk_tokens", "found 512, expected at least 1024 tokens, 64 chunks of the sequence of 65536",
       [](Scenario& s) { s.plan.fpdt.chunk_tokens = 512; }},
      {"/plan/fpdt_chunk_tokens", "found 4096, expected 65536, the default, unless context_parallel_type is \"fpdt\"",
       [](Scenario& s) { s.plan.context.type = context_parallel::type_named("ulysses"); }},
      {"/plan/fpdt_offload", "found false, expected true, the default, unless context_parallel_type is \"fpdt\"",
       [](Scenario& s) {
         s.plan.context.degree = 1;
         s.plan.fpdt = {.offload = false};
       }},
      {"/plan/context_parallel", "found 8, expected a divisor of the 4 attention heads of a rank",
       [](Scenario& s) {
         s.plan.tensor.degree = 8;
         s.cluster = read_cluster({{"node", "dgx-a100"}, {"nodes", 8}}, {});
       }},
      {"/plan/context_parallel_type", "another type for a model with a sliding window",
       [](Scenario& s) { s.model.sliding_window = 4096; }},
      {"/plan/context_parallel_type", "another type for packed documents",
       [](Scenario& s) { s.workload.documents = "log-normal:6:1"; }},
      {"/plan/context_parallel_type", "another type for a model that is not a decoder",
       [](Scenario& s) { s.model.kind = ModelKind::encoder; }},
      {"/plan/layers/0/context_parallel_type", "found \"ulysses\", expected \"fpdt\", as in the other layers",
       [](Scenario& s) {
         LayerRange range{0, 4, 1, s.plan};
         range.plan.context.type = context_parallel::type_named("ulysses");
         s.plan.layers.push_back(range);
       }},
      {"/plan/context_parallel_balance", "found \"striped\", expected \"zigzag\" with",
       [](Scenario& s) { s.plan.context.balance = context_parallel::Balance::striped; }},
      {"/plan/tensor_parallel_overlap", "found true, expected false with context_parallel_type \"fpdt\"",
       [](Scenario& s) {
         s.plan.tensor = {.degree = 2, .sequence_parallel = true};
         s.plan.tensor.overlap = true;
       }},
      {"/plan/sequence_parallel", "found true, expected false with context_parallel_type \"fpdt\" for latent attention",
       [](Scenario& s) {
         s.model.attention = AttentionKind::latent;
         s.plan.tensor = {.degree = 2, .sequence_parallel = true};
       }},
      {"/plan/sequence_parallel", "found true, expected false with context_parallel_type \"fpdt\" for latent attention",
       [](Scenario& s) {
         s.model.attention = AttentionKind::latent;
         s.cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 4}}, {});
         s.plan.precision.mix = precision::Mix::fp8;
         s.plan.tensor = {.degree = 2, .sequence_parallel = true};
       }},
      {"/plan/recompute", "found \"selective_op\", expected \"none\" or \"full\"",
       [](Scenario& s) { s.plan.recompute.mode = activation_recompute::Mode::selective_op; }},
      {"/plan/recompute_every", "found 32, expected at most 16 with 16 chunks of the sequence",
       [](Scenario& s) {
         s.plan.recompute.mode = activation_recompute::Mode::full;
         s.plan.recompute.every = 32;
       }},
  };
  for (const Bad& bad : all) {
    Scenario s = in_chunks("llama-2-7b", 8, 16);
    bad.change(s);
    try {
      lowered_of(s);
      ADD_FAILURE() << bad.sentence;
    } catch (const InputError& error) {
      EXPECT_EQ(error.where().pointer, bad.pointer);
      EXPECT_THAT(error.what(), HasSubstr(bad.sentence));
    }
  }
}

}  // namespace
}  // namespace orrery
