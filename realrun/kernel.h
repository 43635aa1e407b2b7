// Arguments of a Program's kernels on every backend: operands in memory, and information that tensors do not contain.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

// Marks arithmetic that kernels of every backend share.
#ifdef __CUDACC__
#define ORRERY_ON_DEVICES __host__ __device__
#else
#define ORRERY_ON_DEVICES
#endif

namespace orrery {

// A rank's tensor in backend memory: dense, row-major in its own sizes, in its dtype's stored form. nullptr: absent.
struct Operand {
  void* data = nullptr;
  const Tensor* tensor = nullptr;
};

// Information that kernels need in addition to their tensors.
struct KernelContext {
  // Dropout draws from a counter-based generator (random_draws.h), so that ranks with parts of a tensor draw the same
  // numbers as one rank would: element i of the whole tensor is kept iff uniform(seed, dropout_stream, i) >= p. The
  // caller gives each dropout and each router with noise its own stream (layer, op, micro-batch, step); a router's
  // whole tensor is its logits. The part begins at `part_begin` in a whole of `whole_sizes` (0: as long as the part).
  // Along the sequence, query_positions replace part_begin if there is one for each position.
  std::uint64_t seed = 0, dropout_stream = 0;
  std::array<std::int64_t, Tensor::kMaxRank> part_begin{}, whole_sizes{};

  // For experts with copies: the expert in each slot of the rows' first dimension (Program::expert_of_slot). Rows for
  // an expert go to its copies in turn, starting with copy `first_copy`. Empty: slots are experts. Host memory.
  std::span<const std::int64_t> expert_of_slot;
  std::int64_t first_copy = 0;

  bool round_to_bf16 = false;  // fp32 storage: round writes to bf16 tensors to nearest, ties to even

  // Optimizers. Gradients are first multiplied by clipped_factor().
  std::int64_t step = 1;  // counted from 1
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;

  // Attention under sequence or context parallelism: positions of this rank's queries and keys in the whole sequence. A
  // causal mask or a window compares them; rotary embeddings use the queries'. Empty: 0, 1, ..., with queries aligned
  // to the last keys. The keys of a fused QKV have the queries' positions. A query that attends to no key has context 0
  // and log-sum-exp -infinity. kNoIndex marks a row without a position, which attends to nothing and is attended to by
  // none. Host memory.
  std::span<const std::int64_t> query_positions, key_positions;
  // Attention within documents (Op::documents): for each [sequence, position], where the position's document begins in
  // its whole sequence. A query attends to no key before that. Empty: the sequence is one document. Host memory.
  std::span<const std::int64_t> document_begins;

  // First row of the vocabulary that this rank holds (embedding, cross entropy: tensors with Axis::vocab). Ids outside
  // the rank's rows contribute nothing. Ids outside other tables are an error (CPU) or contribute nothing (CUDA).
  std::int64_t first_vocabulary_row = 0;

  // First expert whose rows this rank has. Choices of other experts get no slot.
  std::int64_t first_expert = 0;

  // True: only the slots that tokens fill are read, so kernels that put tokens into rows do not set the other slots to
  // zero. The number of rows that an op works on then depends on the data.
  bool rows_are_counted = false;

  // Pooling, where shapes do not tell: true takes the mean of a sequence's tokens, false its first token.
  bool pool_mean = false;
};

// The weight of a step's squares in a second moment that is factored: 1 minus its decay (Shazeer & Stern 2018, arXiv
// 1804.04235, section 7.2, with the exponent of algorithm 6).
inline double second_moment_weight(std::int64_t step) { return std::pow(static_cast<double>(step), -0.8); }

// Theta of Su et al. 2021 (arXiv 2104.09864), section 3.2.2.
inline constexpr double kRotaryBase = 10000;

// The same value as in PyTorch's clip_grad_norm_ and Megatron-LM's clip_grad_by_total_norm_fp32.
inline constexpr double kClippingEpsilon = 1e-6;
// Factor that `op` multiplies its operand by: Op::scale, reduced if the norm of the result would exceed Op::clip_limit.
// `squared_norm`: of all tensors that the factor applies to. Op::divides: divided by 1 + learning_rate x norm. A norm
// that is no number counts as 0 then: where nothing has moved, it is a ratio of two zeros.
inline double clipped_factor(const Op& op, double squared_norm) {
  if (op.divides) return op.scale / (1 + op.learning_rate * (squared_norm > 0 ? std::sqrt(squared_norm) : 0));
  const double norm = std::abs(op.scale) * std::sqrt(squared_norm), limit = op.clip_limit;
  return op.scale * std::min(1.0, limit / (norm + kClippingEpsilon));
}

}  // namespace orrery
