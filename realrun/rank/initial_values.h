// Values of parameters, gradients and optimizer states before the first step.
#pragma once

#include <vector>

#include "realrun/rank/carried_state.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

// Initialises the flat buffers of an instance: parameters by their index in the whole model, a master copy with the
// parameters' values, moments and gradients with zero. Values from the last Program continue from there. REQUIRES:
// `carried` has everything that lacking() returns.
void initialise(const RunSetup& setup, const Position& position, const Instance& instance, const CarriedState& carried,
                TensorMemory& memory);

// lacking: what an instance needs and `carried` lacks. keep: adds what the instance holds and this rank updates itself.
std::vector<CarriedState::Stretch> lacking(const RunSetup& setup, const Position& position, const Instance& instance,
                                           const CarriedState& carried);
void keep(const RunSetup& setup, const Position& position, const Instance& instance, TensorMemory& memory,
          CarriedState& carried);

}  // namespace orrery::realrun
