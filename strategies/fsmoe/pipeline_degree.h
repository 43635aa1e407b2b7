// FSMoE's pipeline degree and gradient partition (Pan et al. 2025, arXiv 2501.10714, sections 4 and 5). This computes
// two answers side by side: the authors' choice, which follows from linear times and their four cases, and the fastest
// step that the engine finds. The linear times are fitted to the cost models at the paper's sizes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "strategies/fsmoe/choices.h"
#include "strategies/topic.h"

namespace orrery::fsmoe {

// The time of an operation of a layer with experts: alpha + beta n for n units, fitted by least squares over sizes.
struct ProfiledTime {
  LinearTime time;           // alpha in seconds; beta in seconds per element or per multiply-add
  double determination = 1;  // r^2 of the fit; 1 if the layer has no such operation
  double units = 0;          // n of this layer on a rank: elements that it sends or gathers, or multiply-adds

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
  ProfiledTime all_reduce;   // of a layer's gradients, without those of experts
  double dense_seconds = 0;  // backward of a layer's ops that do not work on the rows of experts
  std::int64_t layers = 0;   // layers with experts on a stage
  GradientPartition greedy, global;
  // The step with no pieces; with the shares of either partition, averaged over all layers but the first; and the
  // fastest step with shares that are multiples of 1/4.
  std::vector<StepByShares> steps;
  std::string refused;  // why the plan has no gradient pieces; `steps` is then empty
};

struct PipelineDegrees {
  std::string layer;                                             // name of the piece
  ProfiledTime all_to_all, all_gather, reduce_scatter, experts;  // forward; an all-to-all is a dispatch or a combine
  std::vector<PipelinedLayer> forward, backward;                 // at each of kDegrees
  PipelinedLayer chosen_forward, chosen_backward;                // by the cases, without pieces of gradients
  std::vector<StepByDegrees> steps;                              // at those of kDegrees that moe_schedule allows
  GradientPieces gradients;

  const StepByDegrees& fastest() const;  // the first of equally fast ones
  // Returns the step with the degrees that the cases choose; null if moe_schedule does not allow them.
  const StepByDegrees* chosen() const;
};

// Throws InputError ("--explain") for plans whose layers with experts are not cut into chunks.
PipelineDegrees pipeline_degrees(const Scenario& scenario, const Evaluate& evaluate);
std::string pipeline_degree_text(const PipelineDegrees& degrees);

// Returns the topic of `--explain moe_pipeline_degree`.
std::span<const Topic> topics();

}  // namespace orrery::fsmoe
