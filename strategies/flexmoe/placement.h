// Which experts lie on which ranks. A vExpert is a slot of a rank that is bound to an expert. An expert has as many
// vExperts as its load asks for, on one rank or several, and its tokens are divided evenly among them. vExperts of one
// expert on one rank share its weights (FlexMoE, Nie et al. 2023, arXiv 2304.03946).
//
// FlexMoE's scheduler chooses a placement (README.md says which parts are reconstructed). While ranks are too unequal,
// the expert with the most tokens per vExpert gets one more vExpert and the expert with the fewest gives one up, if a
// cost function says that this shortens the step.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "traces/routing.h"

namespace orrery::flexmoe {

class ExpertPlacement {
 public:
  // Makes a placement with all slots free. Throws InputError if there are fewer slots than experts.
  ExpertPlacement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank);
  // Makes a placement from the expert in each slot, [rank * slots_per_rank + slot]; -1: free. Throws InputError if an
  // expert's number is out of range or an expert has no slot.
  ExpertPlacement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank,
                  std::span<const std::int64_t> expert_of_slot);
  // Returns the placement of plain expert parallelism: one vExpert per expert, the same number of consecutive experts
  // on each rank. Throws InputError if the experts are not a multiple of the ranks, or do not fit into the slots.
  static ExpertPlacement in_blocks(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank);

  std::int64_t experts() const { return experts_; }
  std::int64_t ranks() const { return ranks_; }
  std::int64_t slots_per_rank() const { return slots_per_rank_; }
  std::int64_t vexperts(std::int64_t expert) const { return of_expert_[static_cast<std::size_t>(expert)]; }
  std::int64_t vexperts(std::int64_t expert, std::int64_t rank) const { return at_[place(expert, rank)]; }
  std::int64_t free_slots(std::int64_t rank) const { return free_[static_cast<std::size_t>(rank)]; }
  // Returns the ranks that hold the expert's weights, ascending.
  std::vector<std::int64_t> ranks_of(std::int64_t expert) const;

  // These are the paper's primitives. They throw InputError, and change nothing: expand if `rank` has no free slot;
  // shrink if `rank` has no vExpert of the expert, or it is the last; migrate if one of the two experts has no vExpert
  // on its rank.
  void expand(std::int64_t expert, std::int64_t rank);
  void shrink(std::int64_t expert, std::int64_t rank);
  void migrate(std::int64_t expert, std::int64_t rank, std::int64_t other_expert, std::int64_t other_rank);

  // Throws InputError where an expert has no vExpert: its tokens would have nowhere to go.
  void check() const;
  bool operator==(const ExpertPlacement&) const = default;

 private:
  std::size_t place(std::int64_t expert, std::int64_t rank) const {
    return static_cast<std::size_t>(rank * experts_ + expert);
  }
  void add(std::int64_t expert, std::int64_t rank, std::int64_t vexperts);

  std::int64_t experts_, ranks_, slots_per_rank_;
  std::vector<std::int64_t> at_;  // vExperts of an expert on a rank: [rank * experts + expert]
  std::vector<std::int64_t> of_expert_, free_;
};

// Returns how many tokens each rank computes, from the tokens of each expert. Throws as ExpertPlacement::check, and for
// another number of experts.
std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const std::int64_t> tokens_of_experts);
// Returns the tokens of the most loaded rank over the mean (eq. 6).
double balance_ratio(const ExpertPlacement& placement, std::span<const std::int64_t> tokens_of_experts);

// Returns the expert and rank of each copy of weights that `to` has and `from` has not: the copies that changing the
// placement must send. Ordered by expert, then rank.
std::vector<std::pair<std::int64_t, std::int64_t>> new_copies(const ExpertPlacement& from, const ExpertPlacement& to);

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

// Returns the cost of placements on `ranks` ranks: the seconds of the slowest rank by eqs. 5 and 7 to 9. For each
// expert of a rank they add up computation (the backward takes as long as two forwards), four all-to-alls, each as slow
// as the slowest link into the rank, and the all-reduce of gradients if several ranks hold the expert. Source ranks are
// the placement's ranks. The cost throws InputError if the numbers of ranks or experts differ. It asks the profile
// once for each link.
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
