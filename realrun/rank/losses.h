// The loss of a step: the mean cross entropy over all positions of the global batch, plus all routers' losses.
#pragma once

#include <utility>
#include <vector>

#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class Losses {
 public:
  Losses(const Program& program, const Position& position, TensorMemory& memory)
      : program_(program), position_(position), memory_(memory) {}

  // Keeps an op's result if it is the cross entropy's statistics of the whole vocabulary, or a router's losses. Ranks
  // of a stage with the same targets have the same results; only one of them keeps them.
  void note(const OpCall& call);
  // Returns this rank's share of the loss since the last call.
  double take();

 private:
  struct Kept {
    // [3, positions]: the maximum, the sum of exponentials, the target's logit.
    StoragePtr statistics;
    double positions = 0;    // of the whole batch
    bool of_router = false;  // `statistics` are losses instead, to be added
  };
  const Program& program_;
  const Position& position_;
  TensorMemory& memory_;
  std::vector<Kept> kept_;
};

}  // namespace orrery::realrun
