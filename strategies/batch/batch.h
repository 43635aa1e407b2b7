// The global batch is replicas x micro-batches x micro-batch size. The number of micro-batches follows from the rest.
#pragma once

#include <span>

#include "sim/program/program.h"
#include "strategies/scenario.h"
#include "strategies/search_axis.h"

namespace orrery::batch {

void check(const Scenario& scenario);
// Divides every dimension along the batch over the data-parallel digits.
void rewrite(const Scenario& scenario, Program& program);
std::span<const SearchAxis> search_axes();

}  // namespace orrery::batch
