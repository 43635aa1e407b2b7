// Which plans the rules of strategies refuse.
#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <optional>
#include <stdexcept>
#include <vector>

#include "sim/base/error.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

using Fields = std::bitset<256>;  // by number: the place in Plan::visit_fields

// The fields of a plan: which are of Scope::layer, their names and their values.
struct PlanFields {
  explicit PlanFields(const Plan& plan) {
    EachField each([&](const VisitedField& field, const auto& value) {
      of_layers[names.size()] = field.scope == Scope::layer;
      names.push_back(field.name);
      values.emplace_back(value);
    });
    Plan(plan).visit_fields(each);
  }

  // The fields that have other values in `plan`.
  Fields other_in(const Plan& plan) const {
    Fields other;
    std::size_t next = 0;
    EachField each([&](const VisitedField&, const auto& value) {
      other[next] = std::get<std::decay_t<decltype(value)>>(values[next]) != value;
      ++next;
    });
    Plan(plan).visit_fields(each);
    return other;
  }

  Fields of_layers;
  std::vector<std::string_view> names;
  std::vector<AnyFieldValue> values;
};

const PlanFields& defaults() {
  static const PlanFields fields{Plan()};
  return fields;
}

std::size_t number_of(std::string_view field) {
  const std::vector<std::string_view>& names = defaults().names;
  const auto at = std::ranges::find(names, field);
  if (at == names.end()) throw std::logic_error("no field of the plan is named " + std::string(field));
  return static_cast<std::size_t>(at - names.begin());
}

// The value of a field, as messages have it.
std::string text_of(const Plan& plan, std::string_view name) {
  std::string text;
  EachField each([&](const VisitedField& field, const auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (field.name != name) return;
    if constexpr (std::is_same_v<Value, std::size_t>) {
      text = fmt::format("\"{}\"", field.names[value]);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      text = fmt::format("\"{}\"", value);
    } else if constexpr (std::is_same_v<Value, std::vector<std::int64_t>>) {
      text = value.empty() ? "none" : fmt::format("an array of {}", value.size());
    } else {
      text = fmt::format("{}", value);
    }
  });
  Plan(plan).visit_fields(each);
  return text;
}

// A rule with its fields by number.
struct BoundRule {
  const FieldRule* rule;
  Fields fields;
  bool idle;  // of Strategy::idle
};
void bind(std::span<const FieldRule> rules, bool idle, std::vector<BoundRule>& bound) {
  for (const FieldRule& rule : rules) {
    bound.push_back({&rule, {}, idle});
    for (const std::string_view field : rule.fields)
      if (!field.empty()) bound.back().fields.set(number_of(field));
  }
}

// The plan or one of its ranges.
struct CheckedPlan {
  const Plan* plan;
  std::string at;
  Fields unusual;  // not at their defaults
  Fields own;      // of a range, those that have not the plan's values

  // Throws InputError for the first of `fields` that is in `set`.
  void refuse_first(const FieldNames& fields, Fields set, std::string_view because) const {
    const char* const between = because.starts_with(':') || because.starts_with(',') ? "" : " ";
    for (const std::string_view field : fields)
      if (!field.empty() && set[number_of(field)])
        refuse(*plan, field, text_of(Plan(), field) + between + std::string(because), at);
  }
};

std::vector<CheckedPlan> checked_plans(const Scenario& scenario) {
  std::optional<PlanFields> around;
  if (!scenario.plan.layers.empty()) around.emplace(scenario.plan);
  std::vector<CheckedPlan> all;
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    const bool of_range = &plan != &scenario.plan;
    all.push_back({&plan, at, defaults().other_in(plan), of_range ? around->other_in(plan) : ~Fields()});
    if (of_range) all.back().unusual &= defaults().of_layers;
  });
  return all;
}

void check_rule(const Scenario& scenario, const std::vector<CheckedPlan>& plans, const BoundRule& of) {
  const auto holds = [&](const CheckedPlan& checked) { return of.rule->holds({scenario, *checked.plan}); };
  for (const CheckedPlan& checked : plans) {
    const Fields set = checked.unusual & of.fields & (of.idle ? checked.own : ~Fields());
    if (set.none() || holds(checked) == of.idle) continue;
    // What only ranges use may be given for all of them.
    if (of.idle && &checked == &plans.front() && std::ranges::any_of(plans, holds)) continue;
    checked.refuse_first(of.rule->fields, set, of.rule->because);
  }
}

}  // namespace

void check_strategies(const Scenario& scenario, std::string_view only) {
  static const std::vector<std::vector<BoundRule>> rules = [] {
    std::vector<std::vector<BoundRule>> all;
    for (const Strategy& strategy : all_strategies()) {
      bind(strategy.idle, true, all.emplace_back());
      bind(strategy.excludes, false, all.back());
    }
    return all;
  }();
  const std::vector<CheckedPlan> plans = checked_plans(scenario);
  const std::span<const Strategy> strategies = all_strategies();
  for (std::size_t s = 0; s < strategies.size(); ++s) {
    if (!only.empty() && strategies[s].name != only) continue;
    for (const BoundRule& rule : rules[s]) check_rule(scenario, plans, rule);
    if (strategies[s].check != nullptr) strategies[s].check(scenario);
  }
}

bool is_refused(std::span<const FieldRule> excludes, const Scenario& scenario) {
  std::vector<BoundRule> rules;
  bind(excludes, false, rules);
  try {
    for (const BoundRule& rule : rules) check_rule(scenario, checked_plans(scenario), rule);
  } catch (const InputError&) {
    return true;
  }
  return false;
}

void refuse(const Plan& plan, std::string_view field, const std::string& expected, const std::string& at) {
  throw InputError({"", at + std::string(field)}, text_of(plan, field), expected);
}

void refuse_heads_in_common(const Scenario& scenario, std::string_view because) {
  if (const std::int64_t heads = scenario.model.effective_kv_heads(); scenario.plan.tensor.degree > heads)
    refuse(scenario.plan, "tensor_parallel", fmt::format("at most the model's {} key/value heads {}", heads, because));
}

void keep_defaults(const Plan& plan, const FieldNames& fields, std::string_view because) {
  CheckedPlan{&plan, "/plan/", {}, {}}.refuse_first(fields, defaults().other_in(plan), because);
}

}  // namespace orrery
