#include "realrun/rank/initial_values.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

namespace orrery::realrun {
namespace {

constexpr std::size_t kNoSet = kNoTensor;

double initial_value(const WholeParameter& parameter, double uniform) {
  constexpr double kUniform = 1.7320508075688772;  // standard deviation 1
  constexpr double kSmall = 0.2, kTable = 0.5;     // far enough from 0 and 1 to affect every gradient
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

float first_value(const RunSetup& setup, std::int64_t parameter, std::int64_t element) {
  const WholeParameter& whole = setup.parameters[static_cast<std::size_t>(parameter)];
  const double u =
      counter_uniform(setup.options.seed, static_cast<std::uint64_t>(parameter), static_cast<std::uint64_t>(element));
  const std::vector<std::vector<float>>& given = setup.options.first_values;
  const auto number = static_cast<std::size_t>(parameter);
  double value = number < given.size() && !given[number].empty() ? given[number].at(static_cast<std::size_t>(element))
                                                                 : initial_value(whole, u);
  if (setup.options.nudged_parameter == parameter && setup.options.nudged_element == element)
    value += setup.options.nudge;
  return static_cast<float>(value);
}

// Calls visit(index, parameter, element) for elements first to first + n of a set's whole flat buffer, with the model's
// parameter whose values the element has, and its index there.
template <class Visit>
void for_each_element(const RunSetup& setup, const Position& position, const Instance& instance, std::size_t set,
                      std::int64_t first, std::int64_t n, Visit visit) {
  for (const auto& [parameter, number, begin] : instance.plan->held()[set].flat) {
    const Tensor& local = instance.tensor(parameter->parameter);
    const std::int64_t from = std::max(first, begin), to = std::min(first + n, begin + local.elements());
    if (from >= to) continue;
    const WholeParameter& whole = setup.parameters[instance.first_parameter + number];
    const std::vector<std::int64_t> element = is_whole(local, whole.tensor, position)
                                                  ? std::vector<std::int64_t>{}
                                                  : whole_elements(local, whole.tensor, position);
    for (std::int64_t at = from; at < to; ++at) {
      const std::int64_t e = at - begin;
      visit(static_cast<std::size_t>(at - first), whole.values_of,
            element.empty() ? e : element[static_cast<std::size_t>(e)]);
    }
  }
}

// A tensor that begins with values: its set, and which value of the parameters it is (CarriedState::Key::what).
struct Role {
  std::size_t set = kNoSet;
  std::int64_t what = 0;
};

struct Roles {
  std::vector<Role> of;         // by storage
  std::vector<bool> optimizer;  // whether an optimizer uses it
  // Tensors that the rank updates, or its part of frozen ones, with their roles.
  std::vector<std::pair<TensorId, Role>> held;
};

Roles roles_of(const PiecePlan& plan) {
  const std::size_t n = plan.piece().tensors.size();
  Roles roles{std::vector<Role>(n), std::vector<bool>(n), {}};
  const auto add = [&](TensorId id, std::size_t set, std::int64_t what) {
    Role& role = roles.of[plan.root(id)];
    if (role.set != kNoSet && role.what != what) return;
    role = {set, what};
    roles.held.emplace_back(id, role);
  };
  for (std::size_t s = 0; s < plan.held().size(); ++s) add(plan.held()[s].parameters, s, CarriedState::kParameter);
  for (const Op& op : plan.ops(kUpdateBlock)) {
    if (!is_optimizer(op.kind)) continue;
    const std::size_t set = set_number(plan.piece(), op.writes[0]);
    for (const auto& ids : {std::span<const TensorId>(op.reads), std::span<const TensorId>(op.writes)})
      for (const TensorId id : ids)
        if (id != kNoTensor) roles.optimizer[plan.root(id)] = true;
    // The optimizer's second operand is the weights that it updates. Its first result is the parameters; further
    // results are states.
    add(op.reads[1], set, CarriedState::kWeights);
    add(op.writes[0], set, CarriedState::kResult);
    for (std::size_t i = 1; i < op.writes.size(); ++i)
      if (op.writes[i] != kNoTensor)
        add(op.writes[i], set, CarriedState::kFirstState + static_cast<std::int64_t>(i) - 1);
  }
  return roles;
}

// The part of the set's whole flat buffer that a tensor's storage begins with.
struct Part {
  std::int64_t from = 0, elements = 0;
};
Part part_of_storage(const PiecePlan& plan, const Position& position, TensorId id, std::size_t set) {
  const Tensor& t = plan.tensor(id);
  // A part with its own storage begins in the middle of the flat buffer.
  const std::int64_t from = position.part(t.over[0]) * t.sizes[0];
  return {from, std::max<std::int64_t>(0, std::min(plan.capacity(id), plan.held()[set].elements - from))};
}
bool begins(const PiecePlan& plan, TensorId id) {
  const Tensor& t = plan.tensor(id);
  return t.alias_of == kNoTensor && t.rank == 1 && plan.lasts(id);
}

// Returns the parameter of the last Program that this one continues; null: none.
const CarriedParameter* carried_parameter(const RunSetup& setup, std::int64_t parameter) {
  if (setup.carried.empty()) return nullptr;
  const CarriedParameter& carried = setup.carried[static_cast<std::size_t>(parameter)];
  return carried.parameter < 0 ? nullptr : &carried;
}

}  // namespace

std::vector<CarriedState::Stretch> lacking(const RunSetup& setup, const Position& position, const Instance& instance,
                                           const CarriedState& carried) {
  const PiecePlan& plan = *instance.plan;
  std::vector<CarriedState::Stretch> lacks;
  const Roles roles = roles_of(plan);
  for (std::size_t i = 0; i < roles.of.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const auto [set, what] = roles.of[i];
    if (set == kNoSet || !begins(plan, id)) continue;
    const Part part = part_of_storage(plan, position, id, set);
    for_each_element(setup, position, instance, set, part.from, part.elements,
                     [&](std::size_t, std::int64_t parameter, std::int64_t element) {
                       const CarriedParameter* was = carried_parameter(setup, parameter);
                       if (was == nullptr) return;
                       const CarriedState::Key key{was->parameter, what};
                       if (carried.find(key, element % was->elements) == nullptr)
                         append(lacks, key, element % was->elements);
                     });
  }
  return lacks;
}

void keep(const RunSetup& setup, const Position& position, const Instance& instance, TensorMemory& memory,
          CarriedState& carried) {
  const PiecePlan& plan = *instance.plan;
  memory.backend().synchronize();
  std::vector<float> values;
  for (const auto& [id, role] : roles_of(plan).held) {
    const TensorId root = plan.root(id);
    if (!plan.lasts(root)) continue;
    const auto [set, what] = role;
    const ElementMap& view = plan.view(id);
    const std::int64_t from = part_of_storage(plan, position, root, set).from + view.at(0);
    const std::int64_t n = std::min(plan.tensor(id).elements(), plan.held()[set].elements - from);
    if (!view.dense()) throw std::logic_error("flat states are not flat");
    if (n <= 0) continue;
    Slice slice = memory.slice({instance}, id, Access::read);
    slice.elements = n;
    values.resize(static_cast<std::size_t>(n));
    memory.backend().read(slice, values);
    // Joins neighbouring elements into stretches.
    CarriedState::Stretch stretch;
    std::size_t begin = 0;
    const auto add = [&](std::size_t end) {
      if (end > begin) carried.add(stretch.key, stretch.element, std::span(values).subspan(begin, end - begin));
    };
    for_each_element(
        setup, position, instance, set, from, n, [&](std::size_t i, std::int64_t parameter, std::int64_t element) {
          const CarriedState::Key key{parameter, what};
          if (i > begin && key == stretch.key && element == stretch.element + static_cast<std::int64_t>(i - begin))
            return;
          add(i);
          stretch = {key, element, 0};
          begin = i;
        });
    add(values.size());
  }
}

void initialise(const RunSetup& setup, const Position& position, const Instance& instance, const CarriedState& carried,
                TensorMemory& memory) {
  const PiecePlan& plan = *instance.plan;
  if (plan.held().empty()) return;
  const Roles roles = roles_of(plan);
  const Work work{instance};
  for (std::size_t i = 0; i < plan.piece().tensors.size(); ++i) {
    const auto id = static_cast<TensorId>(i);
    const Tensor& t = plan.tensor(id);
    if (!begins(plan, id)) continue;
    const auto [set, what] = roles.of[i];
    if (set == kNoSet && !roles.optimizer[id] && t.category != Category::gradient) continue;
    const StoragePtr s = memory.allocate(plan.capacity(id), t.dtype, t.category, work.stream, t.place);
    memory.adopt(work, id, s);
    memory.fill(*s, 0, work.stream);
    if (set == kNoSet) continue;
    const Part part = part_of_storage(plan, position, id, set);
    if (part.elements == 0) continue;
    std::vector<float> values(static_cast<std::size_t>(part.elements));
    bool any = false;
    for_each_element(setup, position, instance, set, part.from, part.elements,
                     [&](std::size_t at, std::int64_t parameter, std::int64_t element) {
                       if (const CarriedParameter* was = carried_parameter(setup, parameter)) {
                         values[at] = *carried.find({was->parameter, what}, element % was->elements);
                         any = true;
                       } else if (what < CarriedState::kFirstState) {
                         values[at] = first_value(setup, parameter, element);
                         any = true;
                       }
                     });
    if (any) memory.backend().write({s->data, t.dtype, 0, part.elements, nullptr}, values);
  }
}

}  // namespace orrery::realrun
