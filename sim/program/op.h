// An op is one kernel, collective, message, copy or host action. It names the tensors it reads and writes; its FLOPs
// and bytes follow from its kind (sim/program/op_traits.h) and their shapes (sim/program/work.h), nowhere else. Here
// are also the choices that ops carry: algorithms of collectives, activation functions, routers of experts.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/program/mesh.h"
#include "sim/program/op_traits.h"
#include "sim/program/stream.h"
#include "sim/program/tensor.h"

namespace orrery {

// The algorithms and protocols of collectives: those of NCCL by its names (NCCL_ALGO, NCCL_PROTO), and others beside.
enum class CollectiveAlgorithm : std::uint8_t {
  automatic,
  ring,
  tree,                // double binary tree over the nodes, chains within them; all-reduce
  hierarchical,        // within the node, then rails across nodes, then within the node, one after the other
  nvls,                // reduction in NVSwitch; across nodes NCCL's NVLSTree; all-reduce
  collnet,             // reduction in the fabric's switches (SHARP), within the node as NVLS or direct; all-reduce
  halving_doubling,    // recursive halving, then doubling (sim/cost/exchange_patterns.h); only when asked for
  bidirectional_ring,  // half of the bytes each way round the ring; only when asked for
  direct,              // each pair of ranks directly; all-to-all, sends
  // Tokens to experts: each token goes once to a node, and there once to each rank that needs it (DeepEP). No plan can
  // force it.
  by_token,
  // All-reduce of what all ranks of a node have alike. The first of the group's ranks on each node form a ring. Then
  // each of them passes the result along a chain in its node. No plan can force it.
  first_ranks,
};
inline constexpr std::array<std::string_view, 11> kCollectiveAlgorithmNames{
    "automatic",          "ring",   "tree",     "hierarchical", "nvls", "collnet", "halving_doubling",
    "bidirectional_ring", "direct", "by_token", "first_ranks"};
// The algorithms that a plan can force.
inline constexpr std::span<const std::string_view> kForcedAlgorithmNames{kCollectiveAlgorithmNames.data(), 9};

enum class CollectiveProtocol : std::uint8_t { automatic, simple, ll128, ll };
inline constexpr std::array<std::string_view, 4> kCollectiveProtocolNames{"automatic", "simple", "ll128", "ll"};

inline const char* name_of(CollectiveAlgorithm a) {
  return kCollectiveAlgorithmNames[static_cast<std::size_t>(a)].data();
}
inline const char* name_of(CollectiveProtocol p) {
  return kCollectiveProtocolNames[static_cast<std::size_t>(p)].data();
}
const char* nccl_name_of(CollectiveProtocol p);  // NCCL's spelling

// Why the op runs: separates model work from repeated work, and lets zero-bubble schedules move weight gradients.
enum class Phase : std::uint8_t { forward, recompute, input_gradient, weight_gradient, update };
inline constexpr int kPhases = 5;
const char* name_of(Phase phase);

// The micro-batches of a step in which the op runs (per chunk).
enum class When : std::uint8_t { every_micro_batch, first_micro_batch, last_micro_batch };

enum class ActivationFunction : std::uint8_t { gelu, relu, swiglu, geglu, quick_gelu, relu2 };
inline constexpr int kActivationFunctions = 6;
const char* name_of(ActivationFunction function);

// How a reducing collective combines the ranks' values. sum adds them. merge combines cross-entropy statistics: each
// rank's sum of exponentials is relative to that rank's own maximum. mean is the sum, divided by the number of ranks:
// workers take it of their copies of the model (MeshAxis::worker), over one rank of each or over all ranks that hold
// the same. An all-to-all does not divide: the quantiser that takes its contributions does, by Op::scale. copies is for
// gradients of experts that lie on several ranks of the group: each expert's are summed over its copies
// (Program::expert_of_slot), and every copy gets the sum.
enum class Reduction : std::uint8_t { sum, merge, mean, copies };

// How a mixture of experts chooses a token's experts from its logits, and how it weighs their outputs.
//   softmax           the k largest of softmax(logits), weighted by it (Switch, GShard, DeepSeek-V2)
//   softmax_of_top    the k largest logits, weighted by their softmax (Mixtral; equals `softmax`, renormalised)
//   sigmoid           the k largest of sigmoid(logits) (Llama 4)
//   sigmoid_of_top    as `sigmoid`, weights renormalised to a sum of one (DeepSeek-V3)
enum class RouterScore : std::uint8_t { softmax, softmax_of_top, sigmoid, sigmoid_of_top };
inline constexpr int kRouterScores = 4;
const char* name_of(RouterScore score);

// Whether tokens choose experts or experts choose tokens. Routers other than top_k and hash choose among the tokens of
// one rank's micro-batch.
//   top_k          each token takes its k best experts
//   expert_choice  each expert takes the k n / experts of n tokens that have the largest scores for it; equal scores go
//                  to the first token (Zhou et al. 2022, arXiv 2202.09368, section 3.2). The number of experts of a
//                  token varies; its mean is k
//   base           one expert per token and equally many tokens per expert, by an auction for the largest sum of logits
//                  (Lewis et al. 2021, arXiv 2103.16716, section 3.2; realrun/routers.h)
//   hash           one expert per token, by its id: no logits, no weights (Roller et al. 2021, arXiv 2106.04426)
enum class RouterType : std::uint8_t { top_k, expert_choice, base, hash };
inline constexpr int kRouterTypes = 4;
const char* name_of(RouterType type);

struct Router {
  RouterType type = RouterType::top_k;
  RouterScore score = RouterScore::softmax;
  // Node-limited routing (DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Experts form `groups` of equal size. A token
  // chooses among the experts of the `best_groups` groups whose two best scores have the largest sum. 0: no groups.
  std::uint16_t groups = 0, best_groups = 0;
  float scale = 1;                         // factor on the weights (DeepSeek-V3: 2.5)
  std::uint16_t experts = 0, choices = 0;  // experts of a layer; experts of a token (the mean)
  // Above 0: the dense-to-sparse gate (Nie et al. 2021, arXiv 2112.14397) replaces `score`. Gumbel noise, drawn as
  // Op::draw says, is added to the logits, and p = softmax((logits + noise) / gumbel_temperature). The k most likely
  // experts are chosen, weighted by p. A choice with p <= `threshold` is inactive: it has no expert (-1) and weight 0.
  // With `padded` it keeps its expert at weight 0, which computes the token for nothing, as in the authors' code.
  float gumbel_temperature = 0, threshold = 0;
  bool padded = false;

  // Router losses (OpKind::router_loss): their coefficients, and whether expert loads are counted per sequence instead
  // of per micro-batch.
  float balance = 0, z = 0;
  bool by_sequence = false;
  bool operator==(const Router&) const = default;
};

// Upper limit of Op::buffers.
inline constexpr std::uint16_t kMostBuffers = 4;

// A value of Op::every: the op runs once for all instances of a stretch.
inline constexpr std::uint16_t kAllInstances = 0xffff;

// The instance whose tensors an op of a block works on, within a stretch of equal instances (Op::every).
enum class Covers : std::uint8_t {
  own,     // the instance in whose block the op stands
  before,  // the instance before it in the line; the first one has none
  last,    // its own instance, and only in the last instance of the stretch
};

// Returns the rank, of `ranks`, whose turn an instance is (Op::turns). `instance`: its number among the stage's
// instances that have ops with turns, chunk after chunk. Each round begins a rank later, so that kinds of layers that
// alternate fall to all ranks.
constexpr std::int64_t rank_of_turn(std::int64_t instance, std::int64_t ranks) {
  return (instance + instance / ranks) % ranks;
}

struct DocumentLoad;
using StageGroup = std::vector<std::uint16_t>;  // pipeline stages, ascending

struct Op {
  OpKind kind = OpKind::linear;
  Phase phase = Phase::forward;
  Stream stream = Stream::compute;
  When when = When::every_micro_batch;
  // For a collective that is issued on the compute stream and so blocks its kernels: reports show its time as a wait
  // for this stream.
  Stream account = Stream::compute;
  // True: starts as soon as its data and its stream allow, even before compute issued earlier has finished
  // (FSDP's prefetch stream). False: waits for the compute stream as it stands when the op is issued, which is what
  // torch.distributed does.
  bool free_running = false;
  // True for a kernel: prefetched ops of later instances (`prefetch`) start no earlier than this kernel. If no kernel
  // of the block has it, they may start with the block's first kernel.
  bool issues_ahead = false;
  // The op may start when the instance that is `prefetch` places earlier among consecutive equal instances starts.
  std::uint16_t prefetch = 0;
  // For a copy on a copy stream: the number of buffers that the instances of a line use in turn for the copied tensor.
  // Kernels of the instance `buffers` places later wait for the copy. 0: no kernel waits. At most kMostBuffers.
  std::uint16_t buffers = 0;
  const char* name = "";  // static storage: "fc1", "attention", "gradients.reduce_scatter"

  std::array<TensorId, 6> reads{kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  std::array<TensorId, 4> writes{kNoTensor, kNoTensor, kNoTensor, kNoTensor};

  // Matrix products.
  std::uint8_t inner_dims = 1;  // see OpKind::linear
  std::uint8_t group_dims = 0;
  bool transposed_weight = false;  // w is [n.. | k..]
  bool transpose_a = false;        // batched_matmul; square_sums
  bool transpose_b = false;
  // Adds to the writes that OpTraits::accumulates names, and therefore reads them, too. Storage to which any op of a
  // piece adds begins at zero.
  bool accumulate = false;
  // True: a product that the stack's fused modules leave alone. Its operands are not quantised, and it is not split
  // into chunks that overlap its collective.
  bool plain = false;
  Dtype compute_dtype = Dtype::bf16;  // input type of the tensor cores: fp8 inputs may differ from the tensors' storage
  // For a cast: how many kernels read the operand. 2: the first one looks for the largest magnitude, which the scale
  // follows from. 0: the kernel of the cast before it, of the same operand, writes this result too.
  std::uint8_t passes = 1;

  ActivationFunction function = ActivationFunction::gelu;
  // The number of this random draw in its piece (OpTraits::random). It is the same in each layer, whatever else is in a
  // piece. A recomputed op repeats its draw.
  std::uint8_t draw = 0;

  Router router;

  // Attention.
  bool causal = false;
  // Marks the products, masks and softmax between the QKV and the output projection where they are separate ops:
  // selective recomputation repeats these (Korthikanti et al. 2022, section 5).
  bool core_attention = false;
  // If set, attention stays within documents: the entry in Program::document_loads. Unset: the sequence is one
  // document.
  TableIndex<DocumentLoad> documents;
  // For adam. True: weight decay is a term beside the gradient's step (AdamW). False: it is part of the gradient (L2).
  bool decoupled_weight_decay = true;
  std::int32_t inner_parts = 1;  // in a ring of rings: the number of ranks of an inner ring; see keys_before
  std::int64_t window = 0;       // largest number of positions a query attends to; 0: no limit
  // Attention over a sequence that is divided over `parts` ranks: the keys come from the rank `keys_before` places
  // before. 0: the keys are the rank's own, or those of all ranks where the layout no longer divides them. The tensors'
  // layouts say which positions a part has. In a ring of rings, keys have moved keys_before / inner_parts places from
  // ring to ring, and keys_before % inner_parts places within a ring.
  std::int32_t parts = 1, keys_before = 0;
  // Returns the part whose keys the queries of part `part` meet.
  std::int64_t part_of_keys(std::int64_t part) const {
    const std::int64_t outer = parts / inner_parts;
    return (part / inner_parts - keys_before / inner_parts + outer) % outer * inner_parts +
           (part % inner_parts - keys_before % inner_parts + inner_parts) % inner_parts;
  }
  std::int64_t rotary_begin = 0;  // rotary: the elements of each head from this one on are rotated

  // A multiply divides its first operand by its second; it then has no derivative and sums over no dimension. An sgd of
  // its own rate (below) divides the gradient by 1 + learning_rate x r instead of clipping it. The operand that holds a
  // norm elsewhere holds the square of r; a value that is no number counts as 0.
  bool divides = false;

  // What multiplies the operand of scale, the numbers that quantisers read, the scores of softmax and of its
  // derivative, the gradients that optimizers read, and the results of batched_matmul, cross_entropy_backward and
  // router_loss_backward.
  double scale = 1;
  float probability = 0;  // dropout and its derivative: that an element becomes zero
  float epsilon = 0;      // norm: added to the variance; scale: the least factor that a size gives
  // An op that reads a gradient norm: the largest norm that it leaves. An sgd of its own rate (below): the largest
  // magnitude of an element of the momentum; 0: no limit.
  float clip_limit = 0;
  // An sgd with rates of its own, as outer optimizers of local updates have: learning rate and momentum, with
  // Nesterov's step or without, and no weight decay. learning_rate 0: it has the rates of the run.
  double learning_rate = 0;
  float momentum = 0;
  bool nesterov = false;
  // An sgd whose momentum is Adam's first moment with the second one's rate, and whose step is the sign of that moment
  // with its own rate; weight decay is not part of it (Lion: Chen et al. 2023, arXiv 2302.06675, algorithm 2).
  bool sign = false;

  // Communication.
  // For a redistribution in which ranks send unequal numbers of rows, and for a sum over copies: the entry in
  // Program::loads that counts them. Unset: the tensors' load, if they have one.
  TableIndex<Load> load;
  // Unless automatic, overrides what the Program forces.
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
  MeshGroup group;
  // The share of bytes that the op moves. For a redistribution: of the tensor's bytes (Redistribution::share). For a
  // part of a reduction (`is_part`, below): of the whole op's bytes. For ops that ranks take turns at (`turns`): of the
  // piece's instances, those that the busiest rank has.
  double share = 1;
  // The ranks of this group take turns: the op runs on the rank of the group that rank_of_turn() gives, and nowhere
  // else. What it writes into a part of a buffer is zero on the others, so that the sum over the ranks has it all. Only
  // in the update. Empty: the op runs on all ranks.
  MeshGroup turns;
  Reduction reduction = Reduction::sum;
  // For an all-reduce of the update, in place of `group`: the entry in Program::stage_groups. The group is the ranks of
  // these stages that have this rank's other coordinates.
  TableIndex<StageGroup> stages;
  std::int32_t distance = 1;  // for ring_shift: data goes to the rank this many places after
  // Buckets. `every`: the op runs once per `every` instances, in the last of them, and covers the tensors of all of
  // them. `count`: the op runs `count` times per instance, each time on 1/count of the bytes. Instances are counted
  // over a stretch: consecutive runs of a chunk whose layers are equal, whatever their plan (share_buckets()). Variants
  // of a piece must have the op at the same place.
  std::uint16_t every = 1;
  std::uint16_t count = 1;
  // A reduction may be done in parts while later instances run. The whole op then stands in the block that has its
  // data. Its parts, ops with `is_part` set and the same operands, stand in blocks of later instances (Covers::before)
  // or in the update. Their shares add up to 1. The whole op takes time only in the last instance of the stretch
  // (Covers::last), which no later instance follows; its `share` is what the parts in blocks of later instances would
  // do there. Parts say only when work is done: executors and check() run the whole op in each instance and skip the
  // parts, except that check() proves that the shares add up.
  Covers covers = Covers::own;
  bool is_part = false;

  // Whether the op draws random numbers (Op::draw): by its kind, or as a router with noise.
  bool is_random() const {
    return traits_of(kind).random ||
           (router.gumbel_temperature > 0 && (kind == OpKind::route || kind == OpKind::route_backward));
  }
  // Whether the group of a collective is one rank: its result is then its operand.
  bool is_alone() const { return group.empty() && !stages.has_value(); }
};

// The collective that performs a communication op on the wire. What ranks send for a sum over copies differs from pair
// to pair, as in an all-to-all.
inline OpKind collective_of(const Op& op) {
  return op.kind == OpKind::redistribute || op.reduction == Reduction::copies ? OpKind::all_to_all : op.kind;
}

}  // namespace orrery
