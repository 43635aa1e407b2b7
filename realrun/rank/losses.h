// The loss of a step: the mean of the cross entropy over all positions of the global batch, and of what routers add to
// it in each layer.
#pragma once

#include <utility>
#include <vector>

#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class Losses {
 public:
  Losses(const Program& program, const Position& position, TensorMemory& memory)
      : program_(program), position_(position), memory_(memory) {}

  // Keeps what an op has written if it is the cross entropy's statistics of the whole vocabulary, or a router's losses.
  // All ranks of a stage that have the same targets have the same; one of them keeps it.
  void note(const OpCall& call);
  // This rank's share of the loss of what has been kept since the last time.
  double take();

 private:
  struct Kept {
    StoragePtr statistics;  // the maximum, the sum of exponentials, the target's logit: of each position
    double positions = 0;   // of the whole batch
    bool of_router = false;  // then they are losses, to be added up
  };
  const Program& program_;
  const Position& position_;
  TensorMemory& memory_;
  std::vector<Kept> kept_;
};

}  // namespace orrery::realrun
