// An op: one kernel, collective, copy or host action. It names the tensors it reads and writes; its FLOPs and
// bytes follow from its kind (sim/program/op_traits.h) and their shapes (sim/program/work.h), nowhere else.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/collective_algorithm.h"
#include "sim/program/mesh.h"
#include "sim/program/op_traits.h"
#include "sim/program/stream.h"
#include "sim/program/tensor.h"

namespace orrery {

// Why the op runs: separates model work from repeated work, and lets zero-bubble schedules move weight gradients.
enum class Phase : std::uint8_t { forward, recompute, input_gradient, weight_gradient, update };
const char* name_of(Phase phase);

// In which micro-batches of a step the op runs (per chunk).
enum class When : std::uint8_t { every_micro_batch, first_micro_batch, last_micro_batch };

enum class ActivationFunction : std::uint8_t { gelu, relu, swiglu, geglu, quick_gelu, relu2 };
inline constexpr int kActivationFunctions = 6;
const char* name_of(ActivationFunction function);

// What a reducing collective does with the ranks' values. merge: of cross-entropy statistics, whose sums of
// exponentials are relative to each rank's own maximum.
enum class Reduction : std::uint8_t { sum, merge };

// How a mixture of experts chooses the experts of a token from its logits, and weighs what they give.
//   softmax           the k largest of softmax(logits), weighted by it (Switch, GShard, DeepSeek-V2)
//   softmax_of_top    the k largest logits, weighted by their softmax (Mixtral; the same as the first, renormalised)
//   sigmoid           the k largest of sigmoid(logits) (Llama 4)
//   sigmoid_of_top    the same, weights renormalised to a sum of one (DeepSeek-V3)
enum class RouterScore : std::uint8_t { softmax, softmax_of_top, sigmoid, sigmoid_of_top };
inline constexpr int kRouterScores = 4;
const char* name_of(RouterScore score);

// Who chooses whom. Whoever does not go by a token's logits alone chooses among the tokens of one rank's micro-batch.
//   top_k          each token its k best experts
//   expert_choice  each expert, of n tokens, the k n / experts with the largest scores for it, of equals the first
//                  (Zhou et al. 2022, arXiv 2202.09368, section 3.2): a token has as many experts as want it, k in the
//                  mean
//   base           one expert a token and as many tokens an expert, by an auction for the largest sum of logits
//                  (Lewis et al. 2021, arXiv 2103.16716, section 3.2; realrun/routers.h)
//   hash           one expert a token, by its id: no logits, no weights (Roller et al. 2021, arXiv 2106.04426)
enum class RouterType : std::uint8_t { top_k, expert_choice, base, hash };
inline constexpr int kRouterTypes = 4;
const char* name_of(RouterType type);

struct Router {
  RouterType type = RouterType::top_k;
  RouterScore score = RouterScore::softmax;
  // Experts in groups of equal size, of which a token may choose from `best_groups` (node-limited routing, DeepSeek-V3,
  // arXiv 2412.19437, section 2.1.2): those with the largest sum of their two best scores. 0: no groups.
  std::uint16_t groups = 0, best_groups = 0;
  float scale = 1;                         // on the weights (DeepSeek-V3: 2.5)
  std::uint16_t experts = 0, choices = 0;  // of a layer; of a token, in the mean
  // Above 0: the dense-to-sparse gate (Nie et al. 2021, arXiv 2112.14397) in place of `score`. Logits get Gumbel noise,
  // drawn as Op::draw says, and p = softmax((logits + noise) / gumbel_temperature); the k most likely are chosen,
  // weighted by p. Those of p no more than `threshold` are not active: no expert (-1), weight 0; `padded`: the expert
  // itself, at weight 0, which computes the token for nothing, as in the authors' code.
  float gumbel_temperature = 0, threshold = 0;
  bool padded = false;

  // Of its losses (OpKind::router_loss): coefficients, and whether loads are of each sequence, not of a micro-batch.
  float balance = 0, z = 0;
  bool by_sequence = false;
  bool operator==(const Router&) const = default;
};

// Of Op::buffers.
inline constexpr std::uint16_t kMostBuffers = 4;

// For Op::every: once for all instances of a stretch of runs.
inline constexpr std::uint16_t kAllInstances = 0xffff;

// In a stretch of equal instances (Op::every), the one whose tensors an op of a block takes.
enum class Covers : std::uint8_t {
  own,     // that in whose block it is
  before,  // the one before it in the line; the first one has none
  last,    // its own, and only in the last one
};

struct DocumentLoad;
using StageGroup = std::vector<std::uint16_t>;  // pipeline stages, ascending

struct Op {
  OpKind kind = OpKind::linear;
  Phase phase = Phase::forward;
  Stream stream = Stream::compute;
  When when = When::every_micro_batch;
  // Of a collective on the compute stream, for which its kernels wait: the stream under whose account that is reported.
  Stream account = Stream::compute;
  // True: starts as soon as its data and its stream allow, even before compute issued earlier has finished
  // (FSDP's prefetch stream). False: waits for the compute stream as it stands when the op is issued, which is what
  // torch.distributed does.
  bool free_running = false;
  // Of a kernel: what later instances issue ahead (prefetch) starts with it at the earliest, not with the first of the
  // block.
  bool issues_ahead = false;
  // The op may start when the instance `prefetch` places earlier in a run of equal pieces starts.
  std::uint16_t prefetch = 0;
  // Of a copy on a stream of its own: what it reads lies in one of so many buffers that the instances of a line take in
  // turn, so that kernels of the instance `buffers` places later wait for it. 0: nobody does. At most kMostBuffers.
  std::uint16_t buffers = 0;
  const char* name = "";  // static storage: "fc1", "attention", "gradients.reduce_scatter"

  std::array<TensorId, 6> reads{kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  std::array<TensorId, 4> writes{kNoTensor, kNoTensor, kNoTensor, kNoTensor};

  // Matrix products.
  std::uint8_t inner_dims = 1;
  std::uint8_t group_dims = 0;
  bool transposed_weight = false;  // w is [n.. | k..]
  bool transpose_a = false;        // batched_matmul
  bool transpose_b = false;
  // Adds into the writes that OpTraits::accumulates names, and reads them, too: storage that any op of a piece adds to
  // begins at zero.
  bool accumulate = false;
  Dtype compute_dtype = Dtype::bf16;  // of the tensor cores: fp8 inputs may differ from the tensors' storage

  ActivationFunction function = ActivationFunction::gelu;
  // Of a piece's random draws (OpTraits::random) which one: the same in each layer, whatever else is in a piece. A
  // repeated op draws again what it drew.
  std::uint8_t draw = 0;

  Router router;

  // Attention.
  bool causal = false;
  // Of the products, masks and softmax between the QKV and the output projection, where they are ops of their own: what
  // selective recomputation repeats (Korthikanti et al. 2022, section 5).
  bool core_attention = false;
  // In Program::document_loads: a query sees keys of its own document only. None: the sequence is one.
  TableIndex<DocumentLoad> documents;
  // Of adam: weights decay beside the gradient's step (AdamW); false: the decay is part of the gradient (L2).
  bool decoupled_weight_decay = true;
  std::int32_t inner_parts = 1;  // of a ring of rings: the ranks of one within it; see keys_before
  std::int64_t window = 0;       // positions attended to at the most; 0: all
  // Over a sequence that is dealt to ranks: in so many parts, the keys being those of the rank so many places before
  // (0: a rank's own, or of all ranks where their layout divides them no more). Which positions a part has is for the
  // tensors' layouts to say. In a ring of rings keys have gone keys_before / inner_parts places from ring to ring, and
  // keys_before % inner_parts places within one.
  std::int32_t parts = 1, keys_before = 0;
  // The part whose keys the queries of `part` meet.
  std::int64_t part_of_keys(std::int64_t part) const {
    const std::int64_t outer = parts / inner_parts;
    return (part / inner_parts - keys_before / inner_parts + outer) % outer * inner_parts +
           (part % inner_parts - keys_before % inner_parts + inner_parts) % inner_parts;
  }
  std::int64_t rotary_begin = 0;

  // On the operand of scale, on the scores of softmax and its derivative, on the gradients of optimizers, on the result
  // of cross_entropy_backward and router_loss_backward; of what redistribute moves (Redistribution::share), of what
  // pieces do.
  double factor = 1;
  float scalar = 0;  // dropout probability, norm epsilon; of what reads a gradient norm: what it is clipped to

  // Communication.
  // Of a redistribution in which ranks give unequal numbers of rows: the load in Program::loads that says how many.
  // None: that of the tensors, if they have one.
  TableIndex<Load> load;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;  // of this op, whatever its Program forces
  MeshGroup group;
  Reduction reduction = Reduction::sum;
  // Of an all-reduce in the update, in place of `group`, in Program::stage_groups: the ranks that have these stages and
  // all other coordinates of this one.
  TableIndex<StageGroup> stages;
  std::int32_t places = 1;  // ring_shift: to the rank so many places behind
  // Buckets: the op runs once per `every` instances (the last of them) and then covers the tensors of all of them; or
  // `count` times per instance, each on 1/count of the bytes. Instances are counted over a stretch of a chunk's runs:
  // equal layers, whatever their plan (share_buckets()). Variants have the op in the same place.
  std::uint16_t every = 1;
  std::uint16_t count = 1;
  // A reduction that is done piece by piece while later instances run. Itself it stands in the block of its data and
  // covers the last instance, whose pieces nobody else does; pieces are ops with its operands that do `factor` of it
  // each, it as much as those of other blocks. They say when, not what: whoever computes, and check(), takes the whole
  // op in each instance in place of them.
  Covers covers = Covers::own;
  bool piece = false;

  // Whether it draws numbers, as Op::draw says: by its kind, or as a router with noise.
  bool is_random() const {
    return traits_of(kind).random ||
           (router.gumbel_temperature > 0 && (kind == OpKind::route || kind == OpKind::route_backward));
  }
  // Whether a collective is of one rank: its result is its operand.
  bool is_alone() const { return group.empty() && !stages.has_value(); }
};

}  // namespace orrery
