#include "study/search/space.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/error.h"
#include "strategies/framework/framework.h"
#include "strategies/strategy.h"
#include "study/search/plan_field.h"

namespace orrery {
namespace {

const SearchAxis* declared(std::string_view field) {
  for (const Strategy& strategy : all_strategies())
    for (const SearchAxis& axis : strategy.search_axes)
      if (axis.field == field) return &axis;
  return nullptr;
}

Space::Axis axis_of(const SearchAxis& axis) {
  return {std::string(axis.field),
          std::string(axis.label),
          axis.chosen_with,
          [set = axis.set](Scenario& scenario, std::int64_t value) { set(scenario.plan, value); },
          {}};
}

// For each stack, those values of a field that it has; nullopt: it has all values.
using ValuesOfStacks = std::array<std::optional<std::vector<std::int64_t>>, framework::kStackNames.size()>;

ValuesOfStacks values_of_stacks(const SearchAxis& axis) {
  ValuesOfStacks of_stacks;
  for (std::size_t stack = 0; stack < of_stacks.size(); ++stack) {
    Plan plan;
    plan.framework.stack = static_cast<framework::Stack>(stack);
    for (const framework::SearchedValues& of_field : framework::stack_of(plan).searched) {
      if (of_field.field != axis.field) continue;
      of_stacks[stack].emplace();
      for (const std::string& value : of_field.values) {
        Plan with;
        set_field(with, axis.field, nlohmann::json::parse(value));
        if (const auto number = number_of(with, axis.field)) of_stacks[stack]->push_back(*number);
      }
    }
  }
  return of_stacks;
}

// An axis over the values that the stack has: the stack of the plan that is chosen so far.
Space::Axis axis_of_stack(const SearchAxis& axis) {
  Space::Axis all = axis_of(axis);
  all.values = [of_stacks = values_of_stacks(axis), usual = axis.values](const Scenario& chosen) {
    std::vector<std::int64_t> values = usual(chosen);
    if (const auto& numbers = of_stacks[static_cast<std::size_t>(chosen.plan.framework.stack)])
      std::erase_if(values,
                    [&](std::int64_t v) { return std::find(numbers->begin(), numbers->end(), v) == numbers->end(); });
    return values;
  };
  return all;
}

// An axis over values that the user names.
Space::Axis axis_of(const AxisRequest& request, const Plan& base) {
  const SearchAxis* by_strategy = declared(request.field);
  std::vector<std::int64_t> numbers;
  for (const nlohmann::json& value : request.values) {
    Plan plan = base;
    set_field(plan, request.field, value);
    framework::mesh_order(plan);  // throws where it is none
    if (const auto number = number_of(plan, request.field)) numbers.push_back(*number);
  }
  std::vector<nlohmann::json> sorted = request.values;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end())
    throw InputError({"", "/plan/" + request.field}, "a value a second time", "each value once");
  std::vector<std::int64_t> places(request.values.size());
  std::iota(places.begin(), places.end(), 0);
  if (by_strategy == nullptr)  // chosen first, since it is not known what follows from it
    return {request.field, request.field, ChosenWith::mesh,
            [request](Scenario& scenario, std::int64_t value) {
              set_field(scenario.plan, request.field, request.values[static_cast<std::size_t>(value)]);
            },
            [places](const Scenario&) { return places; }};
  Space::Axis axis = axis_of(*by_strategy);
  const bool counted = numbers.size() == request.values.size();
  if (!counted) {  // a number is then a place among the values; number k of the strategy's own is -1 - k
    numbers = places;
    axis.set = [request, set = by_strategy->set](Scenario& scenario, std::int64_t value) {
      if (value < 0) return set(scenario.plan, -1 - value);
      set_field(scenario.plan, request.field, request.values[static_cast<std::size_t>(value)]);
    };
  }
  axis.values = [numbers, counted, acts = by_strategy->acts, usual = by_strategy->values,
                 given = number_of(base, request.field)](const Scenario& chosen) {
    if (acts == nullptr || acts(chosen)) return numbers;
    if (usual == nullptr) return std::vector{given.value()};
    std::vector<std::int64_t> values = usual(chosen);
    if (values.size() > 1) values.resize(1);
    if (!counted && !values.empty()) values.front() = -1 - values.front();
    return values;
  };
  return axis;
}

}  // namespace

Space::Space(const Scenario& base, const SpaceOptions& options) : base_(base) {
  for (const Strategy& strategy : all_strategies())
    if (strategy.check_workload != nullptr) strategy.check_workload(base);
  const auto is_fixed = [&](std::string_view field) {
    return std::find(options.fixed.begin(), options.fixed.end(), field) != options.fixed.end();
  };
  const auto request_of = [&](std::string_view field) {
    return std::find_if(options.over.begin(), options.over.end(),
                        [field](const AxisRequest& request) { return request.field == field; });
  };
  for (const std::string& field : options.fixed) plan_field_named(field);
  std::vector<Axis> undeclared;
  for (auto request = options.over.begin(); request != options.over.end(); ++request) {
    plan_field_named(request->field);
    const std::string at = "/plan/" + request->field;
    if (is_fixed(request->field)) throw InputError({"", at}, "a field both fixed and searched", "one of the two");
    if (request_of(request->field) != request)
      throw InputError({"", at}, "a field searched twice", "all its values at once");
    const SearchAxis* by_strategy = declared(request->field);
    if (request->values.empty() && (by_strategy == nullptr || by_strategy->values == nullptr))
      throw InputError({"", at}, "no values", "values to try: no strategy suggests any for this field");
    if (by_strategy != nullptr) continue;
    undeclared.push_back(axis_of(*request, base.plan));
  }
  if (!options.global_batch_sizes.empty())
    axes_.push_back({"global_batch_size", "batch", ChosenWith::mesh,
                     [](Scenario& scenario, std::int64_t value) {
                       scenario.workload.global_batch_size = value;
                       scenario.workload.gives_batch = true;
                     },
                     [sizes = options.global_batch_sizes](const Scenario&) { return sizes; }});
  std::move(undeclared.begin(), undeclared.end(), std::back_inserter(axes_));
  for (const Strategy& strategy : all_strategies())
    for (const SearchAxis& axis : strategy.search_axes) {
      if (is_fixed(axis.field) || (axis.turns_of != nullptr && !axis.turns_of(base.model))) continue;
      const auto request = request_of(axis.field);
      if (request != options.over.end() && !request->values.empty()) {
        axes_.push_back(axis_of(*request, base.plan));
      } else if (axis.values != nullptr && (request != options.over.end() || axis.usual || options.all)) {
        axes_.push_back(axis_of_stack(axis));
      }
    }
  std::stable_sort(axes_.begin(), axes_.end(),
                   [](const Axis& a, const Axis& b) { return a.chosen_with < b.chosen_with; });
  const auto first_behind =
      std::find_if(axes_.begin(), axes_.end(), [](const Axis& axis) { return axis.chosen_with > ChosenWith::kernels; });
  group_axes_ = static_cast<std::size_t>(first_behind - axes_.begin());
}

Scenario Space::scenario(std::span<const std::int64_t> values) const {
  Scenario scenario = base_;
  for (std::size_t i = 0; i < values.size(); ++i) axes_[i].set(scenario, values[i]);
  return scenario;
}

}  // namespace orrery
