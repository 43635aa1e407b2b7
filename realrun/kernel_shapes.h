// What the kernels of all backends share: the list of kinds that have kernels (ORRERY_KERNELS), a call of a kernel
// (KernelCall), and the sizes that its operands give, checked. Functions throw std::logic_error, with the kernel's
// name, for operands that are missing or do not fit together.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "realrun/kernel.h"
#include "sim/program/op_traits.h"

// The kinds of op that kernels compute: each list applies the macro X to every kind. A backend
// defines a function of each kind's name.
//
// clang-format off

// Products of matrices: functions on the CPU, cuBLASLt's on a GPU.
#define ORRERY_PRODUCTS(X) \
  X(linear) X(linear_input_gradient) X(linear_weight_gradient) X(batched_matmul) \
  X(mask_permute) X(mask_unpermute) X(mask_gradient)

// Kernels that need scratch memory on a GPU (OpTraits::scratch); there the function KIND_scratch returns its bytes.
#define ORRERY_SCRATCH_KERNELS(X) \
  X(attention_backward) X(norm_backward) X(bias_gradient) X(embedding_backward) X(gradient_norm) X(square_sums)
// Kernels that move tokens into expert slots or back. On a GPU slots_scratch() returns the bytes for all of them.
#define ORRERY_SLOT_KERNELS(X) \
  X(permute) X(unpermute) X(unpermute_backward) X(permute_weights) X(unpermute_weights) \
  X(slot_mask) X(slot_mask_backward)

#define ORRERY_KERNELS(X) \
  X(attention) X(merge_attention) X(softmax) X(softmax_backward) X(norm) X(rotary) X(rotary_backward) \
  X(activation) X(activation_backward) X(dropout) X(dropout_backward) X(dropout_add) X(add) X(multiply) \
  X(cast) X(zero_fill) X(embedding) X(cross_entropy) X(cross_entropy_backward) X(pool) X(pool_backward) \
  X(route) X(route_backward) X(hash_route) X(add_noise) X(expert_counts) X(router_loss) X(router_loss_backward) \
  X(quantise) X(dequantise) X(requantise) X(sparsify) X(densify) X(orthogonalise) X(scale) X(subtract) X(adam) X(sgd) \
  X(moving_mean) X(factored_update) \
  ORRERY_SCRATCH_KERNELS(X) ORRERY_SLOT_KERNELS(X)
// clang-format on

namespace orrery {

// `reads` and `writes` have the order of op.reads and op.writes. An absent operand has data nullptr, or is omitted at
// the end. All throw std::logic_error, which names the kernel.
struct KernelCall {
  const Op& op;
  std::span<const Operand> reads, writes;
  const KernelContext& context;

  [[noreturn]] void fail(const std::string& what) const {
    const int kind = static_cast<int>(op.kind);
    const std::string name = kind < kOpKinds ? name_of(op.kind) : "of unknown kind " + std::to_string(kind);
    throw std::logic_error("kernel " + name + " (" + op.name + "): " + what);
  }
  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  bool has_read(std::size_t i) const { return i < reads.size() && reads[i].data != nullptr; }
  bool has_write(std::size_t i) const { return i < writes.size() && writes[i].data != nullptr; }
  const Operand& read(std::size_t i) const {
    if (!has_read(i)) fail("operand " + std::to_string(i) + " is missing");
    return reads[i];
  }
  const Operand& write(std::size_t i) const {
    if (!has_write(i)) fail("result " + std::to_string(i) + " is missing");
    return writes[i];
  }
  void require_same_elements(const Operand& a, const Operand& b) const {
    require(a.tensor->elements() == b.tensor->elements(), "tensors differ in their number of elements");
  }
  // `row` repeats along the leading dimensions of `whole`.
  void require_repeats(const Operand& row, const Operand& whole) const {
    require(row.tensor->elements() > 0 && whole.tensor->elements() % row.tensor->elements() == 0,
            "a bias does not divide its tensor");
  }
};

inline std::int64_t elements(const Operand& o) { return o.tensor->elements(); }
inline std::int64_t last_size(const Operand& o) {
  return o.tensor->rank == 0 ? 1 : o.tensor->sizes[o.tensor->rank - 1];
}

// A column counts as linearly dependent if at most this share of its length remains when its projections onto earlier
// columns are subtracted (OpKind::orthogonalise).
inline constexpr float kIndependent = 1e-5f;

// Checks the operands of kinds that need no shape beyond their number of elements. Kernels check dtypes.
void check_operands(const KernelCall& call);

// Which part of x a norm normalises with which weights. x is a list of vectors of `length` elements. The first `width`
// elements of each are normalised, the others are copied (the rotary key behind DeepSeek's latent). In a fused QKV
// queries and key are normalised head by head, and the value is copied.
struct NormShape {
  std::int64_t vectors = 0, length = 0, width = 0;
  std::int64_t groups = 1, parts = 1;  // fused QKV: parts per group; 1 otherwise
  std::int64_t weight_rows = 1;        // 1; 2 for queries and key; or one for each query head and key of every group
  bool centred = false;                // LayerNorm

  // Vectors of one class have the same weights.
  ORRERY_ON_DEVICES std::int64_t classes() const { return parts == 1 ? 1 : groups * parts; }
  // Returns the row of the weight tensor for a vector; -1: the vector is copied.
  ORRERY_ON_DEVICES std::int64_t weight_row(std::int64_t vector) const {
    if (parts == 1) return 0;
    const std::int64_t part = vector % parts, group = vector / parts % groups;
    if (part == parts - 1) return -1;
    if (weight_rows == 2) return part == parts - 2 ? 1 : 0;
    return group * (parts - 1) + part;
  }
};
NormShape norm_shape(const KernelCall& call);  // norm and norm_backward

// Codes of quantisers (op_traits.h) are [parts, rows, columns], scales [parts, rows, groups]. `parts`: contributions;
// otherwise 1.
struct CodesShape {
  std::int64_t parts, rows, columns, groups;

  ORRERY_ON_DEVICES std::int64_t codes() const { return rows * columns; }  // of one contribution
  // Columns that share a scale; the last group of a row may have fewer.
  ORRERY_ON_DEVICES std::int64_t group() const { return (columns + groups - 1) / groups; }
  // Index of a code's scale within a contribution.
  ORRERY_ON_DEVICES std::int64_t scale_of(std::int64_t code) const {
    return code / columns * groups + code % columns / group();
  }
};
struct QuantiserShapes {
  CodesShape read;       // not set for quantise
  CodesShape written;    // not set for dequantise
  std::int64_t numbers;  // elements of x (quantise) or y (dequantise); for requantise, the codes of one contribution
  Operand error{}, new_error{};  // read, written; may be one tensor; data is nullptr where absent
};
// Throws std::logic_error for operands that do not have these shapes: if there are fewer codes than numbers (for
// requantise: if they differ), if contributions are written, or if an error is not written or has another number of
// elements than the numbers.
QuantiserShapes quantiser_shapes(const KernelCall& call);
// Returns the largest code of a dtype. Throws std::logic_error for a dtype that has no codes.
float largest_code(const KernelCall& call, const Operand& codes);

// Operands of sparsify and densify (op_traits.h).
struct SparseShape {
  std::int64_t numbers, parts, groups, kept;  // parts: contributions; 1 for sparsify
  Operand error{}, new_error{};               // read, written; may be one tensor; data is nullptr where absent

  ORRERY_ON_DEVICES std::int64_t group() const { return (numbers + groups - 1) / groups; }
  // The number of numbers before group `g`.
  ORRERY_ON_DEVICES std::int64_t begin(std::int64_t g) const { return g * group() < numbers ? g * group() : numbers; }
};
// Throws std::logic_error for operands that do not have these shapes.
SparseShape sparse_shape(const KernelCall& call);

// The operands of adam and sgd; data is nullptr where one is absent. All have as many elements as the gradient.
struct UpdateOperands {
  // The weights are the fp32 master copies if there are any, otherwise the parameters.
  Operand gradient, weight, moment, second_moment;
  Operand parameter, master, new_moment, new_second_moment;  // written
};
UpdateOperands update_operands(const KernelCall& call);
// The rates of sgd: the op's own if it has any (Op::learning_rate), otherwise the run's. clip 0: no limit.
struct SgdRates {
  double learning_rate, momentum, decay, clip;
  bool nesterov, sign;
};
SgdRates sgd_rates(const KernelCall& call);
// Returns the square of the norm that an op clips or divides by, one number; nullptr: it does neither.
const Operand* squared_norm(const KernelCall& call);
// Returns the sizes that a scale multiplies by; nullptr: there are none.
const Operand* sizes_of(const KernelCall& call);
// Returns into how many equal parts, with a norm and a size of their own, a scale divides x.
std::int64_t scale_parts(const KernelCall& call);

// square_sums: x as [outer, summed, inner].
struct SquaresShape {
  std::int64_t outer, summed, inner;
};
SquaresShape squares_shape(const KernelCall& call);

// factored_update: a gradient of `groups` matrices; columns 0: it has its squares, and no factors.
struct FactorsShape {
  std::int64_t groups, rows, columns;
};
FactorsShape factors_shape(const KernelCall& call);

// bias_gradient: dy as [groups, rows, columns] is summed over rows. A group is an expert, with its own columns of the
// bias.
struct BiasShape {
  std::int64_t groups, rows, columns;
};
BiasShape bias_shape(const KernelCall& call);

// x: [.., 2, width], the gate and then what it multiplies, or [.., width]. `elements` are those of the result, in rows
// of `width`. A bias of `period` elements repeats over x.
struct ActivationShape {
  std::int64_t elements, width, period;
  bool gated;
};
ActivationShape activation_shape(const KernelCall& call);  // activation and activation_backward

// Inverted dropout: kept elements are scaled up to preserve the expectation (Srivastava et al. 2014, section 10).
double kept_scale(const KernelCall& call);

// y = a b by element; each row of a times its own number of b; or y is the sum over each row of a b. The first two also
// divide (Op::divides).
enum class Multiply { elements, rows, inner_products };
Multiply multiply_form(const KernelCall& call);

// A table of `rows` rows, of which the first is `first_row` of the whole; ids of other rows are other ranks'.
struct TableShape {
  std::int64_t rows, width, first_row;
};
TableShape table_shape(const KernelCall& call);  // embedding and embedding_backward
// Logits: [tokens.., columns], columns from `first_column` of the whole vocabulary.
struct LogitShape {
  std::int64_t tokens, columns, first_column;
};
LogitShape logit_shape(const KernelCall& call);  // cross_entropy and cross_entropy_backward

// Pooling of x, the larger side, to y, in the forward and in the backward.
struct PoolShape {
  std::int64_t width;   // of a vector of x
  std::int64_t pooled;  // vectors of y
  std::int64_t each;    // vectors of x per vector of y
  bool mean;            // of the vectors, or the first of them
};
PoolShape pool_shape(const KernelCall& call);  // pool and pool_backward
// A vector before each sequence (ViT's class token). Sizes in elements; `length`: of a sequence of x, without it.
struct PrependShape {
  std::int64_t batch, width, length;
};
PrependShape prepend_shape(const KernelCall& call);  // pool with a vector, and pool_backward

// Logits [tokens.., experts] and choices [tokens.., k].
struct RouterShape {
  std::int64_t tokens, experts, k;
};
RouterShape router_shape(const KernelCall& call);  // route and route_backward

// Between tokens and expert slots (op_traits.h): rows [experts, slots, width] (permute, unpermute), a number per row
// [experts, slots] (permute_weights, unpermute_weights), or a mask [tokens.., experts, slots] (slot_mask).
struct SlotsShape {
  std::int64_t tokens, k, experts, slots, width;
  bool divided;  // experts are divided over ranks: the choices of other ranks' experts have no slot here
  const Operand* choices;

  std::int64_t rows() const { return experts * slots; }
};
SlotsShape slots_shape(const KernelCall& call);

// q is [batch, queries, groups, heads, key_width] with keys and values in kv, or a fused QKV; the log-sum-exps are
// [batch, groups, heads, queries]. The query heads of a group share a key and a value, which begin at key_begin and
// value_begin of the group's elements.
struct AttentionSizes {
  std::int64_t batch, queries, keys, groups, heads;
  bool fused;
  std::int64_t key_width, value_width, key_begin, value_begin;
  double scale;
  const Operand *q, *kv, *context, *lse;  // kv: q itself if fused

  std::int64_t rows() const { return batch * groups * heads * queries; }
};
AttentionSizes attention_sizes(const KernelCall& call);  // attention and attention_backward

// Which keys a query attends to, by their positions: causal, to none behind it; in a window (0: none), to as many
// positions around it or, if causal, before it and itself.
struct AttentionWindow {
  std::int64_t window = 0;
  bool causal = false;

  static constexpr std::int64_t kFar = std::int64_t{1} << 40;
  ORRERY_ON_DEVICES bool all() const { return !causal && window == 0; }
  ORRERY_ON_DEVICES std::int64_t before() const { return window == 0 ? kFar : causal ? window - 1 : (window - 1) / 2; }
  ORRERY_ON_DEVICES std::int64_t after() const { return causal ? 0 : window == 0 ? kFar : window / 2; }
  ORRERY_ON_DEVICES bool sees(std::int64_t query, std::int64_t key) const {
    return key - query <= after() && query - key <= before();
  }
};

// Contexts are [batch, sequence, heads, width], log-sum-exps [batch, heads, sequence].
struct MergeShape {
  std::int64_t batch, sequence, heads, width;
};
MergeShape merge_shape(const KernelCall& call);

// Vectors (heads, queries, keys) of [batch, sequence, groups, heads, width], of which `turned` elements rotate. With a
// key that all heads share, the vectors are those of kv, and the rotated key is put in at `begin`.
struct RotaryShape {
  std::int64_t batch, length, vectors, heads, width;  // vectors per token; heads per group
  std::int64_t begin;                                 // first rotated element
  std::int64_t turned;
  bool fused;  // the last vector of a group is a value
};
RotaryShape rotary_shape(const KernelCall& call);
// Whether the op puts a shared key into the heads, or takes its gradient out of them.
bool shares_key(const KernelCall& call);

// `groups` products of x [tokens, k], w [k, n] and y [tokens, n] or their gradients; a transposed weight is [n, k].
struct LinearShape {
  std::int64_t groups, tokens, k, n;
};
LinearShape linear_shape(const KernelCall& call);  // linear and its gradients

// Products of a mask [tokens, rows] with rows [rows, width].
struct MaskProductShape {
  std::int64_t tokens, rows, width;
};
MaskProductShape mask_product_shape(const KernelCall& call);

// Products of [.., m, k] and [.., k, n], each perhaps stored transposed. `batch`: the leading dimensions; an operand of
// size 1 is repeated when read (grouped queries share a key), and summed when written (its gradient).
struct BatchedShape {
  std::int64_t m, n, k;
  int batch_dims;
  std::array<std::int64_t, Tensor::kMaxRank> batch;
};
BatchedShape batched_shape(const KernelCall& call);

}  // namespace orrery
