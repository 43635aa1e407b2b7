// The optimizer lays out each piece's parameters and gradients as flat resident buffers, and adds the states of its
// rule (Adam: Kingma & Ba 2014, arXiv 1412.6980) and the update block: the global gradient norm, then one fused update.
#pragma once

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::optimizer {

void check(const Scenario& scenario);
void rewrite(const Scenario& scenario, Program& program);
void check_runnable(const Scenario& scenario);

// Bytes per trained parameter that a checkpoint needs: its value, the master copy and the moments.
double bytes_kept_per_parameter(const Plan& plan);

}  // namespace orrery::optimizer
