// CPU optimizer offload (ZeRO-Offload: Ren et al. 2021, arXiv 2101.06840): optimizer states live in host memory.
// Reduced gradients are copied to the host as the backward produces them, the CPU updates, and parameters are copied
// back.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::offload {

void check(const Scenario& scenario);
void rewrite(const Scenario& scenario, Program& program);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

}  // namespace orrery::offload
