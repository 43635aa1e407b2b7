// The plans of the model's layers: the plan itself, where its ranges of layers (Plan::layers) say nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery {

class LayerPlans {
 public:
  // All layers under scenario.plan, which is referred to.
  explicit LayerPlans(const Scenario& scenario) : base_(scenario.plan), layers_(scenario.model.total_layers()) {}

  // Changes the plan of layers from, from + step, ... below `to`; fields of other scopes than Scope::layer must stay.
  void change(std::int64_t from, std::int64_t to, std::int64_t step, const std::function<void(Plan&)>& by);

  // Of a piece that split() has seen, or a copy of one.
  const Plan& of(const Piece& piece) const { return plan(piece.plan); }

  // Cuts the line's runs where the plan changes. A piece whose layers have several plans gets a variant for each but
  // the first. What stands between layers goes with the layer behind it, the ends of a stack have the plan itself.
  void split(Program& program) const;

 private:
  const Plan& plan(std::uint16_t number) const { return number == 0 ? base_ : others_[number - 1u]; }
  std::uint16_t number_of(const Plan& plan);

  const Plan& base_;
  const std::int64_t layers_;
  std::vector<Plan> others_;             // that differ from base_ and from each other
  std::vector<std::uint16_t> of_layer_;  // empty: all have base_
};

// With the ranges, and what strategies say of single layers (Strategy::plan_layers). Costs nothing where the plan does
// neither.
LayerPlans layer_plans(const Scenario& scenario);

// Visits the plan and those of its ranges with the place of each, "/plan" and "/plan/layers/0", for checks of fields
// that may differ. REQUIRES: of a range's plan only such fields are looked at.
template <class Visit>
void for_each_plan(const Scenario& scenario, Visit&& visit) {
  visit(scenario.plan, std::string("/plan/"));
  for (std::size_t i = 0; i < scenario.plan.layers.size(); ++i)
    visit(scenario.plan.layers[i].plan, "/plan/layers/" + std::to_string(i) + "/");
}

// Whether one of them is such.
template <class Predicate>
bool any_plan(const Scenario& scenario, Predicate&& holds) {
  bool any = false;
  for_each_plan(scenario, [&](const Plan& plan, const std::string&) { any = any || holds(plan); });
  return any;
}

// Whether layers of a range with this plan differ from those of the plan around it.
bool is_another_for_layers(const Plan& range, const Plan& around);

// Throws InputError for ranges that are empty, leave the model or overlap.
void check_ranges(const Scenario& scenario);

}  // namespace orrery
