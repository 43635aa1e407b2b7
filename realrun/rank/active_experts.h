// Counts experts per token, for routers whose threshold decides them (Router::gumbel_temperature).
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class ActiveExperts {
 public:
  explicit ActiveExperts(TensorMemory& memory) : memory_(memory) {}

  // Keeps an op's result if it is the weights of such a router.
  void note(const OpCall& call);

  // Sums over all layers and micro-batches since the last call. A token counts once per layer.
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
