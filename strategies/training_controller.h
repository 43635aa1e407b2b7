// Controllers of what changes from step to step of a training. A strategy that changes something makes a controller
// (Strategy::control). study/training calls it at each step, and predicts a step anew when its state is new.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// A transfer between ranks that a controller's change causes.
struct StepMove {
  double seconds = 0;    // time of the busiest link with no other traffic
  bool blocking = true;  // true: the next step waits for it; false: it overlaps the following steps
  bool arrives = true;   // true: arrived() is called when it has finished
};

// Costs of the training's expert groups, as the engines' cost models compute them, for controllers that weigh changes.
// Ranks are positions within a group.
struct StepMoveCosts {
  std::function<double(double bytes, std::int64_t from, std::int64_t to)> send_seconds;
  // An all-reduce among `ranks`, while all other ranks of their nodes run equal ones and share the NICs.
  std::function<double(double bytes, std::span<const std::int64_t> ranks)> all_reduce_seconds;
  std::function<double(OpKind kind, double bytes)> group_seconds;  // a collective of the whole group
  double expert_tokens_per_second = 0;  // forward pass of one expert's matrix products on one device
};

class TrainingController {
 public:
  virtual ~TrainingController() = default;

  // Called once before the first step. `costs` must outlive the controller.
  virtual void use(const StepMoveCosts& costs) { (void)costs; }

  // Sets what the training has made of the step that begins. `scenario` is as the user wrote it, but for workload.step,
  // which is that step; `situation` is that of the step before. Steps ascend by one. The first step must equal the step
  // predicted on its own.
  virtual void begin(const Scenario& scenario, Situation& situation) { (void)scenario, (void)situation; }
  // Returns the controller's state. Steps with equal states have equal Programs, as far as this controller changes
  // them.
  virtual std::uint64_t state(const Scenario& scenario) const = 0;
  // Called after a step. Returns the transfers that the step causes.
  virtual std::vector<StepMove> end(const Scenario& scenario) {
    (void)scenario;
    return {};
  }
  // Called when all transfers of one step with `arrives` have finished. Takes effect from the next step.
  virtual void arrived() {}

  // Figures of a step for the training's table: figures() returns their names, figures(scenario, values) appends their
  // values. Values are valid once begin() was called.
  virtual std::span<const std::string_view> figures() const { return {}; }
  virtual void figures(const Scenario& scenario, std::vector<double>& values) const { (void)scenario, (void)values; }
};

}  // namespace orrery
