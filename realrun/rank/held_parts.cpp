#include "realrun/rank/held_parts.h"

#include <utility>

namespace orrery::realrun {

void HeldParts::keep_gradients(const Instance& instance) {
  const PiecePlan& plan = *instance.plan;
  std::vector<Values>& kept = gradients_[instance.number];
  kept.clear();
  for (std::size_t s = 0; s < plan.held().size(); ++s) {
    const TensorId id = plan.held()[s].gradients;
    Values& values = kept.emplace_back();
    if (id == kNoTensor) continue;
    values.resize(static_cast<std::size_t>(plan.tensor(id).elements()));
    backend_.synchronize();
    backend_.read(memory_.slice({instance}, id, Access::read), values);
    const double factor = plan.factor_behind_norm(s);
    for (float& g : values) g = static_cast<float>(factor * g);
  }
}

std::vector<HeldParts::Values> HeldParts::held_parameters(const Instance& instance) {
  std::vector<Values> values;  // by set
  for (const HeldSet& set : instance.plan->held()) {
    values.emplace_back(static_cast<std::size_t>(instance.tensor(set.parameters).elements()));
    backend_.read(memory_.slice({instance}, set.parameters, Access::read), values.back());
  }
  return values;
}

void HeldParts::add_parts(const Instance& instance, std::vector<HeldPart>& parts) {
  const PiecePlan& plan = *instance.plan;
  const std::vector<Values> values = held_parameters(instance);
  std::vector<std::int64_t> begins(plan.held().size());
  std::size_t ordinal = instance.first_parameter;
  for (const ParameterGradient& p : plan.piece().parameters) {
    const std::size_t own = ordinal++;
    const Tensor& local = plan.tensor(p.parameter);
    if (local.shared) continue;
    HeldPart part;
    part.parameter = static_cast<std::size_t>(setup_.parameters[own].values_of);
    const std::vector<std::int64_t> element = whole_elements(local, setup_.parameters[own].tensor, position_);
    const Values &value = values[p.set], &gradient = gradients_[instance.number][p.set];
    for (std::int64_t e = 0; e < local.elements(); ++e) {
      const std::int64_t at = begins[p.set] + e - plan.held()[p.set].begin;
      if (at < 0 || at >= static_cast<std::int64_t>(value.size())) continue;
      part.element.push_back(element[static_cast<std::size_t>(e)]);
      if (p.gradient != kNoTensor) part.gradient.push_back(gradient[static_cast<std::size_t>(at)]);
      part.value.push_back(value[static_cast<std::size_t>(at)]);
    }
    begins[p.set] += local.elements();
    parts.push_back(std::move(part));
  }
}

std::vector<HeldPart> HeldParts::parts() {
  std::vector<HeldPart> parts;
  backend_.synchronize();
  model_.for_each_instance([&](const Instance& instance) { add_parts(instance, parts); });
  return parts;
}

}  // namespace orrery::realrun
