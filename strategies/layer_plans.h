// The plan of each layer: the scenario's plan, unless one of its ranges of layers (Plan::layers) changes it.
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
  // Gives every layer scenario.plan. Keeps a reference to scenario.plan, which must outlive this object.
  explicit LayerPlans(const Scenario& scenario) : base_(scenario.plan), layers_(scenario.model.total_layers()) {}

  // Applies `by` to the plans of layers from, from + step, ... below `to`. `by` may change only fields of Scope::layer.
  void change(std::int64_t from, std::int64_t to, std::int64_t step, const std::function<void(Plan&)>& by);

  // Returns the plan of a piece. REQUIRES: split() has processed `piece`, or `piece` is a copy of one it has processed.
  const Plan& of(const Piece& piece) const { return plan(piece.plan); }

  // Cuts the program's runs of pieces where the plan changes. A piece whose layers have several plans gets one variant
  // for each plan after the first. Pieces between layers take the plan of the layer that follows; the first and last
  // pieces of a stack keep scenario.plan.
  void split(Program& program) const;

 private:
  const Plan& plan(std::uint16_t number) const { return number == 0 ? base_ : others_[number - 1u]; }
  std::uint16_t number_of(const Plan& plan);

  const Plan& base_;
  const std::int64_t layers_;
  std::vector<Plan> others_;             // plans that differ from base_ and from each other
  std::vector<std::uint16_t> of_layer_;  // number of each layer's plan; empty: all layers have base_
};

// Returns the plan of each layer, after the plan's ranges and every Strategy::plan_layers. Takes no time if the plan
// has no ranges and no strategy changes a layer.
LayerPlans layer_plans(const Scenario& scenario);

// Calls visit(plan, pointer) for the plan ("/plan/") and the plan of each range ("/plan/layers/0/"), to check fields
// that may differ by layer. REQUIRES: `visit` reads only fields of Scope::layer from a range's plan.
template <class Visit>
void for_each_plan(const Scenario& scenario, Visit&& visit) {
  visit(scenario.plan, std::string("/plan/"));
  for (std::size_t i = 0; i < scenario.plan.layers.size(); ++i)
    visit(scenario.plan.layers[i].plan, "/plan/layers/" + std::to_string(i) + "/");
}

// Whether `holds` is true for the plan or for the plan of one of its ranges.
template <class Predicate>
bool any_plan(const Scenario& scenario, Predicate&& holds) {
  bool any = false;
  for_each_plan(scenario, [&](const Plan& plan, const std::string&) { any = any || holds(plan); });
  return any;
}

// Whether `range` gives its layers other values than `around`, the plan that the range belongs to.
bool is_another_for_layers(const Plan& range, const Plan& around);

// Throws InputError for ranges that are empty, leave the model or overlap.
void check_ranges(const Scenario& scenario);

}  // namespace orrery
