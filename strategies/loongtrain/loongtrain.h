// Rings of rings (LoongTrain's Double-Ring-Attention: Gu et al. 2024, arXiv 2406.18485): keys and values go round the
// `inner_ring_degree` neighbours of an inner ring. While these compute, the keys and values also go on to the next
// inner ring. strategies/context_parallel has the steps; groups that exchange heads (strategies/usp) may be added.
#pragma once

#include "sim/program/program.h"
#include "strategies/strategy.h"

namespace orrery::loongtrain {

void check(const Scenario& scenario);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

// Adds the digits of a ring of `ranks` ranks on the axis cp, all named `name`: first those of the inner ring, then the
// rest. Throws InputError if the inner ring does not divide the ring.
void add_ring(const Scenario& scenario, Mesh& mesh, std::int64_t ranks, const char* name);

}  // namespace orrery::loongtrain
