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
// Program::expert_of_slot, of placements that are given.
void rewrite(const Scenario& scenario, Program& program);
std::optional<Scenario> settle(const Scenario& scenario);
// Figures: balance (rows of the busiest rank over the mean, mean of layers), replicas (ranks beyond one an expert, of
// all layers of the routing's source), moved_copies (that arrived in front of the step; fastermoe: in each of its
// micro-batches). Of swipe: balance, rerouted_share (of all rows, those that go elsewhere than their router said).
std::unique_ptr<RunController> control(const Scenario& scenario);
void disable(Plan& plan);
bool begins_anew(const Scenario& scenario);
void make_runnable(Scenario& scenario);
void check_runnable(const Scenario& scenario);

}  // namespace orrery::flexmoe
