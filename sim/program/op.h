// An op: one kernel, collective, copy or host action. It names the tensors it reads and writes; its FLOPs and
// bytes follow from its kind and their shapes (sim/program/work.h), nowhere else.
#pragma once

#include <array>
#include <cstdint>

#include "sim/program/mesh.h"
#include "sim/program/tensor.h"

namespace orrery {

enum class OpKind : std::uint8_t {
  // Matrix products. x: [tokens.. | k..], w: [k.. | n..] (or [n.. | k..] when transposed_weight), y: [tokens.. | n..];
  // `inner_dims` says how many dimensions of w are k.
  linear,                  // reads x, w [, bias];   writes y
  linear_input_gradient,   // reads dy, w;           writes dx
  linear_weight_gradient,  // reads x, dy;           writes dw (accumulated)
  batched_matmul,  // reads a, b;            writes c; the last two dims multiply (transpose_a/b), the others batch

  // Attention. qkv: [batch, sequence, groups, group_heads, head_dim] fused, or q and kv apart (cross attention, CP). Of
  // kv apart a group's elements are its key, as wide as a query, and then its value, as wide as the context: two parts
  // of head_dim, or, where the widths differ (latent attention), one part of their sum. A bias [queries, keys, groups,
  // group_heads] is added to the scaled scores of every sequence.
  attention,           // reads qkv | q, kv [, bias at 2];    writes context, log_sum_exp (FlashAttention)
  attention_backward,  // reads dcontext, context, lse, qkv|q,kv [, bias at 5]; writes dqkv | dq, dkv [, dbias at 2]
  softmax,             // reads scores; writes probabilities (scaled, masked: Megatron's fused kernel)
  softmax_backward,    // reads dprobabilities, probabilities; writes dscores

  // Memory-bound kernels: time follows from the bytes of the tensors read and written.
  norm,                 // reads x, weight [, bias]; writes y, statistics
  norm_backward,        // reads dy, x, weight, statistics; writes dx, dweight [, dbias] (the latter accumulated)
  rotary,               // reads qkv; writes qkv, of each head turned from rotary_begin on
                        // reads kv, key [batch, sequence, dim]; writes kv with the turned key, which all heads share,
                        // put in at rotary_begin of each (latent attention: the rotary part behind the content's)
  rotary_backward,      // reads dqkv; writes dqkv | dkv, dkey (summed over the heads)
  activation,           // reads x [, bias]; writes y (gelu, relu; gated kinds read [.., 2, ffn], or the
                        // gate alone where the product is an op of its own)
  activation_backward,  // reads dy, x [, bias]; writes dx
  dropout,              // reads x; writes y, mask
  dropout_backward,     // reads dy, mask; writes dx
  dropout_add,          // reads x, residual [, bias]; writes y, mask: y = residual + dropout(x + bias)
  add,                  // reads a [, b] [, bias]; writes y; a bias may be a row (positions) added to every sequence
  multiply,             // reads a, b; writes y
  bias_gradient,        // reads dy; writes dbias (accumulated)
  embedding,            // reads ids, table [rows, width..]; writes y
  embedding_backward,   // reads ids, dy; writes dtable (accumulated)
  cross_entropy,        // reads logits, targets; writes statistics [3, batch, sequence]: the maximum, the sum of
                        // exponentials and the target's logit, from which the loss follows
  cross_entropy_backward,  // reads logits, targets, statistics; writes dlogits
  pool,                    // reads x; writes y (a sequence's first or mean vector, patch merging)
                           // reads x, vector; writes y: the vector before each sequence of x (ViT's class token)
  pool_backward,           // reads dy; writes dx [, dvector]
  cast,                    // reads x; writes y in another dtype (quantise, dequantise, copy)
  zero_fill,               // writes y
  merge_attention,         // reads contexts and lse of two ring steps; writes merged (online softmax)

  // Optimizer, on the flat buffers of a piece.
  gradient_norm,  // reads gradients; writes a scalar
  adam,           // reads gradient and states; writes parameter [, master], exp_avg, exp_avg_sq
  sgd,            // reads gradient and states; writes parameter [, master] [, momentum]

  // Communication over the group `axes`. Bytes follow from the tensors: see sim/program/work.h.
  all_reduce,      // reads x; writes x'
  all_gather,      // reads shard; writes whole
  reduce_scatter,  // reads whole; writes shard
  all_to_all,      // reads x; writes x'
  broadcast,       // from the group's first rank
  reduce,          // to the group's first rank
  ring_shift,      // send to the next, receive from the previous rank of the group; reads x, writes x'
  send,            // to the neighbouring pipeline stage
  receive,

  copy,  // between memories: from the place of the tensor read to that of the tensor written
};
inline constexpr int kOpKinds = static_cast<int>(OpKind::copy) + 1;
const char* name_of(OpKind kind);

constexpr bool is_matmul(OpKind k) { return k <= OpKind::batched_matmul; }
constexpr bool is_attention(OpKind k) { return k == OpKind::attention || k == OpKind::attention_backward; }
constexpr bool is_optimizer(OpKind k) { return k == OpKind::adam || k == OpKind::sgd; }
constexpr bool is_communication(OpKind k) { return k >= OpKind::all_reduce && k <= OpKind::receive; }

// Streams of a rank run in order; across streams only data and events order. One communication stream per mesh
// axis, as frameworks have one per communicator.
enum class Stream : std::uint8_t {
  compute,
  tensor_communication,     // groups over tp
  context_communication,    // groups over cp
  expert_communication,     // groups over ep
  data_communication,       // gradient reduction, over dp (and cp)
  parameter_communication,  // parameter gathering, over dp
  pipeline_communication,   // between stages
  device_to_host,
  host_to_device,
  host,  // CPU kernels (offloaded optimizer)
  storage,
};
inline constexpr int kStreams = 11;
const char* name_of(Stream stream);

// Why the op runs: separates model work from repeated work, and lets zero-bubble schedules move weight gradients.
enum class Phase : std::uint8_t { forward, recompute, input_gradient, weight_gradient, update };
const char* name_of(Phase phase);

// In which micro-batches of a step the op runs (per chunk).
enum class When : std::uint8_t { every_micro_batch, first_micro_batch, last_micro_batch };

enum class ActivationFunction : std::uint8_t { gelu, relu, swiglu, geglu, quick_gelu, relu2 };

// For Op::every: once for all instances of a run.
inline constexpr std::uint16_t kAllInstances = 0xffff;

struct Op {
  OpKind kind = OpKind::linear;
  Phase phase = Phase::forward;
  Stream stream = Stream::compute;
  When when = When::every_micro_batch;
  const char* name = "";  // static storage: "fc1", "attention", "gradients.reduce_scatter"

  std::array<TensorId, 6> reads{kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor, kNoTensor};
  std::array<TensorId, 4> writes{kNoTensor, kNoTensor, kNoTensor, kNoTensor};

  // Matrix products.
  std::uint8_t inner_dims = 1;
  bool transposed_weight = false;  // w is [n.. | k..]
  bool transpose_a = false;        // batched_matmul
  bool transpose_b = false;
  bool accumulate = false;            // adds into what it writes (reads it too); norm_backward: not into dx
  Dtype compute_dtype = Dtype::bf16;  // of the tensor cores: fp8 inputs may differ from the tensors' storage

  // Attention.
  bool causal = false;
  std::int64_t window = 0;  // positions attended to at the most; 0: all
  std::int64_t rotary_begin = 0;

  ActivationFunction function = ActivationFunction::gelu;
  float scalar = 0;  // dropout probability, norm epsilon

  // Communication.
  MeshAxes axes;
  std::uint16_t neighbours = 0;  // groups of this many consecutive ranks along the innermost axis; 0: of all
  // True: starts as soon as its data and its stream allow, even before compute issued earlier has finished
  // (FSDP's prefetch stream). False: waits for the compute stream as it stands when the op is issued, which is what
  // torch.distributed does.
  bool free_running = false;
  // The op may start when the instance `prefetch` places earlier in a run of equal pieces starts.
  std::uint16_t prefetch = 0;
  // Buckets: the op runs once per `every` instances of its piece (the last of them) and then covers the tensors of
  // all of them; or `count` times per instance, each on 1/count of the bytes.
  std::uint16_t every = 1;
  std::uint16_t count = 1;
};

}  // namespace orrery
