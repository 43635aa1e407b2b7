// How the global batch is cut: replicas x micro-batches x micro-batch size. Gradient accumulation is what remains.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "strategies/search_axis.h"

namespace orrery::batch {

void check(const Scenario& scenario);
// Every dimension along the batch is divided over the data-parallel digits.
void rewrite(const Scenario& scenario, Program& program);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::batch
