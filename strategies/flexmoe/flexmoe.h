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

void check(const Scenario& scenario);
// Sets Program::expert_of_slot for placements that the plan gives.
void rewrite(const Scenario& scenario, Program& program);
std::optional<Scenario> settle(const Scenario& scenario);
// Figures: balance (rows of the busiest rank over the mean, averaged over layers), replicas (ranks per expert beyond
// the first, summed over all experts and layers of the routing's source), moved_copies (copies that arrived before the
// step; fastermoe: in each of its micro-batches). swipe has the figures balance and rerouted_share (fraction of all
// rows that go to another expert than their router chose).
std::unique_ptr<RunController> control(const Scenario& scenario);
void disable(Plan& plan);
bool begins_anew(const Scenario& scenario);
void make_runnable(Scenario& scenario);
void check_runnable(const Scenario& scenario);

}  // namespace orrery::flexmoe
