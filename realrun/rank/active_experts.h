// How many experts tokens have, where a router's threshold decides (Router::gumbel_temperature).
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class ActiveExperts {
 public:
  explicit ActiveExperts(TensorMemory& memory) : memory_(memory) {}

  // Keeps what an op has written if it is such a router's weights.
  void note(const OpCall& call);

  // Of all layers and micro-batches since the last time, a token of each counted by itself.
  struct Sums {
    std::int64_t active = 0, tokens = 0;
  };
  Sums take();

 private:
  struct Kept {
    StoragePtr weights;
    Slice slice;
    std::int64_t tokens = 0;
  };
  TensorMemory& memory_;
  std::vector<Kept> kept_;
};

}  // namespace orrery::realrun
