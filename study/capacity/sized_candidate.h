// Candidate clusters in sizes: what a training takes on so many of their devices.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/planning/candidate.h"
#include "study/capacity/capacity_plan.h"
#include "study/simulation/simulation.h"

namespace orrery {

// The scenario that a cluster's pattern becomes on so many devices. InputError: it cannot be laid out there.
using ScenarioOn = std::function<Scenario(const Scenario& pattern, std::int64_t devices)>;

// The pattern's plan, with as many replicas as the devices hold: the global batch stays.
Scenario with_replicas(const Scenario& pattern, std::int64_t devices);

struct SizedCandidate {
  std::size_t cluster = 0;  // of CapacityPlan::clusters
  std::int64_t devices = 0;
  std::string impossible;  // why there is no such training; empty: there is, and what follows is of it
  std::optional<Scenario> scenario;
  double mfu = 0, memory_peak_bytes = 0, memory_capacity_bytes = 0;  // 0: the step's seconds were given
  bool memory_fits = true;
  Candidate candidate;
  Forecast forecast;
};

// All clusters in all their sizes, in order. InputError where the figures contradict each other on all sizes alike.
std::vector<SizedCandidate> size_up(const CapacityPlan& plan, Simulator& simulator,
                                    const ScenarioOn& scenario_on = with_replicas);

// The scenario's step in closed form, with its interval where published steps are comparable; memory; the length of
// the training. Throws InputError.
void predict_step(const CapacityPlan& plan, const Scenario& scenario, Simulator& simulator, SizedCandidate& sized);

// The number of spare nodes with which the training takes the fewest device-hours, and by them least money and energy;
// of like ones the smallest. Waiting as in expected_run.
std::int64_t cheapest_spare_nodes(const TrainingRun& run);

}  // namespace orrery
