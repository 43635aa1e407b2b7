// The dense-to-sparse gate as a plan's choice (Nie et al. 2021, arXiv 2112.14397): by the workload's step a token has
// one expert that all tokens share, nearly all experts, fewer and fewer, one. gate.h has the schedule.
//
//   single_expert  the model without experts: each device has the one expert, its gradients are all-reduced
//   soft           rows of as many experts a token as are computed on average (GateState::computed_experts, to a
//                  hundredth); memory and exchanges go with them
//   hard           top-1
//
// A run, which has a slot for every token in each expert (moe_expert_capacity_factor of at least the experts), decides
// by its numbers how many experts a token has.
#pragma once

#include <memory>
#include <optional>

#include "strategies/strategy.h"

namespace orrery::dts_gate {

void check(const Scenario& scenario);
std::optional<Scenario> settle(const Scenario& scenario);
// Figures: gate_temperature, active_experts, computed_experts.
std::unique_ptr<RunController> control(const Scenario& scenario);

}  // namespace orrery::dts_gate
