#include "realrun/kernel_shapes.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "realrun/routers.h"

namespace orrery {
namespace {

// Requires equally many elements in all of these operands.
void require_equal(const KernelCall& call, std::initializer_list<std::size_t> reads,
                   std::initializer_list<std::size_t> writes) {
  const Operand& first = call.write(*writes.begin());
  for (const std::size_t i : reads) call.require_same_elements(call.read(i), first);
  for (const std::size_t i : writes) call.require_same_elements(call.write(i), first);
}

void check_counts(const KernelCall& call, const Operand& counts, std::int64_t experts) {
  call.require(elements(counts) == counts.tensor->sizes[0] * experts, "counts are [batch, experts] or [1, experts]");
}

}  // namespace

void check_operands(const KernelCall& call) {
  switch (call.op.kind) {
    case OpKind::softmax:
      call.require(call.read(0).tensor->rank >= 2, "scores are [.., queries, keys]");
      return require_equal(call, {0}, {0});
    case OpKind::scale:
    case OpKind::cast:
    case OpKind::hash_route:
      return require_equal(call, {0}, {0});
    case OpKind::dropout:
      return require_equal(call, {0}, {0, 1});
    case OpKind::softmax_backward:
    case OpKind::dropout_backward:
    case OpKind::subtract:
      return require_equal(call, {0, 1}, {0});
    case OpKind::orthogonalise:
      call.require(last_size(call.read(0)) == last_size(call.write(0)), "matrices differ in their columns");
      return require_equal(call, {0}, {0});
    case OpKind::moving_mean:
      call.require(call.context.step >= 1, "steps count from 1");
      return require_equal(call, {0, 1}, {0});
    case OpKind::add_noise:
      return require_equal(call, {0, 1}, {0, 1});
    case OpKind::dropout_add:
      require_equal(call, {0, 1}, {0, 1});
      if (call.has_read(2)) call.require_repeats(call.read(2), call.write(0));
      return;
    case OpKind::add:
      require_equal(call, {0}, {0});
      if (call.has_read(1)) call.require_same_elements(call.read(1), call.write(0));
      if (call.has_read(2)) call.require_repeats(call.read(2), call.write(0));
      return;
    case OpKind::gradient_norm:
      return call.require(elements(call.write(0)) == 1, "the norm is one number");
    case OpKind::expert_counts: {
      const std::int64_t batch = call.write(0).tensor->sizes[0];
      check_counts(call, call.write(0), last_size(call.write(0)));
      return call.require(batch == 1 || call.read(0).tensor->sizes[0] == batch, "choices are of another batch");
    }
    case OpKind::router_loss:
    case OpKind::router_loss_backward: {
      const Operand& logits = call.read(0);
      if (call.has_read(1)) check_counts(call, call.read(1), last_size(logits));
      if (call.op.kind == OpKind::router_loss_backward) return call.require_same_elements(logits, call.write(0));
      return call.require(elements(call.write(0)) == 2 * (elements(logits) / last_size(logits)), "two losses a token");
    }
    default:
      return;
  }
}

NormShape norm_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::norm_backward;
  const Operand &x = call.read(backward ? 1 : 0), &weight = call.read(backward ? 2 : 1),
                &statistics = backward ? call.read(3) : call.write(1);
  NormShape s;
  s.length = last_size(x);
  s.vectors = elements(x) / s.length;
  s.width = last_size(weight);
  s.weight_rows = elements(weight) / s.width;
  call.require(s.width <= s.length, "the weight is wider than what it normalises");
  const std::int64_t per_vector = last_size(statistics);
  call.require((per_vector == 1 || per_vector == 2) && elements(statistics) == s.vectors * per_vector,
               "statistics do not fit");
  s.centred = per_vector == 2;
  if (const int d = x.tensor->find(Axis::group_qkv); d >= 1 && weight.tensor->rank > 1) {
    call.require(d == x.tensor->rank - 2, "a fused QKV is [.., groups, group_qkv, head_dim]");
    s.parts = x.tensor->sizes[d];
    s.groups = x.tensor->sizes[d - 1];
    call.require(weight.tensor->rank == 2 ? s.weight_rows == 2 : s.weight_rows == s.groups * (s.parts - 1),
                 "the weight has neither a row for queries and keys nor one for every head");
  } else {
    call.require(s.weight_rows == 1, "the weight is not a vector");
  }
  call.require_same_elements(x, call.write(0));
  if (!backward) {
    if (call.has_read(2)) call.require_same_elements(weight, call.read(2));
    return s;
  }
  call.require_same_elements(x, call.read(0));
  for (const std::size_t i : {1, 2})
    if (call.has_write(i)) call.require_same_elements(weight, call.write(i));
  return s;
}

namespace {

CodesShape codes_shape(const KernelCall& call, const Operand& codes, const Operand& scales) {
  const Tensor &c = *codes.tensor, &s = *scales.tensor;
  largest_code(call, codes);
  call.require(c.rank > 0 && s.rank == c.rank && s.dtype == Dtype::fp32, "scales are [rows.., groups] in fp32");
  const std::int64_t parts = c.axes[0] == Axis::contributions ? c.sizes[0] : 1;
  const CodesShape shape{parts, c.elements() / parts / last_size(codes), last_size(codes), last_size(scales)};
  call.require(s.elements() == parts * shape.rows * shape.groups && shape.groups <= shape.columns,
               "codes and scales differ in their rows");
  return shape;
}

// Sets the errors of a kernel with error feedback, if it has any.
template <class Shapes>
void take_errors(const KernelCall& call, Shapes& s) {
  if (call.has_read(error_read(call.op.kind))) s.error = call.read(error_read(call.op.kind));
  if (call.has_write(kErrorWrite)) s.new_error = call.write(kErrorWrite);
  call.require(s.error.data == nullptr || s.new_error.data != nullptr, "an error is read and not written");
  for (const Operand& e : {s.error, s.new_error})
    call.require(e.data == nullptr || elements(e) == s.numbers, "an error has a number for each number");
}

}  // namespace

float largest_code(const KernelCall& call, const Operand& codes) {
  if (codes.tensor->dtype == Dtype::int8) return 127;
  if (codes.tensor->dtype == Dtype::sign) return 1;
  if (codes.tensor->dtype == Dtype::fp8) return 448;
  call.require(codes.tensor->dtype == Dtype::int4, "codes are int8, int4, fp8 or sign");
  return 7;
}

QuantiserShapes quantiser_shapes(const KernelCall& call) {
  QuantiserShapes s{};
  if (call.op.kind != OpKind::quantise) s.read = codes_shape(call, call.read(0), call.read(1));
  if (call.op.kind != OpKind::dequantise) s.written = codes_shape(call, call.write(0), call.write(1));
  s.numbers = call.op.kind == OpKind::quantise     ? elements(call.read(0))
              : call.op.kind == OpKind::dequantise ? elements(call.write(0))
                                                   : s.read.codes();
  const std::int64_t codes = call.op.kind == OpKind::dequantise ? s.read.codes() : s.written.codes();
  call.require(call.op.kind == OpKind::requantise ? codes == s.numbers : codes >= s.numbers,
               "there are fewer codes than numbers");
  call.require(call.op.kind == OpKind::dequantise || s.written.parts == 1, "contributions are not written");
  if (call.op.kind != OpKind::dequantise) take_errors(call, s);
  return s;
}

SparseShape sparse_shape(const KernelCall& call) {
  const bool sparsifies = call.op.kind == OpKind::sparsify;
  const Operand &x = sparsifies ? call.read(0) : call.write(0), &values = sparsifies ? call.write(0) : call.read(0),
                &indices = sparsifies ? call.write(1) : call.read(1);
  const Tensor& v = *values.tensor;
  call.require(v.rank >= 2 && v.dtype == Dtype::fp32 && indices.tensor->dtype == Dtype::int32,
               "values are [.., groups, kept] in fp32, indices in int32");
  call.require_same_elements(values, indices);
  SparseShape s{.numbers = elements(x), .parts = 1, .groups = v.sizes[v.rank - 2], .kept = v.sizes[v.rank - 1]};
  s.parts = v.elements() / (s.groups * s.kept);
  call.require(s.kept <= s.group(), "more numbers are kept of a group than it has");
  constexpr std::int64_t kMostInGroup = 1 << 24;  // indices pass through fp32
  call.require(s.group() <= kMostInGroup, "a group has more than 2^24 numbers");
  call.require(!sparsifies || s.parts == 1, "contributions are not written");
  if (sparsifies) take_errors(call, s);
  return s;
}

UpdateOperands update_operands(const KernelCall& call) {
  const auto present = [&](std::span<const Operand> operands) {
    std::size_t n = 0;
    for (; n < operands.size() && operands[n].data != nullptr; ++n)
      call.require_same_elements(call.read(0), operands[n]);
    return n;
  };
  const std::size_t norm = static_cast<std::size_t>(norm_operand(call.op.kind));
  const std::size_t read = present(call.reads.first(std::min(norm, call.reads.size()))), written = present(call.writes);
  const bool is_adam = call.op.kind == OpKind::adam;
  // SGD without master weights reads the parameter, too: its reads are the gradient and everything written.
  const bool has_master = is_adam ? written == 4 : read == written;
  if (is_adam) {
    call.require(read == 4 && (written == 3 || written == 4), "expected gradient, weights and two moments");
    call.require(call.context.step >= 1, "steps count from 1");
  } else {
    call.require((read == 2 || read == 3) && (has_master || read == written + 1),
                 "expected gradient, weights and at most one moment");
  }
  const auto operand = [](std::span<const Operand> of, std::size_t count, std::size_t i) {
    return i < count ? of[i] : Operand{};
  };
  const std::size_t moments = has_master ? 2 : 1;
  return {.gradient = call.reads[0],
          .weight = call.reads[1],
          .moment = operand(call.reads, read, 2),
          .second_moment = operand(call.reads, read, 3),
          .parameter = call.writes[0],
          .master = has_master ? call.writes[1] : Operand{},
          .new_moment = operand(call.writes, written, moments),
          .new_second_moment = operand(call.writes, written, moments + 1)};
}

SgdRates sgd_rates(const KernelCall& call) {
  const Op& op = call.op;
  const KernelContext& c = call.context;
  call.require(!op.sign || (call.has_read(2) && !(op.learning_rate > 0)),
               "a step by signs needs a momentum, and has the rates of the run");
  if (!(op.learning_rate > 0)) return {c.learning_rate, c.momentum, c.weight_decay, 0, false, op.sign};
  call.require(!op.nesterov || call.has_read(2), "Nesterov's step needs a momentum");
  return {op.learning_rate, op.momentum, 0, op.clip_limit, op.nesterov, false};
}

const Operand* squared_norm(const KernelCall& call) {
  const auto at = static_cast<std::size_t>(norm_operand(call.op.kind));
  if (!call.has_read(at)) return nullptr;
  const std::int64_t norms = elements(call.read(at));
  call.require(norms == 1 || (call.op.kind == OpKind::scale && elements(call.read(0)) % norms == 0),
               "the norm is one number, or one for each part of what is scaled");
  call.require(call.op.divides ? call.op.learning_rate > 0 : call.op.clip_limit > 0,
               "gradients are clipped to a positive norm, or divided by one at a rate");
  return &call.read(at);
}

const Operand* sizes_of(const KernelCall& call) {
  constexpr std::size_t kSizes = 2;
  if (!call.has_read(kSizes)) return nullptr;
  const Operand& sizes = call.read(kSizes);
  call.require(elements(call.read(0)) % elements(sizes) == 0, "the sizes are not one for each part of what is scaled");
  return &sizes;
}

std::int64_t scale_parts(const KernelCall& call) {
  const Operand *const norms = squared_norm(call), *const sizes = sizes_of(call);
  call.require(norms == nullptr || sizes == nullptr || elements(*norms) == elements(*sizes),
               "there are as many norms as sizes");
  return norms != nullptr ? elements(*norms) : sizes != nullptr ? elements(*sizes) : 1;
}

SquaresShape squares_shape(const KernelCall& call) {
  const Operand &x = call.read(0), &y = call.write(0);
  call.require(elements(y) > 0 && elements(x) % elements(y) == 0, "squares do not fit their sums");
  SquaresShape s{elements(y), elements(x) / elements(y), 1};
  if (!call.op.transpose_a) return s;
  s.outer = 1;
  for (int d = 0; d < call.op.group_dims; ++d) s.outer *= x.tensor->sizes[d];
  call.require(elements(y) % s.outer == 0, "columns do not fit their groups");
  s.inner = elements(y) / s.outer;
  return s;
}

FactorsShape factors_shape(const KernelCall& call) {
  const Operand &gradient = call.read(0), &rows = call.read(1);
  call.require_same_elements(gradient, call.write(0));
  if (!call.has_read(2)) {
    call.require_same_elements(gradient, rows);
    return {1, elements(gradient), 0};
  }
  const std::int64_t groups = elements(call.read(3));
  const FactorsShape s{groups, elements(rows) / groups, elements(call.read(2)) / groups};
  call.require(groups * s.rows * s.columns == elements(gradient) && elements(rows) == groups * s.rows,
               "the factors do not fit the gradient");
  return s;
}

BiasShape bias_shape(const KernelCall& call) {
  const Operand &dy = call.read(0), &db = call.write(0);
  std::int64_t groups = 1;
  for (int d = 0; d < call.op.group_dims; ++d) {
    groups *= db.tensor->sizes[d];
    call.require(dy.tensor->sizes[d] == db.tensor->sizes[d], "operands differ in experts");
  }
  call.require_repeats(db, dy);
  return {groups, elements(dy) / elements(db), elements(db) / groups};
}

ActivationShape activation_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::activation_backward;
  const std::size_t of_x = backward ? 1 : 0, bias = of_x + 1, weights = of_x + 2;
  const Operand &x = call.read(of_x), &y = backward ? call.read(0) : call.write(0);
  const ActivationFunction f = call.op.function;
  ActivationShape s{elements(y), last_size(x), 1, elements(x) == 2 * elements(y)};
  call.require(s.gated || elements(x) == elements(y), "input and output do not fit");
  if (s.gated) {
    const bool can_gate = f == ActivationFunction::swiglu || f == ActivationFunction::geglu;
    call.require(can_gate && x.tensor->rank >= 2 && x.tensor->sizes[x.tensor->rank - 2] == 2,
                 "input is not [.., 2, ffn]");
  }
  call.require(static_cast<int>(f) <= static_cast<int>(ActivationFunction::relu2), "unknown function");
  if (call.has_read(bias)) {
    call.require_repeats(call.read(bias), x);
    s.period = elements(call.read(bias));
  }
  if (call.has_read(weights))
    call.require(elements(call.read(weights)) * s.width == s.elements, "the weights are not one for each row");
  if (!backward) return s;
  call.require_same_elements(x, call.write(0));
  if (call.has_write(1)) call.require_same_elements(call.read(weights), call.write(1));
  return s;
}

double kept_scale(const KernelCall& call) {
  const double p = call.op.probability;
  call.require(p >= 0 && p < 1, "a dropout probability is in [0, 1)");
  return 1 / (1 - p);
}

Multiply multiply_form(const KernelCall& call) {
  const Operand &a = call.read(0), &b = call.read(1), &y = call.write(0);
  const auto is_column = [&](const Operand& o) {
    return last_size(o) == 1 && elements(o) * last_size(a) == elements(a) && elements(o) != elements(a);
  };
  if (!is_column(b)) {
    call.require_same_elements(a, b);
    if (is_column(y)) {
      call.require(!call.op.divides, "a sum of quotients");
      return Multiply::inner_products;
    }
  }
  call.require_same_elements(a, y);
  return is_column(b) ? Multiply::rows : Multiply::elements;
}

TableShape table_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::embedding_backward;
  const Operand &ids = call.read(0), &table = backward ? call.write(0) : call.read(1),
                &y = backward ? call.read(1) : call.write(0);
  call.require(table.tensor->rank >= 2, "a table is [rows, width..]");
  const std::int64_t rows = table.tensor->sizes[0], width = elements(table) / rows;
  call.require(elements(y) == elements(ids) * width, "the output is not a row of the table for each id");
  return {rows, width, table.tensor->find(Axis::vocab) >= 0 ? call.context.first_vocabulary_row : 0};
}

LogitShape logit_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::cross_entropy_backward;
  const Operand &logits = call.read(0), &targets = call.read(1);
  const std::int64_t tokens = elements(targets), columns = last_size(logits);
  call.require(elements(logits) == tokens * columns, "logits are not [tokens.., vocabulary]");
  call.require(elements(backward ? call.read(2) : call.write(0)) == 3 * tokens, "statistics are not [3, tokens..]");
  if (backward) call.require_same_elements(logits, call.write(0));
  return {tokens, columns, logits.tensor->find(Axis::vocab) >= 0 ? call.context.first_vocabulary_row : 0};
}

PoolShape pool_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::pool_backward;
  const Operand &x = backward ? call.write(0) : call.read(0), &y = backward ? call.read(0) : call.write(0);
  const Tensor &large = *x.tensor, &small = *y.tensor;
  call.require(large.rank == 3 && small.rank == 3, "pooling is between [batch, sequence, hidden]");
  PoolShape s{};
  s.width = last_size(x);
  call.require(last_size(y) == s.width, "widths do not fit");
  s.pooled = elements(y) / last_size(y);
  call.require(s.pooled > 0 && elements(x) % (s.pooled * s.width) == 0, "vectors do not divide evenly");
  s.each = elements(x) / (s.pooled * s.width);
  // With several windows there is no first token.
  s.mean = call.context.pool_mean || large.sizes[0] != small.sizes[0];
  return s;
}

PrependShape prepend_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::pool_backward;
  const Operand &x = backward ? call.write(0) : call.read(0), &y = backward ? call.read(0) : call.write(0),
                &vector = backward ? call.write(1) : call.read(1);
  const std::int64_t batch = y.tensor->sizes[0], width = elements(vector);
  call.require(x.tensor->rank == 3 && y.tensor->rank == 3 && last_size(x) == width && last_size(y) == width &&
                   x.tensor->sizes[0] == batch && elements(y) == elements(x) + batch * width,
               "a vector does not fit before each sequence");
  return {batch, width, elements(x) / batch};
}

RouterShape router_shape(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::route_backward;
  const Operand &logits = call.read(backward ? 1 : 0), &choices = backward ? call.read(2) : call.write(1),
                &weights = backward ? call.read(0) : call.write(0);
  const Router& router = call.op.router;
  const std::int64_t experts = last_size(logits), k = last_size(choices), tokens = elements(choices) / k;
  call.require(k >= 1 && k <= experts && elements(logits) == tokens * experts, "logits and choices do not fit");
  call.require_same_elements(weights, choices);
  const int groups = router.groups;
  call.require(groups == 0 || (experts % groups == 0 && router.best_groups >= 1 && router.best_groups <= groups),
               "experts do not divide into the groups");
  if (backward) {
    call.require_same_elements(call.write(0), logits);
    return {tokens, experts, k};
  }
  if (call.has_read(1)) {
    call.require(router.gumbel_temperature <= 0, "a gate with noise has no bias");
    call.require(elements(call.read(1)) == experts, "the bias is not one for each expert");
  }
  if (router.type == RouterType::base) call.require(k == 1, "an auction gives a token one expert");
  if (router.type == RouterType::expert_choice) {
    call.require(k == experts, "experts choose: there is a place for each");
    call.require(seats_of_expert(tokens, router.choices, experts) >= 1, "experts choose nothing");
  }
  return {tokens, experts, k};
}

SlotsShape slots_shape(const KernelCall& call) {
  const OpKind kind = call.op.kind;
  const bool backward = kind == OpKind::unpermute_backward,
             is_mask = kind == OpKind::slot_mask || kind == OpKind::slot_mask_backward,
             by_row = kind == OpKind::permute_weights || kind == OpKind::unpermute_weights;
  const bool writes_rows = kind == OpKind::permute || kind == OpKind::permute_weights || kind == OpKind::slot_mask;
  const Operand &rows = writes_rows ? call.write(0) : call.read(backward ? 1 : 0),
                &choices = call.read(kind == OpKind::slot_mask ? 0
                                     : backward                ? 2
                                                               : 1);
  const Tensor& t = *rows.tensor;
  SlotsShape s{};
  s.choices = &choices;
  s.k = last_size(choices);
  s.tokens = elements(choices) / s.k;
  if (is_mask) call.require(t.rank >= 3, "a mask is [tokens.., experts, slots]");
  if (by_row) call.require(t.rank == 2, "weights by row are [experts, slots]");
  if (!is_mask && !by_row) call.require(t.rank == 3, "rows are [experts, slots, width]");
  const int d = is_mask ? t.rank - 2 : 0;
  s.experts = t.sizes[d];
  s.slots = t.sizes[d + 1];
  s.width = is_mask || by_row ? 1 : last_size(rows);
  s.divided = !t.over[d].empty();
  if (is_mask) call.require(elements(rows) == s.tokens * s.rows(), "a mask is of all tokens and rows");
  if (!is_mask && !by_row) {
    const Operand& x = kind == OpKind::unpermute ? call.write(0) : call.read(0);
    call.require(elements(x) == s.tokens * s.width && last_size(x) == s.width, "rows are not as wide as tokens");
  }
  // These operands have a number for each choice.
  if (kind == OpKind::permute_weights) call.require_same_elements(call.read(0), choices);
  if (kind == OpKind::unpermute_weights || kind == OpKind::slot_mask_backward)
    call.require_same_elements(call.write(0), choices);
  if (kind == OpKind::unpermute && call.has_read(2)) call.require_same_elements(call.read(2), choices);
  if (kind == OpKind::slot_mask && call.has_read(1)) call.require_same_elements(call.read(1), choices);
  if (backward) {
    call.require_same_elements(call.read(3), choices);
    call.require_same_elements(call.write(1), choices);
    call.require_same_elements(call.write(0), rows);
  }
  const std::size_t copies = call.context.expert_of_slot.size();
  call.require(copies == 0 || static_cast<std::int64_t>(copies) == s.experts, "copies of experts are not the rows'");
  return s;
}

AttentionSizes attention_sizes(const KernelCall& call) {
  const bool backward = call.op.kind == OpKind::attention_backward;
  const std::size_t at_q = queries_operand(call.op.kind);
  AttentionSizes s{};
  s.fused = !call.has_read(at_q + 1);
  s.q = &call.read(at_q);
  s.kv = s.fused ? s.q : &call.read(at_q + 1);
  s.context = backward ? &call.read(1) : &call.write(0);
  s.lse = backward ? &call.read(2) : &call.write(1);
  for (const Operand* o : {s.q, s.context, s.kv})
    call.require(o->tensor->rank == 5, "queries, keys and contexts are [batch, sequence, groups, heads, head_dim]");
  const auto &q = s.q->tensor->sizes, &k = s.kv->tensor->sizes, &c = s.context->tensor->sizes;
  s.batch = q[0];
  s.queries = q[1];
  s.groups = q[2];
  s.heads = q[3] - (s.fused ? 2 : 0);
  s.keys = k[1];
  s.key_width = q[4];
  s.value_width = c[4];
  s.key_begin = s.fused ? s.heads * s.key_width : 0;
  s.value_begin = s.key_begin + s.key_width;
  s.scale = 1 / std::sqrt(static_cast<double>(s.key_width));
  call.require(c[0] == s.batch && c[1] == s.queries && c[2] == s.groups && c[3] == s.heads,
               "the context does not fit the queries");
  call.require(s.heads >= 1 && k[0] == s.batch && k[2] == s.groups && k[3] * k[4] == s.value_begin + s.value_width &&
                   (k[4] == s.key_width || k[3] == 1),
               "keys and values do not fit the queries and the context");
  call.require(elements(*s.lse) == s.rows(), "the log-sum-exps do not fit the queries");
  if (!backward) return s;
  call.require_same_elements(call.read(0), *s.context);
  call.require_same_elements(call.write(0), *s.q);
  if (s.fused) return s;
  const Tensor& dkv = *call.write(1).tensor;  // a ring step may use only the first of a rank's keys
  const auto& d = dkv.sizes;
  call.require(dkv.rank == 5 && d[1] >= k[1] && d[0] == k[0] && d[2] == k[2] && d[3] == k[3] && d[4] == k[4],
               "the gradient of the keys does not fit the keys");
  return s;
}

MergeShape merge_shape(const KernelCall& call) {
  const Operand &context = call.write(0), &lse = call.write(1);
  call.require(context.tensor->rank == 5, "a context is [batch, sequence, groups, heads, head_dim]");
  for (const std::size_t i : {0, 2}) call.require_same_elements(call.read(i), context);
  for (const std::size_t i : {1, 3}) call.require_same_elements(call.read(i), lse);
  const auto& c = context.tensor->sizes;
  const MergeShape s{c[0], c[1], c[2] * c[3], c[4]};
  call.require(elements(lse) == s.batch * s.sequence * s.heads, "the log-sum-exps do not fit the context");
  return s;
}

bool shares_key(const KernelCall& call) {
  return call.op.kind == OpKind::rotary ? call.has_read(1) : call.has_write(1);
}

RotaryShape rotary_shape(const KernelCall& call) {
  const auto check_heads = [&](const Tensor& t) {
    call.require(t.rank == 5 && t.find(Axis::sequence) == 1,
                 "rotary tensors are [batch, sequence, groups, heads, head_dim]");
  };
  const bool forward = call.op.kind == OpKind::rotary, shared = shares_key(call);
  const Operand& x = shared && !forward ? call.write(0) : call.read(0);
  const Tensor& t = *x.tensor;
  check_heads(t);
  RotaryShape s{t.sizes[0],           t.sizes[1], t.sizes[2] * t.sizes[3],     t.sizes[3], t.sizes[4],
                call.op.rotary_begin, 0,          t.find(Axis::group_qkv) >= 0};
  if (shared) {
    const Operand &key = forward ? call.read(1) : call.write(1), &whole = forward ? call.write(0) : call.read(0);
    check_heads(*whole.tensor);
    s.turned = last_size(whole) - s.width;
    call.require(elements(key) == s.batch * s.length * s.turned && last_size(key) == s.turned &&
                     elements(whole) == elements(x) + s.vectors * elements(key) && s.begin <= s.width,
                 "the shared key does not fit the heads");
  } else {
    call.require_same_elements(x, call.write(0));
    s.turned = s.width - s.begin;
  }
  call.require(s.turned > 0 && s.turned % 2 == 0, "rotary embeddings rotate pairs");
  const std::size_t positions = call.context.query_positions.size();
  call.require(positions == 0 || static_cast<std::int64_t>(positions) == s.length,
               "there is not a position for every token");
  return s;
}

LinearShape linear_shape(const KernelCall& call) {
  const bool of_weight = call.op.kind == OpKind::linear_weight_gradient,
             of_input = call.op.kind == OpKind::linear_input_gradient;
  const Operand &first = call.read(0), &second = call.read(1), &result = call.write(0);
  const Tensor &w = *(of_weight ? result : second).tensor, &x = *(of_input ? result : first).tensor,
               &y = *(of_weight  ? second
                      : of_input ? first
                                 : result)
                         .tensor;
  const int inner = call.op.inner_dims, group_dims = call.op.group_dims;
  call.require(inner >= 1 && group_dims + inner <= w.rank, "inner_dims does not fit the weight");
  LinearShape s{1, 0, 1, 1};
  for (int d = group_dims; d < w.rank; ++d) {
    const bool is_k = call.op.transposed_weight ? d >= w.rank - inner : d < group_dims + inner;
    (is_k ? s.k : s.n) *= w.sizes[d];
  }
  for (int d = 0; d < group_dims; ++d) {
    s.groups *= w.sizes[d];
    for (const Tensor* t : {&x, &y})
      call.require(d < t->rank && t->sizes[d] == w.sizes[d], "operands differ in experts");
  }
  const auto rows = [&](const Tensor& t, std::int64_t columns) {
    call.require(columns > 0 && s.groups > 0 && t.elements() % (columns * s.groups) == 0,
                 "a tensor's trailing dimensions are not those of the weight");
    return t.elements() / (columns * s.groups);
  };
  s.tokens = rows(x, s.k);
  call.require(rows(y, s.n) == s.tokens, "input and output differ in tokens");
  if (call.op.kind == OpKind::linear && call.has_read(2))
    call.require(elements(call.read(2)) == s.groups * s.n, "the bias is not as wide as the output");
  return s;
}

MaskProductShape mask_product_shape(const KernelCall& call) {
  const bool permutes = call.op.kind == OpKind::mask_permute, gradient = call.op.kind == OpKind::mask_gradient;
  const Operand &rows = permutes ? call.write(0) : call.read(gradient ? 1 : 0),
                &mask = gradient ? call.write(0) : call.read(1),
                &x = permutes || gradient ? call.read(0) : call.write(0);
  const Tensor &r = *rows.tensor, &m = *mask.tensor;
  const std::int64_t width = last_size(x);
  const MaskProductShape s{elements(x) / width, elements(rows) / width, width};
  call.require(r.rank == 3 && r.sizes[2] == width && m.rank >= 3, "rows are not as wide as tokens");
  call.require(
      m.sizes[m.rank - 2] == r.sizes[0] && m.sizes[m.rank - 1] == r.sizes[1] && m.elements() == s.tokens * s.rows,
      "a mask is of all tokens and rows");
  return s;
}

BatchedShape batched_shape(const KernelCall& call) {
  const Tensor &a = *call.read(0).tensor, &b = *call.read(1).tensor, &c = *call.write(0).tensor;
  const int rank = a.rank;
  call.require(rank >= 2 && b.rank == rank && c.rank == rank, "operands differ in rank");
  const auto size = [rank](const Tensor& t, bool transposed, int from_last) {
    return t.sizes[rank - (transposed ? 3 - from_last : from_last)];
  };
  const bool of_a = call.op.transpose_a, of_b = call.op.transpose_b;
  BatchedShape s{c.sizes[rank - 2], c.sizes[rank - 1], size(a, of_a, 1), rank - 2, {}};
  call.require(size(a, of_a, 2) == s.m && size(b, of_b, 1) == s.n && size(b, of_b, 2) == s.k, "matrices do not fit");
  for (int d = 0; d < s.batch_dims; ++d) {
    const std::int64_t n = s.batch[static_cast<std::size_t>(d)] = std::max({a.sizes[d], b.sizes[d], c.sizes[d]});
    for (const Tensor* t : {&a, &b, &c})
      call.require(t->sizes[d] == n || t->sizes[d] == 1, "batch dimensions do not fit");
    call.require(std::max(a.sizes[d], b.sizes[d]) == n, "the result repeats along a batch dimension");
  }
  return s;
}

}  // namespace orrery
