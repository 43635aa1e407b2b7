// What a step's ops compute for its results: the loss, and the experts that routers activate.
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class StepResults : RankShared {
 public:
  explicit StepResults(const RankShared& rank) : RankShared(rank) {}

  // Keeps an op's result if it is the cross entropy's statistics of the whole vocabulary, a router's losses, or the
  // weights of a router whose threshold decides the experts of a token (Router::gumbel_temperature). Ranks of a stage
  // with the same targets have the same losses; only one of them keeps them.
  void note(const OpCall& call);

  // Since the last call: this rank's share of the loss, which is the mean cross entropy over all positions of the
  // global batch plus all routers' losses; the active experts, summed over tokens, and the tokens, of all layers and
  // micro-batches. A token counts once per layer.
  struct Sums {
    double loss = 0;
    std::int64_t active_experts = 0, routed_tokens = 0;
  };
  Sums take();

 private:
  enum class Kind { statistics, router_losses, weights };
  struct Kept {
    Kind kind = Kind::statistics;
    StoragePtr storage;
    Slice values;          // statistics: [3, positions], the maximum, the sum of exponentials, the target's logit
    double positions = 0;  // of the whole batch; weights: tokens
  };
  void note_loss(const OpCall& call, Kind kind);

  std::vector<Kept> kept_;
};

}  // namespace orrery::realrun
