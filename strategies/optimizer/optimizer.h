// The optimizer: lays each piece's parameters and gradients out as flat resident buffers, adds the states its rule
// needs (Adam: Kingma & Ba 2014, arXiv 1412.6980) and the update block: the global gradient norm, then one fused
// update.
#pragma once

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::optimizer {

// What of a trained parameter must be kept to go on from: its value, the master copy, the moments.
double bytes_kept_per_parameter(const Plan& plan);

}  // namespace orrery::optimizer
