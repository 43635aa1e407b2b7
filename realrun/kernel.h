// What a kernel of a Program is given, on whatever backend it runs: operands in memory, and what their tensors do not
// say.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// A tensor of one rank in a backend's memory: dense, row-major in its own sizes, in the backend's stored form of its
// dtype. Absent: data is nullptr.
struct Operand {
  void* data = nullptr;
  const Tensor* tensor = nullptr;
};

// What kernels need beyond their tensors.
struct KernelContext {
  // Dropout draws from a counter-based generator (cpu/philox.h), so that ranks which hold parts of one tensor draw what
  // one rank would: element i of the whole tensor is kept iff uniform(seed, dropout_stream, i) >= p. The caller gives
  // every dropout and every router with noise of a run (layer, op, micro-batch, step) a stream of its own; a router's
  // whole tensor are its logits. A part begins at `part_begin` of a whole
  // of `whole_sizes` (0: as long as the part); along the sequence, query_positions come first where there are as many.
  std::uint64_t seed = 0, dropout_stream = 0;
  std::array<std::int64_t, Tensor::kMaxRank> part_begin{}, whole_sizes{};

  // Rows of experts that have copies: the expert in each slot of the rows' first dimension (Program::expert_of_slot).
  // What is routed to an expert goes to its copies in turn, from the one of this number on. Empty: slots are experts.
  // Host memory.
  std::span<const std::int64_t> expert_of_slot;
  std::int64_t first_copy = 0;

  bool round_to_bf16 = false;  // fp32 storage: what is written to tensors of bf16, to the nearest, ties to even

  // Optimizers. Gradients are multiplied by clipped_factor() first.
  std::int64_t step = 1;  // from 1
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;

  // Attention under sequence or context parallelism: positions of this rank's queries and keys in the whole sequence (a
  // causal mask or a window compares them; rotary embeddings take the queries'). Empty: 0, 1, ...; queries align with
  // the last keys. The keys of a fused QKV are at the queries' positions. A query may see no key: its context is 0, its
  // log-sum-exp -infinity. kNoIndex: of a row that has no position, and sees and is seen by none. Host memory.
  std::span<const std::int64_t> query_positions, key_positions;
  // Attention within documents (Op::documents), [sequence, position]: where in its whole sequence the document of each
  // position begins; a query sees no key before its own. Empty: the sequence is one. Host memory.
  std::span<const std::int64_t> document_begins;
  double rotary_base = 10000;  // theta of Su et al. 2021 (arXiv 2104.09864), section 3.2.2

  // First row of the vocabulary that this rank holds (embedding, cross entropy: tensors with Axis::vocab); ids outside
  // contribute nothing. Ids outside other tables are an error (CPU) or contribute nothing (CUDA).
  std::int64_t first_vocabulary_row = 0;

  // First expert whose rows this rank has; choices of others find no slot.
  std::int64_t first_expert = 0;

  // Rows of experts are counted: slots behind them hold nothing that anybody reads, so that kernels which put tokens
  // into rows leave them as they are instead of setting them to zero. How many rows an op has then follows from data.
  bool rows_are_counted = false;

  std::int64_t images = 0;  // of the micro-batch; patch merging must know them to find neighbours across windows
  // Which vector stands for a sequence where shapes leave it open: the mean of its tokens (Swin), or the first one.
  bool pool_mean = false;
};

// As PyTorch's clip_grad_norm_ and Megatron-LM's clip_grad_by_total_norm_fp32 have it.
inline constexpr double kClippingEpsilon = 1e-6;
// What `op` multiplies its operand by: Op::factor, and less where the norm of what comes out would exceed Op::scalar.
// `squared_norm`: of all that the factor goes to.
inline double clipped_factor(const Op& op, double squared_norm) {
  const double norm = std::abs(op.factor) * std::sqrt(squared_norm), limit = op.scalar;
  return op.factor * std::min(1.0, limit / (norm + kClippingEpsilon));
}

}  // namespace orrery
