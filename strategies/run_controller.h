// What changes from step to step of a training. A strategy that changes something makes a controller
// (Strategy::control); study/training asks it step by step, and predicts a step anew where its state is a new one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "strategies/scenario.h"

namespace orrery {

// What moves between ranks when a controller changes something.
struct RunWork {
  double seconds = 0;    // of the busiest link, with nothing else on it
  bool blocking = true;  // the next step waits for it; else it goes on beside the steps that follow
  bool arrives = true;   // arrived() is to be called for it
};

// What the engines' cost models say of the training's expert groups, for controllers that weigh changes. Ranks are
// places in a group.
struct RunCosts {
  std::function<double(double bytes, std::int64_t from, std::int64_t to)> send_seconds;
  std::function<double(double bytes, std::span<const std::int64_t> ranks)> all_reduce_seconds;
  std::function<double(OpKind kind, double bytes)> group_seconds;  // of a collective of the whole group
  double expert_tokens_per_second = 0;                             // forward, of an expert's products on one device
};

class RunController {
 public:
  virtual ~RunController() = default;

  // In front of the first step. `costs` outlive the controller.
  virtual void use(const RunCosts& costs) { (void)costs; }

  // Makes of `scenario`, whose workload.step is already the next step, the scenario of that step. Steps ascend by one.
  // The first step must be what it is alone.
  virtual void begin(Scenario& scenario) { (void)scenario; }
  // Steps for which it is the same have the same Program, as far as this controller goes.
  virtual std::uint64_t state(const Scenario& scenario) const = 0;
  // Behind the step: what it leaves to move.
  virtual std::vector<RunWork> end(const Scenario& scenario) {
    (void)scenario;
    return {};
  }
  // All that was left behind one step, and arrives, has moved: holds from the next step on.
  virtual void arrived() {}

  // Figures of a step, for the training's table: their names, and their values once begin() was called.
  virtual std::span<const std::string_view> figures() const { return {}; }
  virtual void figures(const Scenario& scenario, std::vector<double>& values) const { (void)scenario, (void)values; }
};

}  // namespace orrery
