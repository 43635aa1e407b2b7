// The kinds of ops, and everything about a kind that does not depend on the tensors: one row of a table per kind. A new
// kind is an enumerator, its row, and its kernels (realrun/cpu, realrun/cuda). tests/program/op_traits_test.cpp checks
// every row for completeness.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace orrery {

enum class OpKind : std::uint8_t {
  // Matrix products. x: [tokens.. | k..], w: [k.. | n..] (or [n.. | k..] when transposed_weight), y: [tokens.. | n..];
  // `inner_dims` says how many dimensions of w are k. In a grouped product the first `group_dims` dimensions of all
  // operands are the experts; each expert has a product of its own.
  linear,                  // reads x, w [, bias];   writes y
  linear_input_gradient,   // reads dy, w;           writes dx
  linear_weight_gradient,  // reads x, dy;           writes dw (accumulated)
  batched_matmul,  // reads a, b;            writes c, times Op::scale (accumulated); the last two dims multiply
                   // (transpose_a/b), the others batch

  // Attention. qkv: [batch, sequence, groups, group_heads, head_dim] fused, or q and kv apart (cross attention, CP). In
  // a separate kv, each group holds its key, as wide as a query, and then its value, as wide as the context: two parts
  // of head_dim each, or one part of the sum of both widths where they differ (latent attention). Scores are divided by
  // the square root of a query's width; then a bias [queries, keys, groups, group_heads] is added to the scores of
  // every sequence.
  attention,           // reads qkv | q, kv [, bias at 2];    writes context, log_sum_exp (FlashAttention)
  attention_backward,  // reads dcontext, context, lse, qkv|q,kv [, bias at 5]; writes dqkv | dq, dkv [, dbias at 2]
  softmax,             // reads scores; writes probabilities (scaled by Op::scale, masked: Megatron's fused kernel)
  softmax_backward,    // reads dprobabilities, probabilities; writes dscores

  // Memory-bound kernels: time follows from the bytes of the tensors read and written.
  norm,                 // reads x, weight [, bias]; writes y, statistics
  norm_backward,        // reads dy, x, weight, statistics; writes dx, dweight [, dbias] (the latter accumulated)
  rotary,               // reads qkv; writes qkv, each head rotated from rotary_begin on;
                        // or reads kv, key [batch, sequence, dim]; writes kv with the rotated key, which all heads
                        // share, put in at rotary_begin of each head (latent attention: behind the content part)
  rotary_backward,      // reads dqkv; writes dqkv | dkv, dkey (summed over the heads)
  activation,           // reads x [, bias] [, weights]; writes y (gelu, relu; gated kinds read [.., 2, ffn], or the
                        // gate alone where the product is an op of its own), times the weight of each row
  activation_backward,  // reads dy, x [, bias] [, weights]; writes dx [, dweights]
  dropout,              // reads x; writes y, mask
  dropout_backward,     // reads dy, mask; writes dx
  dropout_add,          // reads x, residual [, bias]; writes y, mask: y = residual + dropout(x + bias)
  add,                  // reads a [, b] [, bias]; writes y; a bias may be one row of positions, added to every sequence
  multiply,             // reads a, b; writes y; b's last dimension may be 1, or y's: then y is the sum over a's;
                        // or y is a divided by b (Op::divides)
  bias_gradient,        // reads dy; writes dbias (accumulated)
  embedding,            // reads ids, table [rows, width..]; writes y
  embedding_backward,   // reads ids, dy; writes dtable (accumulated)
  cross_entropy,        // reads logits, targets; writes statistics [3, batch, sequence]: the maximum, the sum of
                        // exponentials and the target's logit, from which the loss follows
  cross_entropy_backward,  // reads logits, targets, statistics; writes dlogits
  pool,                    // reads x; writes y (a sequence's first or mean vector, patch merging)
                           // reads x, vector; writes y: the vector before each sequence of x (ViT's class token)
  pool_backward,           // reads dy; writes dx [, dvector (accumulated)]
  cast,                    // reads x; writes y in another dtype, with fp8 and nvfp4 among them, or a copy (accumulated)
  zero_fill,               // writes y
  merge_attention,         // reads contexts and lse of two ring steps; writes merged (online softmax)

  // Quantisers turn numbers into codes of few bits before they travel, and back. codes: [rows.., columns] in int8,
  // int4, fp8 or sign; scales: [rows.., groups] in fp32. A row's columns form groups of ceil(columns / groups)
  // columns; the last groups may have fewer, or none. The scale of int8, int4 and fp8 codes is the group's largest
  // magnitude divided by the largest code (127, 7, 448). Signs are 1 or -1, and 1 for zero; their scale is the root of
  // the group's mean square (Tang et al. 2021, arXiv 2102.02888, as in DeepSpeed's compressed_allreduce). x and y are
  // read as one list, row after row. If there are more codes than numbers, the missing numbers count as zeros, also in
  // the scale. Codes and scales that an op reads may begin with a dimension of ranks (Axis::contributions); each
  // number is then the sum over these ranks.
  // A quantiser multiplies the numbers that it reads by Op::scale. With error feedback it then adds `error`, one
  // element for each number: what earlier codes have lost. What the new codes lose replaces it.
  quantise,    // reads x [, error]; writes codes, scales [, error]
  dequantise,  // reads codes, scales; writes y (accumulated)
  requantise,  // reads codes, scales [, error]; writes codes and scales of the same numbers, or of their sum [, error];
               // rows and groups may differ

  // sparsify selects the largest numbers of a list, densify puts them back. The list has groups of
  // ceil(numbers / groups) numbers. values: [groups, kept] in fp32. indices: [groups, kept] in int32, counted from the
  // group's first number, ascending.
  sparsify,  // reads x [, error]; writes values, indices [, error]. It multiplies x by Op::scale, adds the error, and
             // keeps the `kept` numbers of each group that have the largest magnitude; of equal ones the first. The
             // other numbers are the new error. If a group has fewer numbers, the last values and indices are zero
  densify,   // reads values, indices [contributions, groups, kept]; writes y: the sum over the contributions, times
             // Op::scale; zero where none has a number

  orthogonalise,  // reads x [rows.., columns]; writes y: orthonormal columns that span those of x, by modified
                  // Gram-Schmidt from the first column to the last. A column that is linearly dependent on earlier
                  // ones is replaced by pseudo-random numbers, which are made orthonormal in turn. Surplus columns
                  // (more columns than rows) become zero

  // Mixture of experts. Each token goes to `k` experts. Rows are the experts' inputs or outputs, [experts, slots,
  // width]. A token's row lies in the first free slot of its expert; first choices come before second ones, and tokens
  // keep their order. A row without a slot is dropped: it adds nothing and has no gradient. Slots that no token takes
  // hold zeros. If ranks divide the experts, each rank has the rows of its own experts, and the tokens that it sums
  // from them owe the sum over all ranks.
  route,  // reads logits [tokens.., experts] [, bias on the scores that are compared];
          // writes weights [tokens.., k] and choices [tokens.., k], best first, of equals the first (Op::router).
          // If experts choose, k is the number of experts: each at its own index, or -1
          // with weight 0.
  route_backward,      // reads dweights, logits, choices; writes dlogits: the derivative of these choices' weights
  hash_route,          // reads ids [tokens.., 1]; writes choices [tokens.., 1]: always the same expert for an id
  permute,             // reads x [tokens.., width], choices; writes rows
  unpermute,           // reads rows, choices [, weights]; writes x: the (weighted) sum of each token's rows
  unpermute_backward,  // reads dx, rows, choices, weights; writes drows, dweights
  permute_weights,     // reads weights [tokens.., k], choices; writes them by row [experts, slots]
  unpermute_weights,   // reads dweights by row, choices; writes them by token
  // The same by products with a mask [tokens.., experts, slots] (GShard). An entry is one, or the row's weight, where
  // the slot holds a row of the token; all other entries are zero.
  slot_mask,           // reads choices [, weights]; writes the mask
  slot_mask_backward,  // reads dmask, choices; writes dweights
  mask_permute,        // reads x, mask; writes rows: the mask, transposed, times x
  mask_unpermute,      // reads rows, mask; writes x: the mask times the rows
  mask_gradient,       // reads dx, rows; writes dmask: dx times the rows, transposed
  add_noise,  // reads logits [tokens.., experts], deviations before their softplus; writes logits plus normal noise of
              // that deviation, and the slope of the noise in the raw deviation (Shazeer et al. 2017, eq. 4)
  expert_counts,  // reads choices [batch, sequence, k]; writes how many each expert has of each sequence [batch,
                  // experts], or of all sequences [1, experts]
  router_loss,    // reads logits [batch, sequence, experts] [, counts]; writes each token's part of the loss [batch,
                  // sequence, 2]: of the balance loss and of the z-loss on the logits' size (Op::router)
  router_loss_backward,  // reads logits [, counts]; writes dlogits, times Op::scale

  // Optimizer, on the flat buffers of a piece; scale also on other tensors.
  gradient_norm,  // reads gradients; writes a scalar: the square of their norm (sim/program/step_end.h)
                  // reads such scalars; writes their sum
  scale,          // reads x [, norm] [, sizes]; writes x times Op::scale, clipped (clipped_factor() of
                  // realrun/kernel.h), and times the root of the size, at least Op::epsilon. A norm or sizes of several
                  // numbers have one for each index of x's first dimension, or for each equal part of it
  subtract,       // reads a, b; writes a - b
  square_sums,    // reads x [groups.., rows.., columns..]; writes the sums of its squares times Op::scale: one for each
                  // equal part of x, or with transpose_a for each column of each group (Op::group_dims)
  moving_mean,    // reads mean, x; writes (1 - w) mean + w x. w falls with the step (second_moment_weight() of
                  // realrun/kernel.h)
  factored_update,  // reads gradient [groups, rows, columns], sums of squares of its rows, its columns, each group;
                    // writes gradient / sqrt(row x column / group)
                    // reads gradient, squares; writes gradient / sqrt(square)
  adam,           // reads gradient and states [, norm]; writes parameter [, master], exp_avg, exp_avg_sq
  sgd,            // reads gradient, weight [, momentum] [, norm]; writes parameter [, master] [, momentum]

  // Communication over Op::group. Bytes follow from the tensors: see sim/program/work.h.
  all_reduce,      // reads x; writes x'
  all_gather,      // reads shard; writes whole
  reduce_scatter,  // reads whole; writes shard
  all_to_all,      // reads codes, or their scales, of numbers whose sum over the group is owed, or whose mean over
                   // workers is to be taken (Reduction::mean); writes [contributions, x..], with one dimension of x
                   // divided over the group: contribution i is the reader's part of rank i's x. A quantiser then takes
                   // the sum or the mean.
  redistribute,    // reads x, or several tensors that each have some of its indices; writes x in another layout
                   // (sim/program/redistribute.h): an all-to-all of what differs
  broadcast,       // from the group's first rank
  reduce,          // to the group's first rank
  ring_shift,      // reads x, writes x': sends to the next rank of the group, receives from the previous one
  send,            // from the group's first rank to its second: what crosses stages costs; no Program has such an op

  copy,  // between memories: from the place of the tensor read to that of the tensor written

  end,  // one past the last kind
};

// The class of an op. It decides the FLOPs: those of matrix products and attention follow from the shapes; ops of all
// other classes have none.
enum class OpClass : std::uint8_t {
  matrix_product,
  attention,
  memory_bound,
  optimizer,
  collective,
  copy,
};

// The bytes an op moves (sim/program/work.h).
enum class MovedBytes : std::uint8_t {
  operands,  // each tensor is read once and written once; what is added to is also read
  rows,      // of a table, as many rows as the other operand has; not the whole table
  payload,   // the full buffer: the side that is not a shard; times Op::share
  source,    // the tensor that a copy reads
};

// Sets of operands: bit i is the i-th read or write of an op.
using OperandMask = std::uint8_t;

// What an op of a derivative reads: the gradient of the first result, or an operand or a result of the op itself.
enum class Source : std::uint8_t { none, dy, read0, read1, read2, write0, write1 };

// An op of a derivative. It writes the gradients of the operands `of`, and is left out if nothing needs these.
struct DerivativeOp {
  OpKind kind = OpKind::end;
  std::array<Source, 6> reads{};
  OperandMask of = 0;
  bool of_weights = false;  // the op's phase is weight_gradient if the operand is a parameter
};

// How differentiate() reverses an op.
struct Derivative {
  std::array<DerivativeOp, 2> ops{};
  OperandMask passes = 0;   // operands whose gradient is dy itself
  std::int8_t bias = -1;    // the operand whose gradient is the sum over the rows of dy (-1: none), ...
  bool bias_of_dx = false;  // ... or of the gradient that the first op writes
};

struct OpTraits {
  OpKind kind;
  const char* name;
  OpClass op_class = OpClass::memory_bound;
  MovedBytes moved = MovedBytes::operands;

  OperandMask reads = 0, may_read = 0;    // operands that are always there; operands that may be there besides
  OperandMask writes = 0, may_write = 0;  // the same for results

  // The writes to which Op::accumulate adds; kernels of kinds with none cannot accumulate.
  OperandMask accumulates = 0;
  bool in_place = false;   // a result may share the memory of an operand of the same size and dtype
  bool scratch = false;    // GPU kernels need scratch memory
  bool random = false;     // draws numbers: Op::draw
  bool of_update = false;  // runs once a step, over flat buffers

  // The read that holds the queries of attention or its derivative (separate keys and values follow it), and the read
  // that holds the square of the norm by which gradients are clipped; -1: none.
  std::int8_t queries_read = -1, norm_read = -1;

  // Which variants have kernels, and so cost curves, of their own. `functions`: one per ActivationFunction.
  // `bias_read`, `bias_write`: one with and one without a bias, which is that read or write; -1: none.
  bool functions = false;
  std::int8_t bias_read = -1, bias_write = -1;

  Derivative derivative{};
  const char* why_none = nullptr;  // the reason for having no derivative

  // Rules for operands that ranks divide, or whose sum the ranks owe (sim/program/check.h).
  // Reads that may owe a sum; the results then owe it, too. All of them must owe the same sum.
  OperandMask linear = 0;
  bool product = false;             // the `linear` reads are factors: only one of them may owe a sum
  OperandMask independent = 0;      // writes that do not depend on the `linear` reads: every rank has them
  bool sums = false;                // sums over axes that a result lacks; it owes the sum over what divides these
  OperandMask added = 0;            // reads that every rank adds in full: they must not be added to a part of a sum
  OperandMask takes_positions = 0;  // reads of whole sequences (ids, tables); a rank takes its own positions
  OperandMask gives_positions = 0;  // writes of whole sequences, to which a rank adds at its own positions
  OperandMask whole_rows = 0;       // reads that are normalised over their last dimension: ranks must not divide it
  bool whole = false;               // needs all of its operands: ranks must not divide any dimension
  bool whole_heads = false;         // rotates or scores over whole heads: ranks must not divide a head
  bool masks_rows = false;          // masks rows by place in the operand: where it masks, ranks must not divide them
  bool regroups = false;            // moves tokens into slots or back: a rank's rows are those of its own tokens
};

namespace op_traits {

using enum Source;
using enum OpClass;
using enum MovedBytes;

inline constexpr const char* kIsDerivative = "is a derivative itself";
inline constexpr const char* kHaveNoSlope = "ids have no slope";
inline constexpr const char* kAreCounts = "counts have no slope";
inline constexpr const char* kAfterLoss = "the loss does not depend on the update";
inline constexpr const char* kAddedLater = "strategies add it behind differentiation, with its counterpart";

// clang-format off
#define ROW(kind_, ...) OpTraits{.kind = OpKind::kind_, .name = #kind_, __VA_ARGS__}
inline constexpr std::array kTable{
    ROW(linear, .op_class = matrix_product, .reads = 0b011, .may_read = 0b100, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::linear_input_gradient, {dy, read1}, 0b1},
                             {OpKind::linear_weight_gradient, {read0, dy}, 0b10, true}}}, .bias = 2}, .linear = 0b1,
        .sums = true, .added = 0b100),
    ROW(linear_input_gradient, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .why_none = kIsDerivative,
        .linear = 0b1, .sums = true),
    ROW(linear_weight_gradient, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .accumulates = 0b1,
        .why_none = kIsDerivative, .linear = 0b11, .product = true, .sums = true),
    // Which factor of the derivative is transposed follows from whether b is.
    ROW(batched_matmul, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .accumulates = 0b1,
        .derivative = {.ops = {{{OpKind::batched_matmul, {dy, read1}, 0b1},
                             {OpKind::batched_matmul, {read0, dy}, 0b10}}}}, .linear = 0b11, .product = true,
        .sums = true),

    ROW(attention, .op_class = attention, .reads = 0b001, .may_read = 0b110, .writes = 0b11, .queries_read = 0,
        .derivative = {.ops = {{{OpKind::attention_backward, {dy, write0, write1, read0, read1, read2}, 0b111}}}},
        .whole_heads = true),
    ROW(attention_backward, .op_class = attention, .reads = 0b001111, .may_read = 0b110000, .writes = 0b001,
        .may_write = 0b110, .scratch = true, .queries_read = 3, .why_none = kIsDerivative, .linear = 0b1, .sums = true,
        .whole_heads = true),
    ROW(softmax, .reads = 0b1, .writes = 0b1, .in_place = true,
        .derivative = {.ops = {{{OpKind::softmax_backward, {dy, write0}, 0b1}}}}, .whole_rows = 0b1,
        .masks_rows = true),
    ROW(softmax_backward, .reads = 0b11, .writes = 0b1, .in_place = true, .why_none = kIsDerivative, .linear = 0b1,
        .whole_rows = 0b11),

    ROW(norm, .reads = 0b011, .may_read = 0b100, .writes = 0b11, .in_place = true, .bias_read = 2,
        .derivative = {.ops = {{{OpKind::norm_backward, {dy, read0, read1, write1}, 0b111}}}}),
    ROW(norm_backward, .reads = 0b1111, .writes = 0b001, .may_write = 0b110, .accumulates = 0b110, .in_place = true,
        .scratch = true, .bias_write = 2, .why_none = kIsDerivative, .linear = 0b1, .sums = true, .whole_rows = 0b11),
    ROW(rotary, .reads = 0b01, .may_read = 0b10, .writes = 0b1, .in_place = true,
        .derivative = {.ops = {{{OpKind::rotary_backward, {dy}, 0b11}}}}, .linear = 0b11, .whole_heads = true),
    ROW(rotary_backward, .reads = 0b1, .writes = 0b01, .may_write = 0b10, .in_place = true, .why_none = kIsDerivative,
        .linear = 0b1, .sums = true, .whole_heads = true),
    ROW(activation, .reads = 0b001, .may_read = 0b110, .writes = 0b1, .in_place = true, .functions = true,
        .bias_read = 1,
        .derivative = {.ops = {{{OpKind::activation_backward, {dy, read0, read1, read2}, 0b101}}},
                      .bias = 1, .bias_of_dx = true}),
    ROW(activation_backward, .reads = 0b0011, .may_read = 0b1100, .writes = 0b01, .may_write = 0b10, .in_place = true,
        .functions = true, .bias_read = 2, .why_none = kIsDerivative, .linear = 0b1, .sums = true),
    ROW(dropout, .reads = 0b1, .writes = 0b11, .in_place = true, .random = true,
        .derivative = {.ops = {{{OpKind::dropout_backward, {dy, write1}, 0b1}}}}, .linear = 0b1, .independent = 0b10),
    ROW(dropout_backward, .reads = 0b11, .writes = 0b1, .in_place = true, .why_none = kIsDerivative, .linear = 0b1),
    ROW(dropout_add, .reads = 0b011, .may_read = 0b100, .writes = 0b11, .in_place = true, .random = true,
        .bias_read = 2,
        .derivative = {.ops = {{{OpKind::dropout_backward, {dy, write1}, 0b1}}},
                      .passes = 0b10, .bias = 2, .bias_of_dx = true}),
    ROW(add, .reads = 0b001, .may_read = 0b110, .writes = 0b1, .in_place = true, .bias_read = 2,
        .derivative = {.passes = 0b11, .bias = 2}, .linear = 0b111, .takes_positions = 0b100),
    ROW(multiply, .reads = 0b11, .writes = 0b1, .in_place = true,
        .derivative = {.ops = {{{OpKind::multiply, {dy, read1}, 0b1}, {OpKind::multiply, {dy, read0}, 0b10}}}},
        .linear = 0b11, .product = true),
    ROW(bias_gradient, .reads = 0b1, .writes = 0b1, .accumulates = 0b1, .scratch = true, .why_none = kIsDerivative,
        .linear = 0b1, .sums = true, .gives_positions = 0b1),
    ROW(embedding, .moved = rows, .reads = 0b11, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::embedding_backward, {read0, dy}, 0b10, true}}}}, .sums = true,
        .takes_positions = 0b1),
    ROW(embedding_backward, .moved = rows, .reads = 0b11, .writes = 0b1, .accumulates = 0b1, .scratch = true,
        .why_none = kIsDerivative, .linear = 0b10, .sums = true),
    ROW(cross_entropy, .reads = 0b11, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::cross_entropy_backward, {read0, read1, write0}, 0b1}}}}, .sums = true),
    ROW(cross_entropy_backward, .reads = 0b111, .writes = 0b1, .in_place = true, .why_none = kIsDerivative),
    ROW(pool, .reads = 0b01, .may_read = 0b10, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::pool_backward, {dy}, 0b11}}}}, .linear = 0b11),
    ROW(pool_backward, .reads = 0b1, .writes = 0b01, .may_write = 0b10, .accumulates = 0b10, .why_none = kIsDerivative,
        .linear = 0b1, .sums = true),
    ROW(cast, .reads = 0b1, .writes = 0b1, .accumulates = 0b1, .derivative = {.ops = {{{OpKind::cast, {dy}, 0b1}}}},
        .linear = 0b1),
    ROW(zero_fill, .writes = 0b1, .of_update = true, .why_none = kAddedLater),
    ROW(merge_attention, .reads = 0b1111, .writes = 0b11, .why_none = kAddedLater),

    ROW(quantise, .reads = 0b01, .may_read = 0b10, .writes = 0b011, .may_write = 0b100, .in_place = true,
        .why_none = kAddedLater),
    ROW(dequantise, .reads = 0b11, .writes = 0b1, .accumulates = 0b1, .why_none = kAddedLater),
    ROW(requantise, .reads = 0b011, .may_read = 0b100, .writes = 0b011, .may_write = 0b100, .in_place = true,
        .why_none = kAddedLater),

    ROW(sparsify, .reads = 0b01, .may_read = 0b10, .writes = 0b011, .may_write = 0b100, .in_place = true,
        .why_none = kAddedLater),
    ROW(densify, .reads = 0b11, .writes = 0b1, .why_none = kAddedLater),
    ROW(orthogonalise, .reads = 0b1, .writes = 0b1, .in_place = true, .why_none = kAddedLater, .whole = true),

    ROW(route, .reads = 0b01, .may_read = 0b10, .writes = 0b11,
        .derivative = {.ops = {{{OpKind::route_backward, {dy, read0, write1}, 0b1}}}}, .whole_rows = 0b1),
    ROW(route_backward, .reads = 0b111, .writes = 0b1, .why_none = kIsDerivative, .linear = 0b1, .whole_rows = 0b10),
    ROW(hash_route, .reads = 0b1, .writes = 0b1, .why_none = kHaveNoSlope),
    ROW(permute, .reads = 0b11, .writes = 0b1, .scratch = true,
        .derivative = {.ops = {{{OpKind::unpermute, {dy, read1}, 0b1}}}}, .regroups = true),
    // Without weights its derivative is `permute` of dy by the choices.
    ROW(unpermute, .reads = 0b011, .may_read = 0b100, .writes = 0b1, .scratch = true,
        .derivative = {.ops = {{{OpKind::unpermute_backward, {dy, read0, read1, read2}, 0b101}}}}, .linear = 0b1,
        .sums = true, .regroups = true),
    ROW(unpermute_backward, .reads = 0b1111, .writes = 0b11, .scratch = true, .why_none = kIsDerivative, .linear = 0b10,
        .independent = 0b1, .sums = true, .regroups = true),
    ROW(permute_weights, .reads = 0b11, .writes = 0b1, .scratch = true,
        .derivative = {.ops = {{{OpKind::unpermute_weights, {dy, read1}, 0b1}}}}, .regroups = true),
    ROW(unpermute_weights, .reads = 0b11, .writes = 0b1, .scratch = true, .why_none = kIsDerivative, .linear = 0b1,
        .sums = true, .regroups = true),
    ROW(slot_mask, .reads = 0b01, .may_read = 0b10, .writes = 0b1, .scratch = true, .why_none = kAddedLater,
        .regroups = true),
    ROW(slot_mask_backward, .reads = 0b11, .writes = 0b1, .scratch = true, .why_none = kIsDerivative, .linear = 0b1,
        .sums = true, .regroups = true),
    ROW(mask_permute, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .why_none = kAddedLater,
        .regroups = true),
    ROW(mask_unpermute, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .why_none = kAddedLater,
        .linear = 0b1, .sums = true, .regroups = true),
    ROW(mask_gradient, .op_class = matrix_product, .reads = 0b11, .writes = 0b1, .why_none = kIsDerivative,
        .linear = 0b10, .sums = true, .regroups = true),
    ROW(add_noise, .reads = 0b11, .writes = 0b11, .random = true,
        .derivative = {.ops = {{{OpKind::multiply, {dy, write1}, 0b10}}}, .passes = 0b1}),
    ROW(expert_counts, .reads = 0b1, .writes = 0b1, .why_none = kAreCounts, .sums = true),
    ROW(router_loss, .reads = 0b01, .may_read = 0b10, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::router_loss_backward, {read0, read1}, 0b1}}}}, .whole_rows = 0b1),
    ROW(router_loss_backward, .reads = 0b01, .may_read = 0b10, .writes = 0b1, .why_none = kIsDerivative,
        .whole_rows = 0b1),

    ROW(gradient_norm, .reads = 0b1, .writes = 0b1, .scratch = true, .of_update = true, .why_none = kAfterLoss),
    ROW(scale, .reads = 0b001, .may_read = 0b110, .writes = 0b1, .in_place = true, .norm_read = 1,
        .why_none = kAddedLater, .linear = 0b1),
    ROW(subtract, .reads = 0b11, .writes = 0b1, .in_place = true, .why_none = kAddedLater, .linear = 0b11),
    ROW(square_sums, .reads = 0b1, .writes = 0b1, .scratch = true, .why_none = kAddedLater, .sums = true),
    ROW(moving_mean, .reads = 0b11, .writes = 0b1, .in_place = true, .why_none = kAfterLoss, .linear = 0b11),
    ROW(factored_update, .reads = 0b0011, .may_read = 0b1100, .writes = 0b1, .in_place = true, .why_none = kAfterLoss,
        .linear = 0b1),
    ROW(adam, .op_class = optimizer, .reads = 0b1111, .may_read = 0b10000, .writes = 0b0111, .may_write = 0b1000,
        .in_place = true, .of_update = true, .norm_read = 4, .why_none = kAfterLoss),
    ROW(sgd, .op_class = optimizer, .reads = 0b0011, .may_read = 0b1100, .writes = 0b001, .may_write = 0b110,
        .in_place = true, .of_update = true, .norm_read = 3, .why_none = kAfterLoss),

    ROW(all_reduce, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .accumulates = 0b1,
        .in_place = true, .why_none = kAddedLater),
    ROW(all_gather, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
    ROW(reduce_scatter, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .accumulates = 0b1,
        .why_none = kAddedLater),
    ROW(all_to_all, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
    ROW(redistribute, .op_class = collective, .moved = payload, .reads = 0b1, .may_read = 0b111110, .writes = 0b1,
        .derivative = {.ops = {{{OpKind::redistribute, {dy}, 0b1}}}}),
    ROW(broadcast, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
    ROW(reduce, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
    ROW(ring_shift, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
    ROW(send, .op_class = collective, .moved = payload, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),

    ROW(copy, .op_class = copy, .moved = source, .reads = 0b1, .writes = 0b1, .why_none = kAddedLater),
};
#undef ROW
// clang-format on

static_assert([] {
  for (std::size_t i = 0; i < kTable.size(); ++i)
    if (static_cast<std::size_t>(kTable[i].kind) != i) return false;
  return kTable.size() == static_cast<std::size_t>(OpKind::end);
}());

}  // namespace op_traits

inline constexpr int kOpKinds = static_cast<int>(op_traits::kTable.size());

// REQUIRES: kind < OpKind::end.
constexpr const OpTraits& traits_of(OpKind kind) { return op_traits::kTable[static_cast<std::size_t>(kind)]; }
constexpr const char* name_of(OpKind kind) { return traits_of(kind).name; }

// The index of the read that holds the queries. REQUIRES: attention or its derivative.
constexpr std::size_t queries_operand(OpKind k) { return static_cast<std::size_t>(traits_of(k).queries_read); }

constexpr bool is_matmul(OpKind k) { return traits_of(k).op_class == OpClass::matrix_product; }
constexpr bool is_attention(OpKind k) { return traits_of(k).op_class == OpClass::attention; }
constexpr bool is_optimizer(OpKind k) { return traits_of(k).op_class == OpClass::optimizer; }
constexpr int norm_operand(OpKind k) { return traits_of(k).norm_read; }
constexpr bool has_operand(OperandMask mask, std::size_t i) { return (mask >> i & 1u) != 0; }
constexpr bool is_quantiser(OpKind k) { return k >= OpKind::quantise && k <= OpKind::requantise; }
// Where a kernel with error feedback reads and writes its error.
constexpr std::size_t error_read(OpKind k) { return k == OpKind::requantise ? 2 : 1; }
inline constexpr std::size_t kErrorWrite = 2;
constexpr bool is_communication(OpKind k) { return traits_of(k).op_class == OpClass::collective; }
constexpr bool is_copy(OpKind k) { return traits_of(k).op_class == OpClass::copy; }
// Whether the op has kernels: it computes rather than moves data between ranks or memories.
constexpr bool is_computation(OpKind k) { return !is_communication(k) && !is_copy(k); }
// Whether Op::accumulate adds to the i-th write of `kind`.
constexpr bool accumulates(OpKind kind, std::size_t i) { return has_operand(traits_of(kind).accumulates, i); }

}  // namespace orrery
