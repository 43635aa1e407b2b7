// FlexMoE's choice of a placement (Nie et al. 2023, arXiv 2304.03946; README.md says which parts are reconstructed).
// While ranks are too unequal, the expert with the most tokens per vExpert gets one more vExpert and the expert with
// the fewest gives one up, if a cost function says that this shortens the step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "strategies/flexmoe/placement.h"
#include "traces/routing.h"

namespace orrery::flexmoe {

// Returns the seconds of a layer's forward and backward pass.
using PlacementCost = std::function<double(const ExpertPlacement&, const RoutingMatrix&)>;

// Values that the paper's cost model takes from profiling.
struct LayerProfile {
  double tokens_per_second = 0;  // TPS: forward pass of one expert on one device
  double token_bytes = 0;        // of one token's activation, as sent
  double gradient_bytes = 0;     // of one expert
  std::function<double(std::int64_t from, std::int64_t to)> bytes_per_second;                  // Bw
  std::function<double(const std::vector<std::int64_t>& ranks)> all_reduced_bytes_per_second;  // BPS
};

// Returns the seconds of the slowest rank by eqs. 5 and 7 to 9. For each expert of a rank they add up computation (the
// backward takes as long as two forwards), four all-to-alls, each as slow as the slowest link into the rank, and the
// all-reduce of gradients if several ranks hold the expert. Source ranks are the placement's ranks. Throws InputError
// if the numbers of ranks or experts differ.
double layer_seconds(const ExpertPlacement& placement, const RoutingMatrix& tokens, const LayerProfile& profile);
// Returns layer_seconds as a cost for placements on `ranks` ranks, with a copy of `profile` that asks each link once.
PlacementCost cost_of(LayerProfile profile, std::int64_t ranks);

struct Adjustment {
  enum class Kind : std::uint8_t { expand, shrink, migrate };
  Kind kind = Kind::expand;
  std::int64_t expert = 0, rank = 0;
  std::int64_t other_expert = -1, other_rank = -1;  // only for migrate, which exchanges two vExperts
  bool operator==(const Adjustment&) const = default;
};
// Throws as the primitives of ExpertPlacement do.
void apply(const Adjustment& adjustment, ExpertPlacement& placement);

// The policy maker (algorithm 2): expands the expert with the most tokens per vExpert. If that needs a slot, it shrinks
// the expert with the fewest tokens per vExpert among those that have several. Both take place on the ranks for which
// `cost` is least. Returns an empty plan if no such plan is cheaper than the given placement.
//
// `also_busiest_rank`, which is not in the paper, also tries the most loaded expert of the busiest rank and takes the
// cheaper plan. If that rank is slow because it holds several experts, none of them need have the most tokens per
// vExpert.
std::vector<Adjustment> make_plan(const ExpertPlacement& placement, const RoutingMatrix& tokens,
                                  const PlacementCost& cost, bool also_busiest_rank = false);

struct PlacementChange {
  ExpertPlacement placement;
  std::vector<Adjustment> adjustments;  // in order
  double balance_before = 0, balance_after = 0;
  double seconds_before = 0, seconds_after = 0;
};

// The scheduler (algorithm 1): makes and applies plans while the balance ratio is above `most_imbalance` (at least 1).
// It ends, because each plan makes the layer faster.
PlacementChange schedule(const ExpertPlacement& placement, const RoutingMatrix& tokens, const PlacementCost& cost,
                         double most_imbalance, bool also_busiest_rank = false);

// Migrates: it moves vExperts of an expert on several ranks to another of its ranks, in exchange for a vExpert there,
// so that fewer ranks all-reduce its gradients. Applies the exchange that saves most, and repeats while one saves time.
std::vector<Adjustment> gather_replicas(ExpertPlacement& placement, const RoutingMatrix& tokens,
                                        const PlacementCost& cost);

}  // namespace orrery::flexmoe
