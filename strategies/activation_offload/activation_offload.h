// Activation offload to host memory (Megatron-Core's CPU offloading): the activations that a layer's forward keeps for
// its backward are copied to the host after the forward, and copied back one layer ahead of the backward.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::activation_offload {

void check(const Scenario& scenario);
void plan_layers(const Scenario& scenario, LayerPlans& plans);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

}  // namespace orrery::activation_offload
