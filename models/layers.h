// The pieces of a model as blocks of ops, for one device and one micro-batch, unsharded: forward in SSA form plus
// its derivative. Dimensions carry axes, so strategies shard and rewrite the pieces without knowing the model.
#pragma once

#include <span>
#include <vector>

#include "models/model.h"
#include "sim/program/program.h"
#include "traces/workload.h"

namespace orrery {

// Kernels of the loss: the values of framework::CrossEntropy (strategies/framework/options.h).
enum class LossKernels : std::uint8_t { unfused, fp32, fused };

// Positions per sequence: the workload's, the model's maximum, or an image's patches. A decoder may have its own.
std::int64_t sequence_length(const Model& model, const Workload& workload);
std::int64_t decoder_sequence_length(const Model& model, const Workload& workload);

// Which kernels compute the model: a software generation's choices, not the architecture's.
struct KernelChoices {
  bool flash_attention = true;  // false: batched matmuls with a stored score matrix
  LossKernels loss = LossKernels::fp32;
  bool fused_kernels = true;  // bias+activation, bias+dropout+add, rotary, softmax as single kernels
  // Experts' outputs are weighted where the activation function is applied, not where tokens are combined. The experts'
  // outputs then need not be kept for the backward.
  bool weighs_activations = false;
  // False: the stack has no fused kernel for this, and several kernels compute it: rotations that also scale (YaRN),
  // the clamp of the experts' activation function, the bias of the experts' second product.
  bool fused_scaled_rotary = true, fused_clamps = true, fused_expert_biases = true;
  Dtype activation = Dtype::bf16;
  Dtype parameter = Dtype::bf16;
  Dtype gradient = Dtype::fp32;
  std::int64_t vocab_multiple = 1;  // the vocabulary is padded to a multiple of this

  bool operator==(const KernelChoices&) const = default;
};

// The model as a line of runs, in order, before anything is distributed: embedding, layers, head.
struct ModelPieces {
  std::vector<Piece>* pieces = nullptr;  // overwritten; storage is reused
  std::vector<PieceRun> runs;            // in model order; `piece` indexes *pieces
};

// Fills *out.pieces and out.runs for micro-batches of `micro_batch` sequences. The number and the order of the pieces
// do not depend on `kernels`. Builds each kind of layer once: its time hardly depends on the number of layers.
void build_pieces(const Model& model, const Workload& workload, std::int64_t micro_batch, const KernelChoices& kernels,
                  ModelPieces& out);

// FLOPs of matrix products. "executed": as kernels compute them, empty slots of experts included. Attention is counted
// separately: `masked` counts the pairs that its mask and window leave (half of a causal square), `full` counts without
// the causal mask.
struct ProductFlops {
  double linear = 0, linear_executed = 0, attention_masked = 0, attention_full = 0, attention_executed = 0;

  void add(const ProductFlops& other, double times) {
    linear += times * other.linear;
    linear_executed += times * other.linear_executed;
    attention_masked += times * other.attention_masked;
    attention_full += times * other.attention_full;
    attention_executed += times * other.attention_executed;
  }
};
// Returns the FLOPs of an op of a built piece. For a backward of attention they are 0: callers count twice its forward.
// `expert_rows`: rows that the tokens of a micro-batch take at a layer's experts; kernels also execute the slots beyond
// them, but those are not work of the model. `packed`: pairs of a query and a key in different documents do not count,
// in attention_full either; null: sequences are not packed.
ProductFlops product_flops(const Op& op, std::span<const Tensor> tensors, double expert_rows = 0,
                           const PackedSequences* packed = nullptr);
// Rows at a layer's experts: one for each token and expert that the token goes to.
double expert_rows(const Model& model, const Workload& workload, std::int64_t micro_batch);

// Returns FLOPs and tokens of a whole step, from a line of built (unsharded) pieces: the products of the forward, and
// twice as many for the backward. Includes the padded vocabulary. The model's FLOPs count only slots of experts that
// hold a token; the executed FLOPs count all slots, unless mean_experts_per_token is set.
ModelWork model_work(const Model& model, const Workload& workload, std::int64_t micro_batch,
                     std::span<const Piece> pieces, std::span<const PieceRun> line,
                     const PackedSequences* packed = nullptr);

}  // namespace orrery
