// The optimizer. It lays out each piece's parameters and gradients as flat resident buffers and adds the states that
// its rule needs (Adam: Kingma & Ba 2014, arXiv 1412.6980). It also adds the update block: the global gradient norm,
// then one fused update.
#pragma once

#include "sim/program/program.h"
#include "strategies/scenario.h"

namespace orrery::optimizer {

// Returns the bytes per trained parameter that training needs in order to continue elsewhere, as in a checkpoint: the
// value, the master copy and the moments, without the gradient. FSDP's fp32 shards are value and master copy in one.
// Under Muon: of a matrix's parameter. Under Adafactor: without the factors, two numbers for a row and a column.
double bytes_kept_per_parameter(const Plan& plan);

}  // namespace orrery::optimizer
