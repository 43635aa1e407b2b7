// FSMoE's pipeline degree (Pan et al. 2025, arXiv 2501.10714, section 4) as its authors choose it, by linear times of a
// profile and four cases, beside what the engine finds. The profile is of the cost models, over the paper's sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/simulation/simulation.h"
#include "strategies/fsmoe/degree.h"

namespace orrery {

// An operation of a layer with experts: alpha and beta of n units, by least squares over sizes.
struct ProfiledTime {
  fsmoe::LinearTime time;    // seconds, and seconds by element or by multiply-add
  double determination = 1;  // r^2 of the fit; 1 where the layer has no such operation
  double units = 0;          // n of the layer: elements that a rank hands over or gathers, multiply-adds of a rank

  fsmoe::ChunkedTime of_layer() const { return {time.start_up, units * time.per_unit}; }
};

struct StepByDegrees {
  std::int64_t forward = 1, backward = 1;
  double seconds = 0;  // of the step
};

struct PipelineDegrees {
  std::string layer;                                             // the piece
  ProfiledTime all_to_all, all_gather, reduce_scatter, experts;  // forward; an all-to-all is a dispatch or a combine
  std::vector<fsmoe::PipelinedLayer> forward, backward;          // of each of fsmoe::kDegrees
  fsmoe::PipelinedLayer chosen_forward, chosen_backward;         // no gradients reduced in the layer
  std::vector<StepByDegrees> steps;                              // those of fsmoe::kDegrees that the schedule has

  const StepByDegrees& fastest() const;  // of equal ones the first
  // With the degrees that the cases choose; null where the schedule does not have them.
  const StepByDegrees* chosen() const;
};

// `evaluate`: the engine. Throws InputError ("--explain") for plans whose layers with experts are not cut into chunks.
PipelineDegrees pipeline_degrees(const Scenario& scenario, const std::function<Simulation(const Scenario&)>& evaluate);
std::string pipeline_degree_text(const PipelineDegrees& degrees);

}  // namespace orrery
