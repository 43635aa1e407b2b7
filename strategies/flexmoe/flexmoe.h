// Placements of experts that follow their load, as a plan's choice (FlexMoE, Nie et al. 2023, arXiv 2304.03946; EPLB;
// SYMI), and what it is compared with: FasterMoE's shadowing and SWIPE. A step has `moe_slots_per_rank` experts on each
// rank; how many rows go from which rank to which is the controller's of a training (Scenario::expert_rows). A single
// step, and the first of a training, has every expert once, in blocks, or the placement that is given for it.
#pragma once

#include <memory>
#include <optional>

#include "strategies/strategy.h"

namespace orrery::flexmoe {

void check(const Scenario& scenario);
std::optional<Scenario> settle(const Scenario& scenario);

}  // namespace orrery::flexmoe
