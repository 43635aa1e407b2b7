// A rank's results: the parts of parameters and of their gradients that it holds.
#pragma once

#include <vector>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class HeldParts : RankShared {
 public:
  explicit HeldParts(const RankShared& rank) : RankShared(rank), gradients_(model_.instances()) {}

  // Keeps an instance's gradients as they are now, unscaled. Ops after PiecePlan::norm_begin() change them.
  void keep_gradients(const Instance& instance);
  // Returns the parameters as they are now, with the gradients that have been kept.
  std::vector<HeldPart> parts();

 private:
  using Values = std::vector<float>;
  std::vector<Values> held_parameters(const Instance& instance);
  void add_parts(const Instance& instance, std::vector<HeldPart>& parts);

  std::vector<std::vector<Values>> gradients_;  // by instance and set
};

}  // namespace orrery::realrun
