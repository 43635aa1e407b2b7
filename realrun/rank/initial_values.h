// Parameters, gradients and optimizer states as the first step finds them.
#pragma once

#include <vector>

#include "realrun/rank/carried_state.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

// Begins the flat buffers of an instance: parameters by their place in the whole model, a master copy with the
// parameters' values, moments and gradients zero. What has been in the Program before begins as it ended there.
// REQUIRES: nothing that `carried` lacks.
void initialise(const RunSetup& setup, const Position& position, const Instance& instance, const CarriedState& carried,
                TensorMemory& memory);

// What an instance begins with and `carried` lacks; what it leaves, of that which the rank updates itself.
std::vector<CarriedState::Stretch> lacking(const RunSetup& setup, const Position& position, const Instance& instance,
                                           const CarriedState& carried);
void keep(const RunSetup& setup, const Position& position, const Instance& instance, TensorMemory& memory,
          CarriedState& carried);

}  // namespace orrery::realrun
