// Placements of experts that follow their load, as an option of the plan (FlexMoE, Nie et al. 2023, arXiv 2304.03946;
// EPLB; SYMI), and two methods they are compared with: FasterMoE's shadowing and SWIPE. Each rank has
// `moe_slots_per_rank` experts. In a training, the controller decides how many rows go from which rank to which
// (Scenario::expert_rows). A single step, and the first step of a training, has every expert once, in blocks, or the
// placement that the plan gives for it.
#pragma once

#include <memory>
#include <optional>

#include "strategies/strategy.h"

namespace orrery::flexmoe {

std::optional<Scenario> settle(const Scenario& scenario);

}  // namespace orrery::flexmoe
