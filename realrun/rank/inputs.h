// Inputs of a rank's tensors, in place of a data set. The Program says which tensor gets which input (Tensor::input);
// the model says how many different ids there are.
#pragma once

#include <vector>

#include "realrun/rank/piece_plan.h"

namespace orrery::realrun {

// Returns the positions of a tensor along the sequence; none if it runs along another sequence than the piece's.
std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& t, const Position& position);

// Returns the values of a tensor with an Input. They are functions of the seed, the sequence in the global batch, and
// the position in it (or patch and pixel), whatever the layout.
std::vector<float> input_values(const RunSetup& setup, const Position& position, const PiecePlan& plan,
                                const Tensor& tensor, std::int64_t micro_batch);

}  // namespace orrery::realrun
