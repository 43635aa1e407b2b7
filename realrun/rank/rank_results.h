// A rank's results: what a step's ops compute for them (the loss, and the experts that routers activate), and the parts
// of parameters and of their gradients that the rank holds.
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/rank/tensor_memory.h"

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

class HeldParts : RankShared {
 public:
  explicit HeldParts(const RankShared& rank) : RankShared(rank), gradients_(model_.instances()) {}

  // Keeps an instance's gradients as they are now, unscaled. Ops after PiecePlan::norm_begin() change them.
  void keep_gradients(const Instance& instance);
  // Returns the parameters as they are now, with the gradients that have been kept.
  std::vector<HeldPart> parts();

 private:
  using Values = std::vector<float>;
  void add_parts(const Instance& instance, std::vector<HeldPart>& parts);

  std::vector<std::vector<Values>> gradients_;  // by instance and set
};

}  // namespace orrery::realrun
