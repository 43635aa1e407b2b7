#include "realrun/rank/gradient_norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

namespace orrery::realrun {

GradientNorm::GradientNorm(const RunSetup& setup, const Position& position, const RankModel& model,
                           TensorMemory& memory, Communicator& communicator, StepClock& clock)
    : setup_(setup),
      position_(position),
      model_(model),
      memory_(memory),
      backend_(memory.backend()),
      communicator_(communicator),
      clock_(clock),
      counted_(model.instances()) {}

void GradientNorm::add_squares(const OpCall& call) {
  const Counted& of = counted(call.instance, set_number(call.instance.piece(), call.op.reads[0]));
  const Slice all = memory_.slice(call, call.op.reads[0], Access::read);
  if (all.index != nullptr) throw std::logic_error("flat gradients are not flat");
  for (const auto& [first, last] : of.ranges)
    add_square(call, memory_.element(all.base, all.offset + first, all.dtype), last - first, all.dtype);
  if (of.scattered.empty()) return;
  const auto n = static_cast<std::int64_t>(of.scattered.size());
  const StoragePtr packed = memory_.scratch(n, all.dtype, call.stream);
  backend_.gather(call.stream, {all.base, all.dtype, 0, n, &of.scattered}, packed->data);
  add_square(call, packed->data, n, all.dtype);
  packed->note_read(memory_.order().issued(call.stream));
}

void GradientNorm::add_square(const OpCall& call, void* data, std::int64_t elements, Dtype dtype) {
  Tensor gradients, scalar;
  gradients.rank = 1, gradients.sizes[0] = elements, gradients.dtype = dtype;
  scalar.rank = 1, scalar.dtype = Dtype::fp32;
  squares_.push_back(memory_.scratch(1, Dtype::fp32, call.stream));
  const std::array<Operand, 1> read{{{data, &gradients}}}, write{{{squares_.back()->data, &scalar}}};
  backend_.run(call.op, read, write, {});
  squares_.back()->note_written(memory_.order().issued(call.stream));
}

const GradientNorm::Counted& GradientNorm::counted(const Instance& instance, std::size_t set) {
  std::vector<Counted>& by_set = counted_[instance.number];
  if (by_set.empty()) by_set.resize(instance.plan->held().size());
  Counted& of = by_set[set];
  if (!of.known) find_counted(instance, set, of);
  of.known = true;
  return of;
}

MeshGroup GradientNorm::summed_over(const PiecePlan& plan) const {
  MeshGroup summed;
  for (const Op& op : plan.ops(kUpdateBlock))
    if (plan.reduces_norm(op)) summed = op.group;
  return summed;
}

void GradientNorm::find_counted(const Instance& instance, std::size_t set, Counted& counted) const {
  const PiecePlan& plan = *instance.plan;
  const HeldSet& own_set = plan.held()[set];
  const Tensor& gradients = plan.tensor(own_set.gradients);
  const std::int64_t held = gradients.elements();
  // Ranks that differ in these digits have the same gradients where these are not divided.
  const MeshGroup copies = summed_over(plan).without(gradients.divided_over() | position_.mesh->group(MeshAxis::pp));
  std::int64_t begin = -own_set.begin;
  std::size_t ordinal = instance.first_parameter;
  for (const ParameterGradient& p : plan.piece().parameters) {
    const std::size_t own = ordinal++;
    const Tensor& t = plan.tensor(p.parameter);
    if (t.shared || p.set != set) continue;
    const std::int64_t first = std::clamp<std::int64_t>(begin, 0, held),
                       last = std::clamp<std::int64_t>(begin + t.elements(), 0, held);
    // Of ranks that hold the same parameter, or the same keys and values of it, the first counts them.
    const bool here = setup_.parameters[own].values_of == static_cast<std::int64_t>(own) &&
                      position_.is_first(copies.without(t.divided_over()));
    if (here && first < last && position_.is_first(divided_by_query_heads(t))) {
      if (!counted.ranges.empty() && counted.ranges.back().second == first) {
        counted.ranges.back().second = last;
      } else {
        counted.ranges.emplace_back(first, last);
      }
    } else if (here) {
      for (std::int64_t e = first; e < last; ++e)
        if (!is_behind_query_heads(t, e - begin)) counted.scattered.push_back(plan.view(own_set.gradients).at(e));
    }
    begin += t.elements();
  }
}

double GradientNorm::own_sum() {
  double sum = 0;
  for (const StoragePtr& part : squares_) {
    float square = 0;
    backend_.read({part->data, part->dtype, 0, 1, nullptr}, {&square, 1});
    sum += static_cast<double>(square);
  }
  squares_.clear();
  return sum;
}

double GradientNorm::sum_of_ranks(double own) {
  MeshGroup group;
  bool reduces = false;
  model_.for_each_instance([&](const Instance& instance) {
    for (const Op& op : instance.plan->ops(kUpdateBlock))
      if (instance.plan->reduces_norm(op)) group = op.group, reduces = true;
  });
  if (!reduces) return own;
  constexpr const char* kName = "gradient_norm.all_reduce";
  Issue issue{.kind = Issue::Kind::gradient_norm, .stream = Stream::data_communication};
  clock_.begin(issue);
  communicator_.at("update", kName, kOfStep);
  const auto all = communicator_.gather_values(position_.group(group), kName, {own});
  clock_.end(issue);
  double sum = 0;
  for (const std::vector<double>& each : all) sum += each.at(0);
  return sum;
}

void GradientNorm::write(double sum) {
  const auto square = static_cast<float>(sum);
  model_.for_each_instance([&](const Instance& instance) {
    const Work work{instance};
    for (const Op& op : instance.plan->ops(kUpdateBlock)) {
      if (!instance.plan->reduces_norm(op)) continue;
      backend_.write(memory_.slice(work, op.writes[0], Access::write), {&square, 1});
      memory_.storage(work, op.writes[0], Access::write).note_written(memory_.order().issued(work.stream));
    }
  });
}

double GradientNorm::reduce() {
  const double sum = sum_of_ranks(own_sum());
  double factor = 1;
  model_.for_each_instance([&](const Instance& instance) {
    const Piece& piece = instance.piece();
    for (std::size_t s = 0; s < piece.sets.size(); ++s)
      if (!piece.sets[s].frozen()) factor = instance.plan->factor_behind_norm(s);  // of all sets the same
  });
  write(sum);
  return factor * std::sqrt(sum);
}

}  // namespace orrery::realrun
