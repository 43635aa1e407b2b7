// Candidate clusters with a size: the time and cost of a training on a number of their devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/planning/candidate.h"
#include "study/capacity/capacity_plan.h"
#include "study/search/search.h"
#include "study/simulation/simulation.h"

namespace orrery {

// The scenario that a cluster's pattern becomes on `devices` devices. Throws InputError if it cannot be laid out there.
using ScenarioOn = std::function<Scenario(const Scenario& pattern, std::int64_t devices)>;

// The pattern's plan with as many replicas as the devices hold; the global batch stays the same.
Scenario with_replicas(const Scenario& pattern, std::int64_t devices);

// The fastest plan that fits with the upper end of its predicted peak; if there is none, the fastest that fits; if
// nothing fits, the pattern's own plan. `started`: called before each search.
ScenarioOn searched_plans(SpaceOptions fields, int threads, UserCalibration user,
                          std::function<void(const Scenario&)> started = {});

struct SizedCandidate {
  std::size_t cluster = 0;  // index into CapacityPlan::clusters
  std::int64_t devices = 0;
  std::string impossible;  // why there is no such training; empty: there is one, described by the fields below
  std::optional<Scenario> scenario;
  double mfu = 0, memory_peak_bytes = 0, memory_capacity_bytes = 0;  // 0: the step's seconds were given
  bool memory_fits = true;
  Candidate candidate;
  Forecast forecast;
};

// All clusters in all their sizes, in order. Throws InputError if the figures contradict each other in the same way for
// all sizes.
std::vector<SizedCandidate> size_up(const CapacityPlan& plan, Simulator& simulator,
                                    const ScenarioOn& scenario_on = with_replicas);

// Predicts the scenario's step in closed form, with its interval if published steps are comparable; its memory; and the
// length of the training. Throws InputError.
void predict_step(const CapacityPlan& plan, const Scenario& scenario, Simulator& simulator, SizedCandidate& sized);

// The number of spare nodes with which the training takes the fewest device-hours, and thus the least money and energy;
// the smallest of equal ones. Waiting times are those of expected_run().
std::int64_t cheapest_spare_nodes(const TrainingRun& run);

}  // namespace orrery
