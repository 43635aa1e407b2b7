// FSMoE's pipeline degree and gradient partition (Pan et al. 2025, arXiv 2501.10714, sections 4 and 5). Computes the
// authors' choice, from linear times of a profile and four cases, next to the best values by the engine. The profile
// comes from the cost models, over the paper's sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strategies/fsmoe/degree.h"
#include "strategies/fsmoe/gradient_partition.h"
#include "strategies/topic.h"

namespace orrery::fsmoe {

// An operation of a layer with experts: alpha and beta for n units, by least squares over sizes.
struct ProfiledTime {
  LinearTime time;           // seconds, and seconds by element or by multiply-add
  double determination = 1;  // r^2 of the fit; 1 where the layer has no such operation
  double units = 0;          // n of the layer: elements that a rank hands over or gathers, multiply-adds of a rank

  ChunkedTime of_layer() const { return {time.start_up, units * time.per_unit}; }
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
  ProfiledTime all_reduce;   // of a layer's gradients but the experts'
  double dense_seconds = 0;  // backward, of what has no rows of experts
  std::int64_t layers = 0;   // of a stage
  GradientPartition greedy, global;
  // Nothing beside layers; as the two partitions have it, in the mean of layers behind the first; the best of all
  // shares in quarters.
  std::vector<StepByShares> steps;
  std::string refused;  // why the plan has no gradient pieces; `steps` is then empty
};

struct PipelineDegrees {
  std::string layer;                                             // the piece
  ProfiledTime all_to_all, all_gather, reduce_scatter, experts;  // forward; an all-to-all is a dispatch or a combine
  std::vector<PipelinedLayer> forward, backward;                 // of each of kDegrees
  PipelinedLayer chosen_forward, chosen_backward;                // no gradients reduced in the layer
  std::vector<StepByDegrees> steps;                              // those of kDegrees that the schedule has
  GradientPieces gradients;

  const StepByDegrees& fastest() const;  // the first of equal ones
  // The step with the degrees that the cases choose; null if the schedule does not have them.
  const StepByDegrees* chosen() const;
};

// Throws InputError ("--explain") for plans whose layers with experts are not cut into chunks.
PipelineDegrees pipeline_degrees(const Scenario& scenario, const Evaluate& evaluate);
std::string pipeline_degree_text(const PipelineDegrees& degrees);

// `--explain moe_pipeline_degree`.
std::span<const Topic> topics();

}  // namespace orrery::fsmoe
