#include "strategies/data_parallel/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/data_parallel/gather_order.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/local_updates/local_updates.h"

namespace orrery::data_parallel {

void add_shard_digits(std::int64_t end, std::int64_t in_node, const char* name, Mesh& mesh) {
  const std::int64_t there = mesh.size(MeshAxis::dp_shard);
  if (end % there != 0) return;
  const bool cut = in_node > there && in_node < end && in_node % there == 0 && end % in_node == 0;
  const std::int64_t inner = cut ? in_node / there : 1;
  mesh.add(MeshAxis::dp_shard, inner, name);
  mesh.add(MeshAxis::dp_shard, end / there / inner, name);
}

bool reduces_in_every_micro_batch(const Scenario& scenario, std::int64_t micro_batches) {
  const Options& options = scenario.plan.data;
  if (options.zero_stage >= 2 && micro_batches == 1) return true;
  if (options.reduce_gradients != Reduction::automatic) return options.reduce_gradients == Reduction::every_micro_batch;
  return options.zero_stage >= 2 && framework::reduces_shards_in_every_micro_batch(scenario.plan);
}

bool keeps_weights_quantised(const Scenario& scenario, const Plan& layers) {
  const Options& options = scenario.plan.data;
  return (options.fp8_param_gather && layers.precision.mix == precision::Mix::fp8) ||
         (options.fp4_param_gather && layers.precision.mix == precision::Mix::nvfp4);
}

bool keeps_parts_of_gradients(const Scenario& scenario, std::int64_t micro_batches) {
  return scenario.plan.data.zero_stage >= 1 && reduces_in_every_micro_batch(scenario, micro_batches);
}

namespace {

// Ops to insert before other ops of a block.
struct Insertion {
  std::size_t before = 0;
  Op op;
};
void insert(std::vector<Insertion>& insertions, Block& block) {
  std::ranges::stable_sort(insertions, {}, &Insertion::before);
  std::vector<Op> ops;
  ops.reserve(block.ops.size() + insertions.size());
  auto next = insertions.begin();
  for (std::size_t i = 0; i < block.ops.size(); ++i) {
    for (; next != insertions.end() && next->before == i; ++next) ops.push_back(next->op);
    ops.push_back(block.ops[i]);
  }
  block.ops.swap(ops);
}

// Lays out one parameter set.
class Shard {
 public:
  Shard(const Sharding& sharding, const Options& options, double bucket_bytes, const Mesh& mesh, Piece& piece,
        ParameterSet& set)
      : s_(sharding),
        over_(sharding.over),
        options_(options),
        bucket_bytes_(bucket_bytes),
        mesh_(mesh),
        piece_(piece),
        set_(set),
        whole_parameters_(set.parameters),
        whole_gradients_(set.gradients) {
    const MeshGroup gradients = over_.gradients.empty() ? over_.weights : over_.gradients;
    if (!gradients.contains(over_.weights) || !over_.states.contains(gradients) ||
        !(over_.gradients.empty() || s_.reduced == over_.gradients) || !s_.ranks.contains(s_.reduced | over_.states))
      throw std::logic_error("parameter sets are divided over groups of which none holds the other");
    levels_ = {over_.weights, gradients.without(over_.weights), over_.states.without(gradients)};
  }

  void run() {
    set_.over = over_;
    if (set_.frozen()) {
      divide_parameters();
      if (!over_.weights.empty() && !in_turn()) gather_parameters_in_blocks();
      return;
    }
    divide_states();
    divide_parameters();
    divide_gradients();
    for (Op& op : piece_.update.ops) {
      // Every micro-batch adds to everything held, so all of it starts from zero.
      replace(op, whole_gradients_, op.kind == OpKind::zero_fill ? set_.gradients : set_.own_gradients);
      replace(op, whole_parameters_, set_.own_parameters);
      if (op.stages.has_value() && set_.gradients != whole_gradients_) sum_what_is_held(op);
    }
    if (!over_.weights.empty() && !in_turn()) gather_parameters_in_blocks();
    if (set_.own_parameters != set_.parameters) gather_updated_parameters();
    reduce_gradients();
  }

  // For ops of the forward, or of the backward if it does not reuse what the forward has gathered.
  TensorId gather_for(Block& block, const GatheredCopy& ops, std::vector<Insertion>& insertions) {
    const bool second = &block != &piece_.forward && set_.secondary != kNoTensor;
    Gathers gathers{.ops = {}, .at_first_use = {}, .prefetch = ops.ahead ? 1 : 0};
    const TensorId copy = gathered(block, ops.first, ops.end, second ? set_.secondary : set_.parameters,
                                   second ? over_.secondary : over_.weights, gathers);
    for (const Op& op : gathers.ops) insertions.push_back({ops.issued, op});
    for (const Op& op : gathers.at_first_use) insertions.push_back({ops.first, op});
    if (&block == &piece_.forward && !over_.secondary.empty() && set_.secondary == kNoTensor)
      insertions.push_back({ops.first, secondary_of(copy)});
    return copy;
  }
  void keep_for_backward(TensorId copy) {
    rename_parameters(piece_.backward, 0, piece_.backward.ops.size(), copy);
    rename_parameters(piece_.weight_gradient, 0, piece_.weight_gradient.ops.size(), copy);
  }
  TensorId whole_parameters() const { return whole_parameters_; }

 private:
  // Divides a flat buffer over `group` instead of its present division. All parts consist of equal units, as many as
  // the states have parts; the last parts may reach beyond the buffer.
  void divide(Tensor& flat, MeshGroup group) const {
    if (flat.over[0].group() == group) return;
    std::int64_t minor = 1;
    for (const MeshGroup level : levels_)
      if (!group.contains(level)) minor *= mesh_.size(level);
    const std::int64_t units = mesh_.size(over_.states), whole = piece_.tensors[whole_parameters_].sizes[0];
    flat.sizes[0] = (whole + units - 1) / units * minor;
    for (const MeshGroup level : levels_)
      if (group.contains(level) && !flat.over[0].group().contains(level)) flat.over[0].append(level);
  }
  // Returns a part of `flat`, divided over `group` in addition to its present division: as a new buffer, or as a view.
  TensorId part(TensorId flat, MeshGroup group, const char* name, bool view) {
    Tensor t = piece_.tensors[flat];
    divide(t, group);
    t.name = name;
    if (view) {
      t.alias_of = flat;
      t.resident = false;
    }
    return piece_.add(t);
  }

  void divide_states() {
    for (const Op& op : piece_.update.ops) {
      if (!is_optimizer(op.kind) || op.reads[0] != whole_gradients_) continue;
      for (const TensorId id : op.writes)
        if (id != kNoTensor && piece_.tensors[id].category == Category::optimizer_state)
          divide(piece_.tensors[id], over_.states);
    }
  }

  void divide_parameters() {
    if (!over_.weights.empty()) {
      set_.parameters = part(whole_parameters_, over_.weights, "parameter_shard", false);
      if (s_.fp32_weights) piece_.tensors[set_.parameters].dtype = Dtype::fp32;
      piece_.tensors[whole_parameters_].resident = false;
    }
    set_.own_parameters = set_.parameters;
    if (over_.states != over_.weights)
      set_.own_parameters = part(set_.parameters, over_.states, "parameter_shard", true);
  }

  // A sum that is taken in every micro-batch is added to the sums of earlier ones, in a separate buffer.
  void divide_gradients() {
    if (!s_.reduced.empty()) {
      set_.gradients = part(whole_gradients_, over_.gradients, "reduced_gradients", false);
      piece_.tensors[whole_gradients_].resident = false;
    }
    set_.own_gradients = set_.gradients;
    if (over_.states != over_.gradients)
      set_.own_gradients = part(set_.gradients, over_.states, "gradient_shard", true);
  }

  // Sums over stages work on reduced gradients: all of them for a set that is divided, the same part for another set.
  void sum_what_is_held(Op& op) {
    const Tensor& gradient = piece_.tensors[op.reads[0]];
    if (gradient.alias_of != whole_gradients_) return;
    TensorId held = set_.gradients;
    if (over_.gradients.empty()) {
      Tensor view = gradient;
      view.alias_of = set_.gradients;
      held = piece_.add(view);
    }
    op.reads[0] = op.writes[0] = held;
  }

  static void replace(Op& op, TensorId from, TensorId to) {
    std::replace(op.reads.begin(), op.reads.end(), from, to);
    std::replace(op.writes.begin(), op.writes.end(), from, to);
  }

  // Runs a reduction on the data-communication stream once per bucket. A bucket holds several small layers or a part of
  // a large one.
  void bucketed(OpKind kind, const char* name, MeshGroup group, TensorId from, TensorId to, When when,
                bool accumulate) {
    Op op = communication(kind, name, Phase::weight_gradient, Stream::data_communication, group, from, to);
    op.accumulate = accumulate;
    op.when = when;
    if (s_.pieces.any() && kind == OpKind::all_reduce && when == When::last_micro_batch && in_pieces(op)) return;
    const bool in_every_micro_batch = !s_.reduced.empty();
    const auto bytes = static_cast<double>(piece_.tensors[whole_gradients_].bytes());  // fills the buckets
    // Gradients of one micro-batch are never whole for longer than a bucket: without overlap the backward waits.
    if (!options_.overlap_gradients && in_every_micro_batch) {
      op.account = op.stream;
      op.stream = Stream::compute;
    }
    if (options_.overlap_gradients || in_every_micro_batch) {
      if (bucket_bytes_ == 0 || (in_every_micro_batch && bytes < bucket_bytes_)) {
        // One collective per piece: FSDP's wrapped unit. A buffer that does not stay whole does not wait for a bucket.
      } else if (bytes >= bucket_bytes_) {
        // DeepSpeed reduces tensors larger than a bucket separately.
        if (!in_turn() || !in_every_micro_batch) op.count = buckets_of(bytes);
      } else {
        op.every = static_cast<std::uint16_t>(std::clamp(bucket_bytes_ / std::max(bytes, 1.0), 1.0, 60000.0));
      }
      // After the weight gradients, which zero-bubble schedules run separately.
      Block& block = piece_.weight_gradient.ops.empty() ? piece_.backward : piece_.weight_gradient;
      block.ops.insert(block.ops.begin() + reduced_before(block, from), op);
    } else {
      op.when = When::every_micro_batch;
      op.phase = Phase::update;
      op.every = kAllInstances;
      piece_.update.ops.insert(piece_.update.ops.begin() + reductions_before_update_++, op);
    }
  }

  // Each bucket is one collective, and an evaluation stores those of all layers at once.
  std::uint16_t buckets_of(double bytes) const {
    constexpr double kMost = 10'000;
    if (bytes > kMost * bucket_bytes_)
      throw InputError({"", "/plan/bucket_bytes"}, fmt::format("{:.0f}", bucket_bytes_),
                       fmt::format("at least {:.0f}: a piece's {:.0f} bytes of gradients in up to {} buckets",
                                   std::ceil(bytes / kMost), bytes, kMost));
    return static_cast<std::uint16_t>(std::max(bytes / bucket_bytes_ + 0.5, 1.0));
  }

  // Issues the reduction in pieces if the block has experts' exchanges on a separate stream; the first half are
  // dispatches. The gradients of the instance before are complete then, as this instance's kernels come later.
  bool in_pieces(const Op& whole) {
    std::vector<std::size_t> exchanges;
    Block& block = piece_.backward;
    for (std::size_t i = 0; i < block.ops.size(); ++i)
      if (const Op& op = block.ops[i]; op.stream == Stream::expert_communication && is_communication(op.kind) &&
                                       op.phase != Phase::recompute && !op.is_part)
        exchanges.push_back(i);
    if (exchanges.empty()) return false;
    const auto piece = [&](double share, std::size_t before) {
      if (!(share > 0)) return;
      Op op = whole;
      op.stream = Stream::expert_communication;
      op.free_running = op.is_part = true;
      op.covers = Covers::before;
      op.share = share;
      block.ops.insert(block.ops.begin() + static_cast<std::ptrdiff_t>(before), op);
    };
    piece(s_.pieces.beside_dense, exchanges.back() + 1);
    piece(s_.pieces.beside_experts, exchanges[exchanges.size() / 2]);
    constexpr double kRounding = 1e-12;
    if (const double rest = 1 - s_.pieces.beside_experts - s_.pieces.beside_dense; rest > kRounding) {
      Op op = whole;
      op.phase = Phase::update;
      op.when = When::every_micro_batch;
      op.every = kAllInstances;
      op.is_part = true;
      op.share = rest;
      piece_.update.ops.insert(piece_.update.ops.begin() + reductions_before_update_++, op);
    }
    Op last = whole;
    last.covers = Covers::last;
    last.share = s_.pieces.beside_experts + s_.pieces.beside_dense;
    block.ops.push_back(last);
    return true;
  }

  // The index in the block: in turn, as soon as `from` is complete.
  std::ptrdiff_t reduced_before(const Block& block, TensorId from) const {
    auto at = static_cast<std::ptrdiff_t>(block.ops.size());
    const TensorId storage = storage_of(piece_, from);
    const auto writes = [&](const Op& op) {
      return std::ranges::any_of(op.writes,
                                 [&](TensorId id) { return id != kNoTensor && storage_of(piece_, id) == storage; });
    };
    if (in_turn())
      while (at > 0 && !writes(block.ops[static_cast<std::size_t>(at) - 1])) --at;
    return at;
  }

  // Reduce-scatters from all of a sum, or a part of it, to a smaller part: level by level.
  void scatter(TensorId from, TensorId to, When when, bool accumulate) {
    for (const MeshGroup level : levels_) {
      const MeshGroup divided = piece_.tensors[from].divided_over(), target = piece_.tensors[to].divided_over();
      if (level.empty() || divided.contains(level) || !target.contains(level)) continue;
      const bool last = (divided | level) == target;
      const TensorId next =
          last ? to : part(from, divided | level, "gradient_shard", piece_.tensors[to].alias_of != kNoTensor);
      if (!last) piece_.tensors[next].resident = false;
      bucketed(OpKind::reduce_scatter, "gradients.reduce_scatter", level, from, next, when, accumulate && last);
      from = next;
    }
  }

  Coded add_codes(const Tensor& like, const Wire& wire, const char* codes, const char* scales) {
    return orrery::add_codes(piece_, like, wire.codes, wire.group, codes, scales);
  }
  // Adds what a collective of codes writes: as `from`, but for `change` to the layout.
  template <class Change>
  Coded add_like(Coded from, Change change) {
    const auto add = [&](TensorId id) {
      Tensor t = piece_.tensors[id];
      change(t);
      t.resident = false;
      t.category = Category::communication_buffer;
      return piece_.add(t);
    };
    return {add(from.codes), add(from.scales)};
  }

  // Reduces in codes of few bits, in place of a reduce-scatter (Wang et al. 2023, arXiv 2306.10209, section 3.3). Codes
  // are [outer ranks, inner ranks.., numbers of a part]: the order in which parts lie in the buffer, so that a slice
  // arrives where it belongs.
  void exchange_gradients() {
    struct Hop {
      MeshGroup group;
      int dim = 0;
    };
    std::vector<Hop> hops;
    Tensor shape = piece_.tensors[set_.gradients];
    shape.rank = 0;
    for (const MeshGroup level : levels_) {
      if (!over_.gradients.contains(level)) continue;
      for (const MeshGroup digits : {level.without(s_.first_hop), level & s_.first_hop}) {
        if (digits.empty()) continue;
        hops.push_back({digits, shape.rank});
        shape.append({mesh_.size(digits), Axis::none});
      }
    }
    Division parts;
    for (const Hop& hop : hops) parts.append(hop.group);
    if (parts != piece_.tensors[set_.gradients].over[0])
      throw std::logic_error("ranks of the first hop are not the inner ones");
    shape.over = {};
    shape.append({piece_.tensors[set_.gradients].sizes[0], Axis::none});
    std::stable_partition(hops.begin(), hops.end(), [&](const Hop& hop) { return s_.first_hop.contains(hop.group); });

    std::vector<Op> ops;
    const bool overlap = options_.overlap_gradients;
    const auto issue = [&](Op op) {
      op.account = Stream::data_communication;
      op.stream = overlap ? Stream::data_communication : Stream::compute;
      ops.push_back(op);
    };
    const auto with_feedback = [&](Op op, const Tensor& like) {
      if (s_.gradients_wire.feedback)
        feed_back(piece_, op, like, "gradient_error", piece_.tensors[whole_gradients_].dtype);
      return op;
    };
    Coded now = add_codes(shape, s_.gradients_wire, "gradient_codes", "gradient_scales");
    ops.push_back(with_feedback(computation(OpKind::quantise, "quantise_gradients", Phase::weight_gradient,
                                            {whole_gradients_}, {now.codes, now.scales}),
                                piece_.tensors[whole_gradients_]));
    for (const Hop& hop : hops) {
      const auto divide = [&](Tensor& t) {
        t.sizes[static_cast<std::size_t>(hop.dim)] = 1;
        t.over[static_cast<std::size_t>(hop.dim)].append(hop.group);
      };
      divide(shape);
      const Coded part = add_like(now, [&](Tensor& t) {
        divide(t);
        t = with_contributions(t, mesh_.size(hop.group));
      });
      for (const auto& [from, to] : {std::pair(now.codes, part.codes), std::pair(now.scales, part.scales)})
        issue(communication(OpKind::all_to_all, "gradients.all_to_all", Phase::weight_gradient,
                            Stream::data_communication, hop.group, from, to));
      if (&hop == &hops.back()) {
        Op sum = computation(OpKind::dequantise, "dequantise_gradients", Phase::weight_gradient,
                             {part.codes, part.scales}, {set_.gradients});
        sum.accumulate = true;
        issue(sum);
      } else {
        now = add_codes(shape, s_.gradients_wire, "gradient_codes", "gradient_scales");
        issue(with_feedback(computation(OpKind::requantise, "requantise_gradients", Phase::weight_gradient,
                                        {part.codes, part.scales}, {now.codes, now.scales}),
                            shape));
      }
    }
    Block& block = piece_.weight_gradient.ops.empty() ? piece_.backward : piece_.weight_gradient;
    block.ops.insert(block.ops.begin() + reduced_before(block, whole_gradients_), ops.begin(), ops.end());
  }

  void reduce_gradients() {
    const auto all_reduce = [&](MeshGroup group, TensorId from, TensorId to, When when) {
      bucketed(OpKind::all_reduce, "gradients.all_reduce", group, from, to, when, from != to);
    };
    if (!s_.reduced.empty() && over_.gradients.empty())
      all_reduce(s_.reduced, whole_gradients_, set_.gradients, When::every_micro_batch);
    if (!over_.gradients.empty() && s_.gradients_wire.quantised()) {
      exchange_gradients();
    } else if (!over_.gradients.empty()) {
      scatter(whole_gradients_, set_.gradients, When::every_micro_batch, true);
    }
    if (set_.own_gradients != set_.gradients)
      scatter(set_.gradients, set_.own_gradients, When::last_micro_batch, false);
    // The scattered parts of a bucket, only after the bucket is scattered.
    if (const MeshGroup rest = s_.ranks.without(s_.reduced | over_.states); !rest.empty())
      all_reduce(rest, set_.own_gradients, set_.own_gradients, When::last_micro_batch);
  }

  // If the states are divided over more ranks than the weights: gathers updated parts during the next step's first
  // forward, or right after the update.
  void gather_updated_parameters() {
    const bool overlap = options_.overlap_parameters && !s_.gathered_after_update;
    std::vector<Op>& ops = overlap ? piece_.forward.ops : piece_.update.ops;
    auto at = overlap ? 0 : static_cast<std::ptrdiff_t>(ops.size());
    TensorId from = set_.own_parameters;
    for (std::size_t l = levels_.size(); l-- > 1;) {
      if (levels_[l].empty()) continue;
      const MeshGroup left = piece_.tensors[from].divided_over().without(levels_[l]);
      const TensorId to =
          left == over_.weights ? set_.parameters : part(set_.parameters, left, "parameter_shard", true);
      Op op = communication(OpKind::all_gather, "parameters.all_gather", overlap ? Phase::forward : Phase::update,
                            Stream::parameter_communication, levels_[l], from, to);
      if (overlap) {
        op.when = When::first_micro_batch;
        op.free_running = true;
        // Gathers of the layer's weights read what arrives: they must not be issued farther ahead.
        op.prefetch = over_.weights.empty() ? std::uint16_t{1} : places(std::max<std::int64_t>(options_.prefetch, 1));
      } else {
        op.every = kAllInstances;
      }
      ops.insert(ops.begin() + at++, op);
      from = to;
    }
  }

  // Op::prefetch of so many layers; more than that has no model.
  static std::uint16_t places(std::int64_t layers) {
    return static_cast<std::uint16_t>(std::min<std::int64_t>(layers, 60000));
  }
  bool in_turn() const { return s_.in_turn.live > 0; }

  // Each block uses gathered copies of the weights. The forward's copy may also serve the backward and all
  // micro-batches of the step; or the backward gathers within a smaller group what the forward has left.
  void gather_parameters_in_blocks() {
    const TensorId forward_copy = gathered_before(piece_.forward, set_.parameters, over_.weights);
    if (s_.stays_gathered) piece_.tensors[forward_copy].resident = true;
    if (s_.stays_gathered || !options_.reshard_after_forward) return keep_for_backward(forward_copy);
    if (piece_.backward.ops.empty()) return;  // everything up to here is frozen
    if (over_.secondary.empty()) {
      gathered_before(piece_.backward, set_.parameters, over_.weights);
    } else {
      const Op keep = secondary_of(forward_copy);
      auto& ops = piece_.forward.ops;
      const bool dequantised = s_.weights_wire.quantised();
      ops.insert(behind_gathers(ops) + (dequantised ? 1 : 0), keep);
      gathered_before(piece_.backward, set_.secondary, over_.secondary);
    }
  }

  // How a gathered copy is made, and how many layers ahead the gather is issued. `at_first_use`: kernels that make the
  // copy from what was gathered.
  struct Gathers {
    std::vector<Op> ops, at_first_use;
    std::int64_t prefetch = 0;
  };
  static std::vector<Op>::iterator behind_gathers(std::vector<Op>& ops) {
    return std::ranges::find_if(ops, [](const Op& op) { return op.stream != Stream::parameter_communication; });
  }

  // A copy for all ops of the block.
  TensorId gathered_before(Block& block, TensorId shard, MeshGroup group) {
    Gathers gathers{.ops = {}, .at_first_use = {}, .prefetch = options_.prefetch};
    const TensorId whole = gathered(block, 0, block.ops.size(), shard, group, gathers);
    block.ops.insert(block.ops.begin(), gathers.ops.begin(), gathers.ops.end());
    block.ops.insert(behind_gathers(block.ops), gathers.at_first_use.begin(), gathers.at_first_use.end());
    return whole;
  }

  // Lets the ops [first, end) of `block` read slices of a gathered copy.
  TensorId gathered(Block& block, std::size_t first, std::size_t end, TensorId shard, MeshGroup group,
                    Gathers& gathers) {
    const Phase phase = &block == &piece_.forward ? Phase::forward : Phase::input_gradient;
    const auto put = [&](OpKind kind, const char* name, MeshGroup over, TensorId part, TensorId to,
                         TensorId scales = kNoTensor) {
      Op op = communication(kind, name, phase, Stream::parameter_communication, over, part, to);
      op.writes[1] = scales;
      op.prefetch = places(gathers.prefetch);
      op.free_running = op.prefetch > 0;
      if (s_.keeps_parameters) op.when = When::first_micro_batch;
      gathers.ops.push_back(op);
    };
    const auto gather = [&](MeshGroup over, TensorId part, TensorId to) {
      put(OpKind::all_gather, "parameters.all_gather", over, part, to);
    };
    Tensor copy = piece_.tensors[whole_parameters_];
    copy.resident = false;
    copy.dtype = gathered_dtype();
    copy.name = "gathered_parameters";
    const auto add_copy = [&] {
      const TensorId whole = piece_.add(copy);
      rename_parameters(block, first, end, whole);
      return whole;
    };
    const bool is_coded = shard == set_.secondary && s_.secondary_wire.quantised();
    if (is_coded || s_.weights_wire.quantised()) {
      Coded part{shard, secondary_scales_};
      if (!is_coded) {
        part = add_codes(as_row(piece_.tensors[shard]), s_.weights_wire, "weight_codes", "weight_scales");
        put(OpKind::quantise, "quantise_parameters", {}, shard, part.codes, part.scales);
      }
      const Coded all = add_like(part, [&](Tensor& t) {
        t.sizes[0] = mesh_.size(group);
        t.over[0] = {};
      });
      gather(group, part.codes, all.codes);
      gather(group, part.scales, all.scales);
      copy.sizes[0] = piece_.tensors[all.codes].elements();
      const TensorId whole = add_copy();
      Op op = computation(OpKind::dequantise, "dequantise_parameters", phase, {all.codes, all.scales}, {whole});
      if (s_.keeps_parameters) op.when = When::first_micro_batch;
      gathers.at_first_use.push_back(op);
      return whole;
    }
    TensorId from = shard;
    if (piece_.tensors[shard].dtype != gathered_dtype()) {
      from = add_cast_shard(shard);
      put(OpKind::cast, "cast_parameters", {}, shard, from);
    }
    const TensorId whole = add_copy();
    const MeshGroup outer = s_.gathered_first & group, rest = group.without(outer);
    if (outer.empty() || rest.empty()) {
      gather(group, from, whole);
    } else {
      const auto [part, column, matrix] = as_matrix(from, whole, outer, rest);
      gather(outer, part, column);
      gather(rest, column, matrix);
    }
    return whole;
  }

  // A shard as one row of a matrix that has a row for each rank.
  static Tensor as_row(Tensor shard) {
    shard.sizes[1] = shard.sizes[0], shard.axes[1] = shard.axes[0];
    shard.sizes[0] = 1, shard.axes[0] = Axis::none;
    shard.rank = 2;
    return shard;
  }

  // Norms are gathered together with the weights; they are 0.1% of a layer. torchao leaves them in 16 bits.
  Dtype gathered_dtype() const { return s_.fp8_gathers ? Dtype::fp8 : piece_.tensors[whole_parameters_].dtype; }

  // Returns the shard that is gathered, for weights that are kept in another dtype.
  TensorId add_cast_shard(TensorId shard) {
    // A shard that is gathered level by level is a matrix within it, as in any flat buffer of parameters.
    return clone_tensor(piece_, shard, "cast_shard",
                        s_.gathered_first.empty() ? Category::communication_buffer : piece_.tensors[shard].category,
                        gathered_dtype());
  }

  // Parts are ordered by the first digits, then by the second ones. They form a matrix: it is gathered along rows by
  // the ranks that share a column, then along columns.
  struct Matrix {
    TensorId part = kNoTensor, column = kNoTensor, whole = kNoTensor;
  };
  Matrix as_matrix(TensorId from, TensorId whole, MeshGroup first, MeshGroup second) {
    Tensor part = piece_.tensors[from];
    if (part.over[0] != Division{first, second})
      throw std::logic_error("digits that are gathered first are not the outer ones");
    const std::int64_t n = part.sizes[0];
    part.rank = 2;
    part.sizes[0] = 1, part.sizes[1] = n;
    part.over[0] = {first}, part.over[1] = {second};
    part.alias_of = from;
    part.resident = false;
    Tensor column = part;
    column.name = "gathered_column";
    column.category = Category::communication_buffer;
    column.sizes[0] = mesh_.size(first);
    column.over[0] = {};
    column.alias_of = kNoTensor;
    Tensor matrix = column;
    matrix.name = piece_.tensors[whole].name;
    matrix.category = piece_.tensors[whole].category;
    matrix.sizes[1] = n * mesh_.size(second);
    matrix.over[1] = {};
    matrix.alias_of = whole;
    return {piece_.add(part), piece_.add(column), piece_.add(matrix)};
  }

  // A second copy of the weights, divided over fewer ranks: each rank keeps its part of what the forward has gathered.
  Op secondary_of(TensorId gathered) {
    Tensor own = piece_.tensors[gathered];
    const std::int64_t ranks = mesh_.size(over_.secondary);
    own.sizes[0] = (own.sizes[0] + ranks - 1) / ranks;
    own.over[0].append(over_.secondary);
    own.name = "secondary_shard";
    Tensor kept = own;
    own.alias_of = gathered;
    kept.resident = true;
    const TensorId from = piece_.add(own);
    if (s_.secondary_wire.quantised()) {
      const Coded codes = add_codes(as_row(kept), s_.secondary_wire, "secondary_codes", "secondary_scales");
      for (const TensorId id : {codes.codes, codes.scales}) {
        piece_.tensors[id].resident = true;
        piece_.tensors[id].category = kept.category;
      }
      set_.secondary = codes.codes;
      secondary_scales_ = codes.scales;
      return computation(OpKind::quantise, "keep_secondary", Phase::forward, {from}, {codes.codes, codes.scales});
    }
    set_.secondary = piece_.add(kept);
    return computation(OpKind::cast, "keep_secondary", Phase::forward, {from}, {set_.secondary});
  }

  void rename_parameters(Block& block, std::size_t first, std::size_t end, TensorId copy) {
    std::vector<TensorId> renamed(piece_.tensors.size(), kNoTensor);
    const std::size_t count = piece_.tensors.size();
    for (std::size_t id = 0; id < count; ++id) {  // a view of a view comes after what it views
      const TensorId base = piece_.tensors[id].alias_of;
      if (base == kNoTensor || piece_.tensors[id].category != Category::parameter) continue;
      const TensorId renamed_base = base == whole_parameters_ ? copy : renamed[base];
      if (renamed_base == kNoTensor) continue;
      Tensor view = piece_.tensors[id];
      view.alias_of = renamed_base;
      view.dtype = piece_.tensors[copy].dtype;
      renamed[id] = piece_.add(view);
    }
    for (std::size_t i = first; i < end; ++i)
      for (TensorId& id : block.ops[i].reads)
        if (id != kNoTensor && id < count && renamed[id] != kNoTensor) id = renamed[id];
  }

  const Sharding& s_;
  const ShardGroups over_;
  const Options& options_;
  const double bucket_bytes_;
  const Mesh& mesh_;
  Piece& piece_;
  ParameterSet& set_;
  const TensorId whole_parameters_, whole_gradients_;
  std::array<MeshGroup, 3> levels_;  // of over.states, major digits first; each divides what the one before leaves
  std::ptrdiff_t reductions_before_update_ = 0;
  TensorId secondary_scales_ = kNoTensor;
};

// Inserts the gathers of the sets between the ops of the forward and the backward.
void gather_in_turn(framework::GatherLimits limits, const Options& options, Piece& piece, std::span<Shard> shards) {
  std::vector<TensorId> whole;
  for (const Shard& shard : shards) whole.push_back(shard.whole_parameters());
  const bool kept = !options.reshard_after_forward;
  if (kept) limits.reuse = std::numeric_limits<std::int64_t>::max();
  std::vector<Insertion> insertions;
  const auto gather = [&](Block& block) {
    const GatherOrder order = order_in_turn(limits, options.prefetch > 0, piece, block, whole);
    for (const GatheredCopy& of : order.copies) {
      const TensorId copy = shards[of.set].gather_for(block, of, insertions);
      if (of.ahead) block.ops[order.last_use].issues_ahead = true;
      if (kept) shards[of.set].keep_for_backward(copy);
    }
    insert(insertions, block);
    insertions.clear();
  };
  gather(piece.forward);
  if (!kept) gather(piece.backward);
}

bool is_of_experts(const Piece& piece, const ParameterGradient& p) {
  return piece.tensors[p.parameter].find(Axis::experts) >= 0;
}

// Gives the experts of sets that also have other parameters a separate set number, after all others.
void set_experts_apart(Piece& piece) {
  std::uint8_t sets = 0;
  for (const ParameterGradient& p : piece.parameters) sets = std::max<std::uint8_t>(sets, p.set);
  const auto rest_in = [&](std::uint8_t set) {
    return std::ranges::any_of(piece.parameters, [&](const ParameterGradient& p) {
      return p.set == set && !piece.tensors[p.parameter].shared && !is_of_experts(piece, p);
    });
  };
  for (std::uint8_t set = 0, last = sets; set <= last; ++set) {
    if (!rest_in(set)) continue;
    bool any = false;
    for (ParameterGradient& p : piece.parameters) {
      if (p.set != set || !is_of_experts(piece, p)) continue;
      if (!any) ++sets;
      any = true;
      p.set = sets;
    }
  }
}

}  // namespace

void divide_into_sets(const Scenario& scenario, const Sharding& sharding, Piece& piece) {
  const framework::GatherLimits limits = framework::gather_limits(scenario.plan);
  if (!sharding.over.weights.empty() && exceeds(limits, piece)) divide_into_sets(limits, piece);
  set_experts_apart(piece);
}

namespace {

constexpr bool (*kShardsParameters)(const AskedOf&) = [](const AskedOf& a) { return a.plan.data.zero_stage == 3; };
constexpr bool (*kHasFp8)(const AskedOf&) = [](const AskedOf& a) {
  return a.layers.precision.mix == precision::Mix::fp8;
};
constexpr FieldNames kParamGathers{"fp8_param_gather", "fp4_param_gather"};
constexpr FieldRule kIdle[]{
    keep({"zero_shard_degree"}, "with zero_stage 0, which shards nothing",
         [](const AskedOf& a) { return a.plan.data.zero_stage > 0; }),
    keep({"stage3_max_live_parameters", "stage3_max_reuse_distance", "stage3_prefetch_bucket_size",
          "reshard_after_forward"},
         "below zero_stage 3, whose parameters are whole on every rank", kShardsParameters),
    keep({"stage3_max_reuse_distance", "stage3_prefetch_bucket_size"},
         "without stage3_max_live_parameters: the framework gathers whole layers",
         [](const AskedOf& a) { return framework::gather_limits(a.plan).live > 0; }),
    keep({"enable_fsdp_float8_all_gather"}, "below zero_stage 3, which gathers no layers", kShardsParameters),
    keep({"enable_fsdp_float8_all_gather", "fp8_param_gather"}, ": no layer has precision \"fp8\"", kHasFp8),
    keep({"fp4_param_gather"}, ": no layer has precision \"nvfp4\"",
         [](const AskedOf& a) { return a.layers.precision.mix == precision::Mix::nvfp4; })};
constexpr FieldRule kExcludes[]{
    keep(kParamGathers, "with zero_stage 0, which gathers no parameters",
         [](const AskedOf& a) { return a.plan.data.zero_stage == 0; }),
    keep({"fp8_param_gather"}, "with zero_stage 3, whose layers enable_fsdp_float8_all_gather gathers in fp8",
         kShardsParameters),
    keep({"fp4_param_gather"}, "with zero_stage 3, whose layers are gathered in 16 bits", kShardsParameters),
    keep(kParamGathers, "without master_parameters, from which the weights are quantised",
         [](const AskedOf& a) { return !a.plan.optimizer.master_parameters; }),
    keep(kParamGathers, "with optimizer_offload, whose host quantises nothing",
         [](const AskedOf& a) { return a.plan.offload.optimizer; })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.data;
  const std::int64_t degree = local_updates::replicas(scenario);
  if (options.shard_degree > 0 && degree % options.shard_degree != 0)
    refuse(scenario.plan, "zero_shard_degree",
           local_updates::workers(scenario) > 1 ? fmt::format("a divisor of the {} replicas of a worker", degree)
                                                : fmt::format("a divisor of the data-parallel degree {}", degree));
  if ((options.fp8_param_gather || options.fp4_param_gather) &&
      !framework::stack_of(scenario.plan).can_gather_quantised_weights)
    keep_defaults(scenario.plan, kParamGathers,
                  fmt::format("with framework \"{}\", which keeps quantised weights in addition to wider ones",
                              framework::stack_name(scenario.plan)));
}

// The digits of dp_shard, and outside of it of dp_replicate, that other strategies have not laid inside.
void add_digits(const Scenario& scenario, Mesh& mesh) {
  const Options& options = scenario.plan.data;
  const std::int64_t degree = local_updates::replicas(scenario);
  const std::int64_t shard = options.zero_stage == 0 || options.shard_degree == 0 ? degree : options.shard_degree;
  mesh.add(MeshAxis::dp_shard, shard / mesh.size(mesh.group({MeshAxis::dp_shard, MeshAxis::dp_replicate})));
  mesh.add(MeshAxis::dp_replicate, degree / shard);
}

// Over `ranks`, which hold the same parameters; the shards that zero_stage makes are divided over `shard` of them.
Sharding sharding_over(const Scenario& scenario, const Plan& plan, const Program& program, MeshGroup ranks,
                       MeshGroup shard) {
  const Options& options = plan.data;
  const bool every = reduces_in_every_micro_batch(scenario, program.schedule.micro_batches);
  Sharding s;
  s.ranks = ranks;
  s.reduced = every ? s.ranks : MeshGroup{};
  if (options.zero_stage > 0) {
    s.over.states = shard;
    s.reduced = s.over.gradients = every ? s.over.states : MeshGroup{};
    if (options.zero_stage == 3) s.over.weights = s.over.states;
  }
  s.keeps_parameters = options.zero_stage == 3 && !options.reshard_after_forward && !every;
  return s;
}

void set_dtypes(const Scenario& scenario, const Plan& plan, Sharding& s) {
  s.fp32_weights = !s.over.weights.empty() && framework::stack_of(scenario.plan).shards_in_fp32 &&
                   scenario.plan.optimizer.master_parameters && scenario.plan.precision.storage() != Dtype::fp32;
  s.fp8_gathers = !s.over.weights.empty() && plan.data.float8_all_gather && plan.precision.mix == precision::Mix::fp8;
}

}  // namespace

Sharding sharding_of(const Scenario& scenario, const Plan& plan, const Program& program) {
  Sharding s = sharding_over(scenario, plan, program,
                             program.mesh.group({MeshAxis::dp_shard, MeshAxis::dp_replicate, MeshAxis::cp}),
                             program.mesh.group({MeshAxis::dp_shard, MeshAxis::cp}));
  for (const Strategy& strategy : all_strategies())
    if (strategy.shard != nullptr) strategy.shard(scenario, plan, program.mesh, s);
  set_dtypes(scenario, plan, s);
  return s;
}

Sharding expert_sharding_of(const Scenario& scenario, const Plan& plan, const Program& program) {
  const MeshGroup replicas = expert_parallel::expert_replicas(program.mesh);
  Sharding s =
      sharding_over(scenario, plan, program, replicas, replicas.without(program.mesh.group(MeshAxis::dp_replicate)));
  set_dtypes(scenario, plan, s);
  return s;
}

void lay_out(std::span<const Sharding> by_set, const Options& options, double bucket_bytes, const Mesh& mesh,
             Piece& piece) {
  MeshGroup states;
  for (const Sharding& sharding : by_set) states = states | sharding.over.states;
  for (Op& op : piece.update.ops)
    if (op.kind == OpKind::all_reduce && is_gradient_norm(piece, op.reads[0]))
      op.group = op.group | states;  // each rank knows only the norms of its own parts
  // Frozen sets are divided as the weights of the others are.
  const auto of_weights = [](Sharding sharding) {
    sharding.over.gradients = sharding.reduced = {};
    sharding.over.states = sharding.over.weights;
    return sharding;
  };
  bool divided = false;
  std::vector<Sharding> shardings;
  for (std::size_t i = 0; i < piece.sets.size(); ++i) {
    const Sharding& given = by_set[std::min(i, by_set.size() - 1)];
    shardings.push_back(piece.sets[i].frozen() ? of_weights(given) : given);
    if (bits_of(piece.tensors[piece.sets[i].parameters].dtype) < 16) {  // codes are kept and gathered as they are
      shardings.back().fp32_weights = false;
      shardings.back().weights_wire = shardings.back().secondary_wire = {};
    }
    divided = divided || !shardings.back().over.gradients.empty();
  }
  std::vector<Shard> shards;
  for (std::size_t i = 0; i < piece.sets.size(); ++i)
    shards.emplace_back(shardings[i], options, bucket_bytes, mesh, piece, piece.sets[i]);
  // The last set first, so that ops inserted before a block are in the order of the sets.
  for (std::size_t i = shards.size(); i-- > 0;) shards[i].run();
  if (by_set.front().in_turn.live > 0) gather_in_turn(by_set.front().in_turn, options, piece, shards);
  if (!divided) return;
  for (const PackedGradients& packed : piece.packed)  // each rank packs only its part
    piece.tensors[packed.buffer].sizes[0] = packed_elements(mesh, piece, packed);
}

namespace {

// The table that embedding and head share stays gathered all step long: a module with both is active in between.
std::int64_t elements_held_between_layers(const Program& program) {
  std::int64_t most = 0;
  for (const Piece& piece : program.pieces) {
    std::int64_t shared = 0;
    for (const Tensor& tensor : piece.tensors)
      if (tensor.shared && tensor.category == Category::parameter && tensor.alias_of == kNoTensor)
        shared += tensor.elements();
    most = std::max(most, shared);
  }
  return most;
}

// If the head is in another chunk of the embedding's stage, micro-batches in flight lie between the two. All of them
// use one gathered copy of the table.
bool lends_to_another_chunk(const Program& program, const Piece& piece) {
  return program.stages.front().size() > 1 && std::ranges::any_of(piece.tensors, [](const Tensor& tensor) {
           return tensor.lent && tensor.category == Category::parameter;
         });
}

void rewrite(const Scenario& scenario, Program& program) {
  program.runtime.releases_gradients =
      scenario.plan.data.zero_stage >= 2 && !reduces_in_every_micro_batch(scenario, micro_batches(scenario));
}

void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece) {
  Sharding sharding = sharding_of(scenario, plan, program);
  Sharding experts = expert_sharding_of(scenario, plan, program);
  if (sharding.ranks.empty() && experts.ranks.empty()) return;
  sharding.stays_gathered =
      !is_layer(piece) && sharding.over.secondary.empty() &&
      (framework::stack_of(scenario.plan).keeps_ends_gathered || lends_to_another_chunk(program, piece));
  sharding.fp8_gathers = sharding.fp8_gathers && is_layer(piece);
  if (const framework::GatherLimits limits = framework::gather_limits(scenario.plan);
      !sharding.over.weights.empty() && exceeds(limits, piece)) {
    sharding.in_turn = limits;
    sharding.in_turn.live = std::max<std::int64_t>(1, limits.live - elements_held_between_layers(program));
  }
  const double bucket = plan.data.bucket_bytes > 0
                            ? static_cast<double>(plan.data.bucket_bytes)
                            : framework::gradient_bucket_bytes(scenario.plan, program.mesh.size(sharding.ranks));
  // In a layer with quantised weights the second set holds what is not quantised: norms and biases.
  Sharding rest = sharding;
  rest.gathered_after_update = is_layer(piece) && keeps_weights_quantised(scenario, plan);
  experts.in_turn = sharding.in_turn;
  std::vector<Sharding> by_set;
  for (std::size_t set = 0; set < piece.sets.size(); ++set) by_set.push_back(set == 0 ? sharding : rest);
  for (const ParameterGradient& p : piece.parameters)
    if (p.set < by_set.size() && is_of_experts(piece, p)) by_set[p.set] = experts;
  if (!by_set.empty()) lay_out(by_set, plan.data, bucket, program.mesh, piece);
}

// Refuses what the executor has no kernels for.
void check_runnable(const Scenario& scenario) {
  keep_defaults(scenario.plan, {"fp8_param_gather", "fp4_param_gather"},
                "in real runs: no kernel casts an optimizer's copy to quantised weights yet");
  keep_defaults(scenario.plan, {"enable_fsdp_float8_all_gather"},
                "in real runs: ranks do not agree on scales of fp8 shards yet");
}

void disable(Plan& plan) {
  plan.data = {};
  plan.data.degree = 1;
}

void relax(Plan& plan) {
  plan.data.zero_stage = 0;
  plan.data.overlap_gradients = true;
  plan.data.shard_degree = 0;
  plan.data.reshard_after_forward = true;
  plan.data.float8_all_gather = false;
}

constexpr PlanWord kWords[]{{"data", [](const Scenario& s) { return data_parallel_degree(s) > 1; }},
                            {"zero-1", [](const Scenario& s) { return s.plan.data.zero_stage == 1; }},
                            {"zero-2", [](const Scenario& s) { return s.plan.data.zero_stage == 2; }},
                            {"zero-3", [](const Scenario& s) { return s.plan.data.zero_stage == 3; }}};

// Returns whether another rank computes gradients of the same weights.
bool shares_gradients(const Scenario& scenario) { return orrery::ranks(scenario) > scenario.plan.pipeline.degree; }

constexpr SearchAxis kAxes[]{
    {.field = "data_parallel",
     .label = "dp",
     .chosen_with = ChosenWith::mesh,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.data.degree = value; },
     .values = [](const Scenario&) -> AxisValues { return {0}; }},  // what remains
    {.field = "zero_stage",
     .label = "zero",
     .chosen_with = ChosenWith::replicas,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.data.zero_stage = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       const bool shards = data_parallel_degree(chosen) * chosen.plan.context.degree > 1;
       return shards ? AxisValues{0, 1, 2, 3} : AxisValues{0};
     }},
    {.field = "reshard_after_forward",
     .label = "reshard",
     .chosen_with = ChosenWith::replicas,
     .usual = true,
     .set = [](Plan& plan, std::int64_t value) { plan.data.reshard_after_forward = value != 0; },
     .values = [](const Scenario& chosen) -> AxisValues {
       return chosen.plan.data.zero_stage == 3 ? AxisValues{1, 0} : AxisValues{1};
     },
     .acts = [](const Scenario& chosen) { return chosen.plan.data.zero_stage == 3; }},
    {.field = "zero_shard_degree",
     .label = "shard",
     .chosen_with = ChosenWith::replicas,
     .set = [](Plan& plan, std::int64_t value) { plan.data.shard_degree = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       if (chosen.plan.data.zero_stage == 0) return {0};
       AxisValues values = divisors_of(local_updates::replicas(chosen));
       values.front() = 0;  // stands for all replicas, the last divisor
       if (values.size() > 1) values.pop_back();
       return values;
     },
     .acts = [](const Scenario& chosen) { return chosen.plan.data.zero_stage > 0; }},
    {.field = "overlap_grad_reduce",
     .label = "overlap grads",
     .chosen_with = ChosenWith::replicas,
     .set = [](Plan& plan, std::int64_t value) { plan.data.overlap_gradients = value != 0; },
     .acts = shares_gradients},
    {.field = "overlap_param_gather",
     .label = "overlap params",
     .chosen_with = ChosenWith::replicas,
     .set = [](Plan& plan, std::int64_t value) { plan.data.overlap_parameters = value != 0; },
     .acts = [](const Scenario& chosen) { return chosen.plan.data.zero_stage > 0 && shares_gradients(chosen); }}};

}  // namespace

Strategy describe() {
  return {.name = "data_parallel",
          .summary = "replicas, ZeRO-1/2/3, FSDP and HSDP",
          .paper = "Rajbhandari et al. 2020, arXiv 1910.02054; Zhao et al. 2023, arXiv 2304.11277",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .rewrite = rewrite,
          .rewrite_piece = rewrite_piece,
          .add_digits = add_digits,
          .disable = disable,
          .relax = relax,
          .words = kWords,
          .check_runnable = check_runnable,
          .search_axes = kAxes};
}

}  // namespace orrery::data_parallel
