// Parameters, gradients and optimizer states as the first step finds them.
#pragma once

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

// Begins the flat buffers of an instance: parameters by their place in the whole model, a master copy with the
// parameters' values, moments and gradients zero.
void initialise(const RunSetup& setup, const Position& position, const Instance& instance, TensorMemory& memory);

}  // namespace orrery::realrun
