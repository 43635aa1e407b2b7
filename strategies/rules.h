// Fields of the plan that do not go with others. Strategies declare them (Strategy::excludes, Strategy::idle), and one
// place derives which plans are refused.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "strategies/scenario.h"

namespace orrery {

// What a rule is asked about: a scenario, and its plan or the plan of one of its ranges of layers. Only fields of
// Scope::layer may be read from the latter.
struct AskedOf {
  const Scenario& scenario;
  const Plan& layers;
  const Plan& plan = scenario.plan;
  const Model& model = scenario.model;
};

using FieldNames = std::array<std::string_view, 10>;  // empty ones are behind the others

// Fields that keep their default values where something holds, or unless it does. A plan that sets one is refused with
// a sentence: the value that was found, and as expected the default value with `because` behind it.
struct FieldRule {
  FieldNames fields;
  std::string_view because;  // "with mics_shard_size: both set the size of a shard group"
  bool (*holds)(const AskedOf& asked);
};
constexpr FieldRule keep(FieldNames fields, std::string_view because, bool (*holds)(const AskedOf&)) {
  return {fields, because, holds};
}

// Throws InputError if a strategy's rules or its check() refuse the plan. `only`: the one strategy that is asked.
void check_strategies(const Scenario& scenario, std::string_view only = {});
// Whether rules of Strategy::excludes refuse the plan.
bool is_refused(std::span<const FieldRule> excludes, const Scenario& scenario);

// Throws InputError for the value of a field of the plan. `at`: the plan's pointer, as in for_each_plan().
[[noreturn]] void refuse(const Plan& plan, std::string_view field, const std::string& expected,
                         const std::string& at = "/plan/");
// Throws InputError, as for a rule, for the first of `fields` that is not at its default value.
void keep_defaults(const Plan& plan, const FieldNames& fields, std::string_view because);

}  // namespace orrery
