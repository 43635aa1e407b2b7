// The dense-to-sparse gate as an option of the plan (Nie et al. 2021, arXiv 2112.14397). As steps go on, a token is
// given to one expert that all tokens share, then to nearly all experts, then to fewer and fewer, and finally to one.
// gate.h has the schedule of the phases:
//
//   single_expert  the model without experts: each device has the one expert, whose gradients are all-reduced
//   soft           rows for the average number of experts that compute a token (GateState::computed_experts, rounded to
//                  0.01); memory and exchanges scale with it
//   hard           top-1
//
// In a run the data decide how many experts a token has. A run therefore has a slot for every token in each expert
// (moe_expert_capacity_factor of at least the number of experts).
#pragma once

#include <memory>
#include <optional>

#include "strategies/strategy.h"

namespace orrery::dts_gate {

std::optional<Scenario> settle(const Scenario& scenario);
// Returns a controller that adds the figures gate_temperature, active_experts, computed_experts.
std::unique_ptr<TrainingController> control(const Scenario& scenario);

}  // namespace orrery::dts_gate
