// FSMoE's pipeline degree and gradient partition (Pan et al. 2025, arXiv 2501.10714, sections 4 and 5). Computes the
// authors' choice, from linear times of a profile and four cases, next to the best values by the engine. The profile
// comes from the cost models, over the paper's sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "strategies/fsmoe/degree.h"
#include "strategies/fsmoe/gradient_partition.h"
#include "study/simulation/simulation.h"

namespace orrery {

// An operation of a layer with experts: alpha and beta for n units, by least squares over sizes.
struct ProfiledTime {
  fsmoe::LinearTime time;    // start-up seconds, and seconds per element or per multiply-add
  double determination = 1;  // r^2 of the fit; 1 if the layer has no such operation
  double units = 0;          // n of the layer: elements that a rank sends or gathers, or multiply-adds of a rank

  fsmoe::ChunkedTime of_layer() const { return {time.start_up, units * time.per_unit}; }
};

struct StepByDegrees {
  std::int64_t forward = 1, backward = 1;
  double seconds = 0;  // of the step
};

// A step in which layers send these shares of their gradients during the backward of the next layer
// (moe_gradient_share_experts, moe_gradient_share_dense).
struct StepByShares {
  std::string partition;  // the method that chose the shares
  double experts = 0, dense = 0;
  double seconds = 0;  // of the step
};

// The gradient partition, with the engine's fastest degrees.
struct GradientPieces {
  ProfiledTime all_reduce;   // of a layer's gradients without the experts'
  double dense_seconds = 0;  // backward of all ops without rows of experts
  std::int64_t layers = 0;   // of one stage
  fsmoe::GradientPartition greedy, global;
  // Without sending gradients during layers; with the shares of each of the two partitions (mean over the layers after
  // the first); and the best of all shares in quarters.
  std::vector<StepByShares> steps;
  std::string refused;  // why the plan has no gradient pieces; `steps` is then empty
};

struct PipelineDegrees {
  std::string layer;                                             // name of the piece
  ProfiledTime all_to_all, all_gather, reduce_scatter, experts;  // in the forward; all_to_all: a dispatch or a combine
  std::vector<fsmoe::PipelinedLayer> forward, backward;          // by element of fsmoe::kDegrees
  fsmoe::PipelinedLayer chosen_forward, chosen_backward;         // if no gradients are reduced during the layer
  std::vector<StepByDegrees> steps;                              // the degrees of fsmoe::kDegrees that the schedule has
  GradientPieces gradients;

  const StepByDegrees& fastest() const;  // the first of equal ones
  // The step with the degrees that the cases choose; null if the schedule does not have them.
  const StepByDegrees* chosen() const;
};

// `evaluate`: the engine. Throws InputError ("--explain") for plans whose layers with experts are not cut into chunks.
PipelineDegrees pipeline_degrees(const Scenario& scenario, const std::function<Simulation(const Scenario&)>& evaluate);
std::string pipeline_degree_text(const PipelineDegrees& degrees);

}  // namespace orrery
