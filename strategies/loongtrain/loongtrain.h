// Rings of rings (LoongTrain's Double-Ring-Attention: Gu et al. 2024, arXiv 2406.18485): keys and values go round
// `inner_ring_degree` neighbours, and from there to the next such ring beside what these do with them. The steps are
// those of strategies/context_parallel, with or without groups that exchange heads (strategies/usp).
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::loongtrain {

void check(const Scenario& scenario);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

// Lays the digits of a ring of `ranks`, of the axis cp and of one name: those of an inner ring, and behind them the
// rest. Throws InputError for an inner ring that is none of this one.
void add_ring(const Scenario& scenario, Mesh& mesh, std::int64_t ranks, const char* name);

}  // namespace orrery::loongtrain
