// The ops of a rank: operands bound to memory, kernels, collectives.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "realrun/cpu/rank.h"
#include "sim/base/error.h"

namespace orrery::cpu {
namespace {

bool is_named(const Op& op, std::string_view name) { return name == op.name; }

// A part of a tensor along one dimension, in or out of the whole.
template <class Move>
void for_each_of_slice(const Tensor& whole, int dim, std::int64_t begin, std::int64_t size, Move move) {
  std::int64_t inner = 1, outer = 1;
  for (int d = dim + 1; d < whole.rank; ++d) inner *= whole.sizes[d];
  for (int d = 0; d < dim; ++d) outer *= whole.sizes[d];
  const std::int64_t inside =
      std::clamp<std::int64_t>(whole.sizes[dim] - begin, 0, size);  // a flat buffer's last shard reaches beyond it
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t i = 0; i < inside; ++i)
      for (std::int64_t e = 0; e < inner; ++e)
        move(static_cast<std::size_t>((o * whole.sizes[dim] + begin + i) * inner + e),
             static_cast<std::size_t>((o * size + i) * inner + e));
}

// The dimension along which a gather or scatter divides.
int divided_dimension(const Tensor& whole, const Tensor& part) {
  int found = -1;
  for (int d = 0; d < whole.rank; ++d)
    if (whole.sizes[d] != part.sizes[d]) {
      if (found >= 0)
        throw std::logic_error(std::string("a collective divides two dimensions of \"") + whole.name + "\"");
      found = d;
    }
  return std::max(found, 0);
}

}  // namespace

// A tensor of an op, dense in memory.
struct Rank::Operand {
  Tensor tensor;
  std::vector<float> copy;  // where the tensor itself is not dense, or is added to
  float* data = nullptr;
  bool copied = false;

  void own(std::size_t elements, float value) {
    copy.assign(elements, value);
    data = copy.data();
    copied = true;
  }
};

void Rank::execute(const Op& op, Instance& instance, std::int64_t micro_batch) {
  exchange_.at(position_.rank, name_of(op.phase), op.name, micro_batch);
  try {
    if (is_communication(op.kind)) {
      communicate(op, instance, micro_batch);
    } else if (is_copy(op.kind)) {
      unpack(instance, op.writes[0], micro_batch, pack(instance, op.reads[0], micro_batch), false);
    } else {
      kernel(op, instance, micro_batch);
    }
  } catch (const std::logic_error& error) {
    throw ExecutionError(describe(op, instance) + ": " + error.what());
  }
  if (!setup_.options.find_undefined) return;
  for (TensorId id : op.writes) {
    if (id == kNoTensor || is_named(op, "gradient_norm.all_reduce") || op.kind == OpKind::gradient_norm) continue;
    if (is_named(op, "replicated_gradients.all_reduce")) continue;
    for (const float x : pack(instance, id, micro_batch))
      if (std::isnan(x))
        throw ExecutionError(describe(op, instance) + " wrote NaN into \"" + instance.plan->piece->tensors[id].name +
                             "\": rank " + std::to_string(position_.rank) + ", micro-batch " +
                             std::to_string(micro_batch));
  }
}

void Rank::kernel(const Op& given, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const PiecePlan& plan = *instance.plan;
  const ExecutionOptions& options = setup_.options;
  Op op = given;
  op.accumulate = false;  // gradients are added to below, whichever op writes them

  if (op.kind == OpKind::gradient_norm) {  // every parameter of the model counts once
    const std::vector<float> values = pack(instance, plan.held_gradients, micro_batch);
    const std::int64_t held = static_cast<std::int64_t>(values.size());
    std::int64_t begin = -plan.shard_begin;
    std::size_t ordinal = instance.first_parameter;
    for (const ParameterGradient& p : piece.parameters) {
      const std::size_t own = ordinal++;
      const Tensor& t = piece.tensors[p.parameter];
      if (t.shared) continue;
      const WholeParameter& whole = setup_.parameters[own];
      const bool replicated = t.elements() == whole.tensor.elements();
      const bool elsewhere = whole.values_of != static_cast<std::int64_t>(own) || (replicated && position_.tp > 0);
      // Of ranks that share keys and values, the first counts them.
      const int fused = t.find(Axis::group_qkv), groups = t.find(Axis::groups);
      const bool shares = fused >= 0 && groups >= 0 && whole.tensor.sizes[groups] < position_.tp_degree &&
                          position_.tp % (position_.tp_degree / whole.tensor.sizes[groups]) != 0;
      std::int64_t inner = 1;
      for (int d = std::max(fused, 0) + 1; d < t.rank; ++d) inner *= t.sizes[d];
      for (std::int64_t e = 0; e < t.elements() && !elsewhere; ++e) {
        if (begin + e < 0 || begin + e >= held) continue;
        if (shares && e / inner % t.sizes[fused] >= t.sizes[fused] - 2) continue;
        const double g = values[static_cast<std::size_t>(begin + e)];
        squared_norm_ += g * g;
      }
      begin += t.elements();
    }
    return;
  }

  KernelContext context;
  context.seed = options.seed;
  context.round_to_bf16 = options.round_to_bf16;
  context.step = step_ + 1;
  context.learning_rate = options.learning_rate, context.beta1 = options.beta1, context.beta2 = options.beta2;
  context.epsilon = options.epsilon, context.weight_decay = options.weight_decay, context.momentum = options.momentum;
  context.gradient_scale = clip_;
  context.decoupled_weight_decay = setup_.scenario.plan.optimizer.rule != optimizer::Rule::adam;

  std::array<Operand, 6> in;
  std::array<Operand, 4> out;
  std::array<std::int64_t, 4> rows_begin{};  // of a part of a table of positions
  std::vector<std::int64_t> positions, key_positions;
  std::int64_t owner = -1;

  if (is_attention(op.kind) && position_.cp_degree > 1) {
    const bool backward = op.kind == OpKind::attention_backward;
    TensorId& keys = op.reads[backward ? 4 : 1];
    // What a step sees of the keys is up to the mask: half of them stand for half of the square.
    const Tensor& t = piece.tensors[keys];
    if (t.sizes[1] < static_cast<std::int64_t>(own_positions_.size())) keys = t.alias_of;
    owner = storage(instance, keys, micro_batch, false).owner;
    if (owner < 0) {
      owner = position_.cp;
      ring_causal_ = op.causal;
      ring_window_ = op.window;
    }
    op.causal = ring_causal_;
    op.window = ring_window_;
    positions = own_positions_;
    key_positions = position_.positions(owner);
  }
  if (op.kind == OpKind::rotary || op.kind == OpKind::rotary_backward)
    positions = sequence_positions(piece.tensors[op.reads[0]]);
  if (op.kind == OpKind::dropout || op.kind == OpKind::dropout_add) {
    positions = sequence_positions(piece.tensors[op.writes[0]]);
    place_dropout(given, instance, micro_batch, context);
  }
  if (op.kind == OpKind::softmax || op.kind == OpKind::softmax_backward)
    context.attention_scale = 1 / std::sqrt(static_cast<double>(setup_.scenario.model.head_dim));
  context.query_positions = positions;
  context.key_positions = key_positions;

  for (std::size_t i = 0; i < in.size(); ++i) {
    const TensorId id = op.reads[i];
    if (id == kNoTensor) continue;
    const Place place = resolve(instance, id);
    const View& view = place.instance->plan->views[place.id];
    Storage& s = storage(*place.instance, place.id, micro_batch, false);
    in[i].tensor = piece.tensors[id];
    if (view.dense()) {
      in[i].data = s.data.data() + view.offset;
    } else {
      in[i].own(0, 0);
      in[i].copy = pack(instance, id, micro_batch);
      in[i].data = in[i].copy.data();
    }
    if (in[i].tensor.rank == 2 && in[i].tensor.axes[0] == Axis::vocab)
      context.first_vocabulary_row = position_.tp * in[i].tensor.sizes[0];
  }
  const auto part_of_sequence = [&](Operand& operand, int dim,
                                    std::int64_t size) {  // this rank's part of what is whole
    if (operand.data == nullptr || operand.tensor.sizes[dim] == size) return;
    std::vector<float> part(static_cast<std::size_t>(operand.tensor.elements() / operand.tensor.sizes[dim] * size));
    for_each_of_slice(operand.tensor, dim, position_.tp * size, size,
                      [&](std::size_t whole, std::size_t at) { part[at] = operand.data[whole]; });
    operand.tensor.sizes[dim] = size;
    operand.copy = std::move(part);
    operand.data = operand.copy.data();
  };
  if (op.kind == OpKind::embedding) part_of_sequence(in[0], 1, piece.tensors[op.writes[0]].sizes[1]);
  if (op.kind == OpKind::add && op.reads[2] != kNoTensor && in[2].tensor.rank == 2 &&
      in[2].tensor.axes[0] == Axis::sequence)
    part_of_sequence(in[2], 0, in[0].tensor.sizes[1]);

  for (std::size_t i = 0; i < out.size(); ++i) {
    const TensorId id = op.writes[i];
    if (id == kNoTensor) continue;
    const Place place = resolve(instance, id);
    const View& view = place.instance->plan->views[place.id];
    Storage& s = storage(*place.instance, place.id, micro_batch, true);
    out[i].tensor = piece.tensors[id];
    Tensor& t = out[i].tensor;
    if (op.kind == OpKind::bias_gradient && t.rank == 2 && t.axes[0] == Axis::sequence &&
        in[0].tensor.sizes[1] < t.sizes[0]) {
      t.sizes[0] = in[0].tensor.sizes[1];
      rows_begin[i] = position_.tp * t.elements();
    }
    if (view.dense() && !adds(op, instance, id)) {
      out[i].data = s.data.data() + view.offset;
    } else {
      out[i].own(static_cast<std::size_t>(t.elements()), std::numeric_limits<float>::quiet_NaN());
    }
    if (t.rank == 2 && t.axes[0] == Axis::vocab) context.first_vocabulary_row = position_.tp * t.sizes[0];
  }
  const bool loss = op.kind == OpKind::cross_entropy || op.kind == OpKind::cross_entropy_backward;
  const bool divided_loss = loss && position_.tp_degree > 1 && in[0].tensor.axes[in[0].tensor.rank - 1] == Axis::vocab;
  if (loss) {
    if (divided_loss) context.first_vocabulary_row = position_.tp * in[0].tensor.sizes[in[0].tensor.rank - 1];
    context.loss_gradient = 1 / tokens(in[1].tensor);
  }

  std::array<Buffer, 6> reads;
  std::array<Buffer, 4> writes;
  for (std::size_t i = 0; i < in.size(); ++i) reads[i] = {in[i].data, &in[i].tensor};
  for (std::size_t i = 0; i < out.size(); ++i) writes[i] = {out[i].data, &out[i].tensor};
  run_kernel(op, reads, writes, context);

  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!out[i].copied) continue;
    const TensorId id = op.writes[i];
    const bool add = adds(op, instance, id);
    if (out[i].tensor.elements() == piece.tensors[id].elements()) {
      unpack(instance, id, micro_batch, out[i].copy, add);
    } else {
      const Place place = resolve(instance, id);
      const View& view = place.instance->plan->views[place.id];
      Storage& s = storage(*place.instance, place.id, micro_batch, true);
      for (std::size_t e = 0; e < out[i].copy.size(); ++e)
        s.data[static_cast<std::size_t>(view.at(rows_begin[i] + static_cast<std::int64_t>(e)))] += out[i].copy[e];
    }
  }
  if (op.kind == OpKind::cross_entropy && !divided_loss)
    note_loss(out[0].tensor, pack(instance, op.writes[0], micro_batch));
  if (position_.cp_degree == 1) return;
  // Gradients of keys belong to whom the keys belong to.
  if (op.kind == OpKind::attention_backward) storage(instance, op.writes[1], micro_batch, true).owner = owner;
  if (op.kind == OpKind::add && op.reads[1] != kNoTensor &&
      piece.tensors[op.writes[0]].category == Category::communication_buffer)
    storage(instance, op.writes[0], micro_batch, true).owner = storage(instance, op.reads[0], micro_batch, false).owner;
}

// Positions of the whole batch that a loss is the mean over, from the targets on this rank in one micro-batch.
double Rank::tokens(const Tensor& targets) const {
  const std::int64_t parts = targets.find(Axis::sequence) >= 0 ? position_.cp_degree : 1;
  const Mesh& mesh = program_.mesh;
  return static_cast<double>(targets.elements() * parts * program_.schedule.micro_batches *
                             mesh.size(MeshAxis::dp_shard) * mesh.size(MeshAxis::dp_replicate));
}

void Rank::note_loss(const Tensor& tensor, const std::vector<float>& statistics) {
  if (position_.tp > 0) return;  // all tensor-parallel ranks know the same
  const std::size_t n = statistics.size() / 3;
  Tensor targets = tensor;
  targets.sizes[0] = 1;
  double sum = 0;
  for (std::size_t t = 0; t < n; ++t)
    sum += static_cast<double>(statistics[t]) + std::log(static_cast<double>(statistics[n + t])) -
           static_cast<double>(statistics[2 * n + t]);
  losses_[static_cast<std::size_t>(step_)] += sum / tokens(targets);
}

std::shared_ptr<const std::vector<Deposit>> Rank::meet(const Op& op, MeshAxes axes, Deposit deposit) {
  return exchange_.meet(position_.rank, position_.group(axes), std::string(op.name) + ", " + name_of(op.phase),
                        std::move(deposit));
}

// Maximum, sum of exponentials relative to it, target's logit: of the parts of a divided vocabulary.
void Rank::merge_statistics(const std::vector<Deposit>& parts, std::vector<float>& out) const {
  const std::size_t n = parts[0].values.size() / 3;
  out.resize(3 * n);
  for (std::size_t t = 0; t < n; ++t) {
    double maximum = static_cast<double>(parts[0].values[t]), sum = 0, target = 0;
    for (const Deposit& p : parts) maximum = std::max(maximum, static_cast<double>(p.values[t]));
    for (const Deposit& p : parts) {
      sum += static_cast<double>(p.values[n + t]) * std::exp(static_cast<double>(p.values[t]) - maximum);
      target += static_cast<double>(p.values[2 * n + t]);
    }
    out[t] = static_cast<float>(maximum);
    out[n + t] = static_cast<float>(sum);
    out[2 * n + t] = static_cast<float>(target);
  }
}

void Rank::communicate(const Op& op, Instance& instance, std::int64_t micro_batch) {
  if (is_named(op, "gradient_norm.all_reduce")) return;  // once for all pieces: reduce_gradient_norm
  if (is_named(op, "replicated_gradients.all_reduce")) return reduce_replicated_gradients(op, instance);
  switch (op.kind) {
    case OpKind::all_reduce: {
      const auto all = meet(op, op.axes, {pack(instance, op.reads[0], micro_batch)});
      std::vector<float> result((*all)[0].values.size(), 0.0f);
      if (is_named(op, "cross_entropy.all_reduce")) {
        merge_statistics(*all, result);
        note_loss(instance.plan->piece->tensors[op.writes[0]], result);
      } else {
        for (const Deposit& d : *all)
          for (std::size_t e = 0; e < result.size(); ++e) result[e] += d.values[e];
      }
      unpack(instance, op.writes[0], micro_batch, result, false);
      return;
    }
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
      return all_gather_or_scatter(op, instance, micro_batch);
    case OpKind::ring_shift:
      return ring_shift(op, instance, micro_batch);
    default:
      throw std::logic_error("no strategy has lowered to this collective yet");
  }
}

void Rank::all_gather_or_scatter(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const Piece& piece = *instance.plan->piece;
  const bool gather = op.kind == OpKind::all_gather;
  const TensorId part_id = gather ? op.reads[0] : op.writes[0], whole_id = gather ? op.writes[0] : op.reads[0];
  const Tensor &part = piece.tensors[part_id], &whole = piece.tensors[whole_id];
  const auto all = meet(op, op.axes, {pack(instance, op.reads[0], micro_batch)});
  const int dim = divided_dimension(whole, part);
  const std::int64_t size = part.sizes[dim], ranks = static_cast<std::int64_t>(all->size());
  // Flat buffers are padded to a multiple of the ranks.
  if (size * ranks < whole.sizes[dim] || (whole.rank > 1 && size * ranks != whole.sizes[dim]))
    throw std::logic_error(std::to_string(ranks) + " parts of \"" + part.name + "\" do not make \"" + whole.name +
                           "\"");
  std::vector<float> result(static_cast<std::size_t>(gather ? whole.elements() : part.elements()), 0.0f);
  if (gather) {
    for (std::int64_t r = 0; r < ranks; ++r) {
      const std::vector<float>& values = (*all)[static_cast<std::size_t>(r)].values;
      for_each_of_slice(whole, dim, r * size, size, [&](std::size_t w, std::size_t p) { result[w] = values[p]; });
    }
    unpack(instance, op.writes[0], micro_batch, result, false);
    return;
  }
  const std::vector<std::size_t> members = position_.group(op.axes);
  const std::int64_t own = std::find(members.begin(), members.end(), position_.rank) - members.begin();
  for (const Deposit& d : *all)
    for_each_of_slice(whole, dim, own * size, size, [&](std::size_t w, std::size_t p) { result[p] += d.values[w]; });
  const bool in_place = instance.plan->views[part_id].root == instance.plan->views[whole_id].root;
  unpack(instance, op.writes[0], micro_batch, result, !in_place && adds(op, instance, op.writes[0]));
}

void Rank::ring_shift(const Op& op, Instance& instance, std::int64_t micro_batch) {
  const std::int64_t owner = storage(instance, op.reads[0], micro_batch, false).owner;
  const auto all = meet(op, op.axes, {pack(instance, op.reads[0], micro_batch), owner < 0 ? position_.cp : owner});
  const auto n = static_cast<std::int64_t>(all->size());
  if (instance.plan->piece->tensors[op.writes[0]].category == Category::communication_buffer) {
    const Deposit& from = (*all)[static_cast<std::size_t>((position_.cp + n - 1) % n)];
    unpack(instance, op.writes[0], micro_batch, from.values, false);
    storage(instance, op.writes[0], micro_batch, true).owner = from.tag;
    return;
  }
  for (const Deposit& d : *all)  // the last shift: home
    if (d.tag == position_.cp) return unpack(instance, op.writes[0], micro_batch, d.values, false);
  throw ExecutionError("no rank of the ring holds the gradients of rank " + std::to_string(position_.rank) + "'s keys");
}

// The packed buffer stands for these parts of the flat gradients, as far as this rank holds them.
void Rank::reduce_replicated_gradients(const Op& op, Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  const Piece& piece = *plan.piece;
  std::vector<bool> partial(static_cast<std::size_t>(plan.flat_elements), false);
  std::int64_t begin = 0;
  for (const ParameterGradient& p : piece.parameters) {
    if (piece.tensors[p.parameter].shared) continue;
    const std::int64_t n = piece.tensors[p.parameter].elements();
    const bool found = std::any_of(plan.partial_gradients.begin(), plan.partial_gradients.end(), [&](TensorId id) {
      return id == p.gradient || piece.tensors[id].alias_of == p.gradient;  // rows of a table of positions
    });
    if (found) std::fill_n(partial.begin() + begin, n, true);
    begin += n;
  }
  std::vector<float> values = pack(instance, plan.held_gradients, -1);
  Deposit packed;
  std::vector<std::size_t> at;
  for (std::size_t e = 0; e < values.size(); ++e) {
    const std::size_t flat = static_cast<std::size_t>(plan.shard_begin) + e;
    if (flat >= partial.size() || !partial[flat]) continue;
    at.push_back(e);
    packed.values.push_back(values[e]);
  }
  const auto all = meet(op, op.axes, std::move(packed));
  for (std::size_t i = 0; i < at.size(); ++i) {
    float sum = 0;
    for (const Deposit& d : *all) sum += d.values.at(i);
    values[at[i]] = sum;
  }
  unpack(instance, plan.held_gradients, -1, values, false);
}

}  // namespace orrery::cpu
