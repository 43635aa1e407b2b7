// The kernels of a Program on a CPU, in fp32: one function for every OpKind but communication and copies, written for
// clarity and for being right, with Eigen for the products. Numbers that a Program stores in bf16 are kept in fp32;
// rounding to bf16 on every store is an option, so that a run can show what the dtype does.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery::cpu {

// A tensor of one rank in memory: dense, row-major in its own sizes, fp32 (ids, targets and masks hold whole numbers).
struct Buffer {
  float* data = nullptr;
  const Tensor* tensor = nullptr;

  std::int64_t elements() const { return tensor->elements(); }
  std::span<float> span() const { return {data, static_cast<std::size_t>(elements())}; }
};

// What kernels need beyond their tensors.
struct KernelContext {
  // Dropout draws from a counter-based generator (philox.h), so that ranks which hold parts of one tensor draw what one
  // rank would: element i of the whole tensor is kept iff uniform(seed, dropout_stream, i) >= p. The caller gives every
  // dropout of a run (layer, op, micro-batch, step) a stream of its own. A part begins at `part_begin` of a whole of
  // `whole_sizes` (0: as long as the part); along the sequence, query_positions come first where there are as many.
  std::uint64_t seed = 0, dropout_stream = 0;
  std::array<std::int64_t, Tensor::kMaxRank> part_begin{}, whole_sizes{};

  bool round_to_bf16 = false;  // what is written to tensors of bf16, to the nearest, ties to even

  // Optimizers. Gradients are multiplied by `gradient_scale` first (clipping; the inverse of a loss scale).
  std::int64_t step = 1;  // from 1
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;
  double gradient_scale = 1;
  bool decoupled_weight_decay = true;  // AdamW; false: Adam with L2 regularisation

  // Attention under sequence or context parallelism: positions of this rank's queries and keys in the whole sequence (a
  // causal mask or a window compares them; rotary embeddings take the queries'). Empty: 0, 1, ...; queries align with
  // the last keys. The keys of a fused QKV are at the queries' positions. A query may see no key: its context is 0, its
  // log-sum-exp -infinity.
  std::span<const std::int64_t> query_positions, key_positions;
  // Factor on the scores. 0: 1/sqrt(head_dim); softmax, which cannot see head_dim, throws then.
  double attention_scale = 0;
  double rotary_base = 10000;  // theta of Su et al. 2021 (arXiv 2104.09864), section 3.2.2

  // First row of the vocabulary that this rank holds (embedding, cross entropy: tensors with Axis::vocab); ids outside
  // contribute nothing. Ids outside other tables throw.
  std::int64_t first_vocabulary_row = 0;
  double loss_gradient = 1;  // of the loss by the loss of a token: 1 / tokens where the loss is their mean

  std::int64_t images = 0;  // of the micro-batch; patch merging must know them to find neighbours across windows
  // Which vector stands for a sequence where shapes leave it open: the mean of its tokens (Swin), or the first one.
  bool pool_mean = false;
};

// Reads `reads`, writes `writes`: in the order of op.reads and op.writes; absent tensors have data nullptr, or are left
// out at the end. Shapes are those of sim/program/op.h; statistics of a norm are mean and reciprocal deviation, or (a
// last dimension of 1: RMSNorm) the reciprocal root mean square alone.
//
// op.accumulate adds to what is written; of norm_backward only to the gradients of weight and bias. differentiate()
// sets it for linear_weight_gradient; over several micro-batches a caller sets it for norm_backward, bias_gradient and
// embedding_backward, too.
//
// cross_entropy: the loss of a token is maximum + log(sum) - target. The sum is relative to the local maximum: ranks
// that divide the vocabulary multiply it by exp(local - global maximum) before they add.
// gradient_norm writes the square of the norm, so that ranks can add theirs.
// Kernels whose outputs have the inputs' shapes, and optimizers, may write where they read; others may not.
//
// Throws std::logic_error for kinds that are no kernel and for shapes that do not fit together: also for latent
// attention, whose Program leaves the shared rotary key out of what attention reads.
void run_kernel(const Op& op, std::span<const Buffer> reads, std::span<const Buffer> writes,
                const KernelContext& context);

}  // namespace orrery::cpu
