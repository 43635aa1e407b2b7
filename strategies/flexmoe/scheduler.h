// FlexMoE's choice of a placement (Nie et al. 2023, arXiv 2304.03946; README.md says what of it is reconstructed):
// while ranks are too unequal, the expert with the most tokens a vExpert gets one more and the one with the fewest one
// less, if a cost function says that steps get shorter by it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "strategies/flexmoe/placement.h"
#include "traces/routing.h"

namespace orrery::flexmoe {

// Seconds of a layer's forward and backward pass.
using PlacementCost = std::function<double(const Placement&, const RoutingMatrix&)>;

// What the paper's cost model takes from profiling.
struct LayerProfile {
  double tokens_per_second = 0;  // TPS, of an expert's forward pass on one device
  double token_bytes = 0;        // of an activation that is sent
  double gradient_bytes = 0;     // of an expert
  std::function<double(std::int64_t from, std::int64_t to)> bytes_per_second;                  // Bw
  std::function<double(const std::vector<std::int64_t>& ranks)> all_reduced_bytes_per_second;  // BPS
};

// Eqs. 5 and 7 to 9: of the slowest rank the sum over its experts of computing (backward takes two forwards), four
// all-to-alls, each as slow as the slowest link into the rank, and the all-reduce of gradients where several ranks hold
// the expert. Source ranks are the placement's ranks. Throws InputError where they or experts are of another number.
double layer_seconds(const Placement& placement, const RoutingMatrix& tokens, const LayerProfile& profile);
// The same for placements on so many ranks, with a copy of `profile` whose links are asked once.
PlacementCost cost_of(LayerProfile profile, std::int64_t ranks);

struct Adjustment {
  enum class Kind : std::uint8_t { expand, shrink, migrate };
  Kind kind = Kind::expand;
  std::int64_t expert = 0, rank = 0;
  std::int64_t other_expert = -1, other_rank = -1;  // of migrate, which exchanges two
  bool operator==(const Adjustment&) const = default;
};
// Throws as the primitives of Placement.
void apply(const Adjustment& adjustment, Placement& placement);

// The policy maker (algorithm 2): expand the expert of most tokens a vExpert, and where that takes a slot shrink the
// one of fewest that has several, both on the ranks for which `cost` is least. Empty where no such plan is cheaper than
// what there is.
//
// With `also_busiest_rank`, which is ours, the same of the most loaded expert of the busiest rank, and the cheaper of
// both: where that rank is slow by several experts, none of them need be the one of most tokens a vExpert.
std::vector<Adjustment> make_plan(const Placement& placement, const RoutingMatrix& tokens, const PlacementCost& cost,
                                  bool also_busiest_rank = false);

struct Schedule {
  Placement placement;
  std::vector<Adjustment> adjustments;  // in order
  double balance_before = 0, balance_after = 0;
  double seconds_before = 0, seconds_after = 0;
};

// The scheduler (algorithm 1): plans are made and applied while the balance ratio is above `most_imbalance` (at least
// 1). Each makes the layer faster, so there is an end.
Schedule schedule(const Placement& placement, const RoutingMatrix& tokens, const PlacementCost& cost,
                  double most_imbalance, bool also_busiest_rank = false);

// Migrate: vExperts of an expert on several ranks move to another of its ranks, in exchange for one there, so that
// fewer all-reduce its gradients. The exchange that saves most, as long as one saves.
std::vector<Adjustment> gather_replicas(Placement& placement, const RoutingMatrix& tokens, const PlacementCost& cost);

}  // namespace orrery::flexmoe
