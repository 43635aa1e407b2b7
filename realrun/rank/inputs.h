// What a rank's tensors are given from outside: data of the run, as of a data set. The Program says which tensor is
// given what (Tensor::input); how many kinds of ids there are is the model's.
#pragma once

#include <vector>

#include "realrun/rank/piece_plan.h"

namespace orrery::realrun {

// Positions of a tensor that runs along the sequence; none of another sequence than the piece's.
std::vector<std::int64_t> sequence_positions(const PiecePlan& plan, const Tensor& t, const Position& position);

// Values of a tensor with an Input: functions of the seed, the sequence of the global batch and the position in it, or
// patch and pixel, whatever the layout.
std::vector<float> input_values(const RunSetup& setup, const Position& position, const PiecePlan& plan,
                                const Tensor& tensor, std::int64_t micro_batch);

}  // namespace orrery::realrun
