#include "realrun/rank/initial_values.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

namespace orrery::realrun {
namespace {

constexpr std::size_t kNoSet = kNoTensor;

double initial_value(const WholeParameter& parameter, double uniform) {
  constexpr double kUniform = 1.7320508075688772;  // deviation 1
  constexpr double kSmall = 0.2, kTable = 0.5;     // far enough from zero and one to show in every gradient
  switch (parameter.initial) {
    case InitialValue::scale:
      return 1 + kSmall * uniform;
    case InitialValue::shift:
      return kSmall * uniform;
    case InitialValue::table:
      return kTable * uniform;
    case InitialValue::matrix:
      return kUniform * parameter.deviation * uniform;
  }
  return 0;
}

// The whole flat buffers, by set.
std::vector<std::vector<float>> flat_parameters(const RunSetup& setup, const Position& position,
                                                const Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  std::vector<std::vector<float>> flats;
  for (const HeldSet& held : plan.held()) flats.emplace_back(static_cast<std::size_t>(held.elements), 0.0f);
  std::vector<std::size_t> begins(flats.size());
  std::size_t ordinal = instance.first_parameter;
  for (const ParameterGradient& p : plan.piece().parameters) {
    const std::size_t own = ordinal++;
    const Tensor& local = plan.tensor(p.parameter);
    if (local.shared) continue;
    const WholeParameter& whole = setup.parameters[static_cast<std::size_t>(setup.parameters[own].values_of)];
    const Tensor& shape = setup.parameters[own].tensor;
    const auto n = static_cast<std::size_t>(local.elements());
    const std::vector<std::int64_t> element =
        is_whole(local, shape) ? std::vector<std::int64_t>{} : whole_elements(local, shape, position);
    for (std::size_t e = 0; e < n; ++e) {
      const std::int64_t at = element.empty() ? static_cast<std::int64_t>(e) : element[e];
      const double u = counter_uniform(setup.options.seed, static_cast<std::uint64_t>(whole.values_of),
                                       static_cast<std::uint64_t>(at));
      double value = initial_value(whole, u);
      if (setup.options.nudged_parameter == whole.values_of && setup.options.nudged_element == at)
        value += setup.options.nudge;
      flats[p.set][begins[p.set] + e] = static_cast<float>(value);
    }
    begins[p.set] += n;
  }
  return flats;
}

// What storages are to the optimizer.
struct Roles {
  std::vector<std::size_t> parameters, weights;  // of which set the held parameters, or a copy of them elsewhere
  std::vector<bool> optimizer;                   // touched by one
};
Roles roles_of(const PiecePlan& plan) {
  const std::size_t n = plan.piece().tensors.size();
  Roles roles{std::vector<std::size_t>(n, kNoSet), std::vector<std::size_t>(n, kNoSet), std::vector<bool>(n)};
  for (const Op& op : plan.ops(kUpdateBlock)) {
    if (!is_optimizer(op.kind)) continue;
    const std::size_t set = set_number(plan.piece(), op.writes[0]);
    for (const auto& ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
      for (const TensorId id : ids)
        if (id != kNoTensor) roles.optimizer[plan.root(id)] = true;
    // The optimizer's second operand is the weights that it updates; its first result are the parameters.
    for (const TensorId id : {op.reads[1], op.writes[0]}) roles.weights[plan.root(id)] = set;
  }
  for (std::size_t s = 0; s < plan.held().size(); ++s) roles.parameters[plan.root(plan.held()[s].parameters)] = s;
  return roles;
}

}  // namespace

void initialise(const RunSetup& setup, const Position& position, const Instance& instance, TensorMemory& memory) {
  const PiecePlan& plan = *instance.plan;
  if (plan.held().empty()) return;
  const std::vector<std::vector<float>> flats = flat_parameters(setup, position, instance);
  const Roles roles = roles_of(plan);
  const Work work{instance};
  for (std::size_t i = 0; i < plan.piece().tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& t = plan.tensor(id);
    if (t.alias_of != kNoTensor || t.rank != 1 || !plan.lasts(id)) continue;
    const bool device = roles.parameters[id] != kNoSet;  // or a copy of the weights elsewhere, in more bits
    const std::size_t set = device ? roles.parameters[id] : roles.weights[id];
    if (!device && !roles.optimizer[id] && t.category != Category::gradient) continue;
    const std::int64_t capacity = plan.capacity(id);
    const StoragePtr s = memory.allocate(capacity, t.dtype, t.category, work.stream, t.place);
    memory.adopt(work, id, s);
    memory.fill(*s, 0, work.stream);
    if (set == kNoSet) continue;
    // A part with storage of its own begins in the middle of the flat buffer.
    const std::int64_t from = position.part(t.over[0]) * t.sizes[0];
    const std::int64_t n = std::min(capacity, plan.held()[set].elements - from);
    if (n > 0)
      memory.backend().write(
          {s->data, t.dtype, 0, n, nullptr},
          std::span(flats[set]).subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(n)));
  }
}

}  // namespace orrery::realrun
