// Which experts lie on which ranks. A vExpert is one of a rank's slots, bound to an expert; an expert has as many as
// its load asks for, on one rank or several, and its tokens are divided evenly among them. vExperts of one expert on
// one rank share its weights (FlexMoE, Nie et al. 2023, arXiv 2304.03946).
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "traces/routing.h"

namespace orrery::flexmoe {

class Placement {
 public:
  // All slots are free. Throws InputError where there are fewer slots than experts.
  Placement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank);
  // Of the expert in each slot, [rank * slots_per_rank + slot]; -1: free. Throws InputError where an expert is none of
  // `experts`, or has no slot.
  Placement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank,
            std::span<const std::int64_t> expert_of_slot);
  // Expert parallelism's: a vExpert each, the same number of neighbours on each rank. Throws InputError where ranks do
  // not divide the experts, or slots do not hold them.
  static Placement in_blocks(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank);

  std::int64_t experts() const { return experts_; }
  std::int64_t ranks() const { return ranks_; }
  std::int64_t slots_per_rank() const { return slots_per_rank_; }
  std::int64_t vexperts(std::int64_t expert) const { return of_expert_[static_cast<std::size_t>(expert)]; }
  std::int64_t vexperts(std::int64_t expert, std::int64_t rank) const { return at_[place(expert, rank)]; }
  std::int64_t free_slots(std::int64_t rank) const { return free_[static_cast<std::size_t>(rank)]; }
  std::vector<std::int64_t> ranks_of(std::int64_t expert) const;  // that hold its weights, ascending

  // The primitives. Throw InputError, and change nothing, where `rank` has no free slot; where it has none of the
  // expert's vExperts, or the expert no other; where one of both is not where it is said to be.
  void expand(std::int64_t expert, std::int64_t rank);
  void shrink(std::int64_t expert, std::int64_t rank);
  void migrate(std::int64_t expert, std::int64_t rank, std::int64_t other_expert, std::int64_t other_rank);

  // Throws InputError where an expert has no vExpert: its tokens would have nowhere to go.
  void check() const;
  bool operator==(const Placement&) const = default;

 private:
  std::size_t place(std::int64_t expert, std::int64_t rank) const {
    return static_cast<std::size_t>(rank * experts_ + expert);
  }
  void add(std::int64_t expert, std::int64_t rank, std::int64_t vexperts);

  std::int64_t experts_, ranks_, slots_per_rank_;
  std::vector<std::int64_t> at_;  // vExperts of an expert on a rank: [rank * experts + expert]
  std::vector<std::int64_t> of_expert_, free_;
};

// Tokens that each rank computes where experts have these. Throws as Placement::check, and where the numbers of experts
// differ.
std::vector<double> rank_loads(const Placement& placement, std::span<const std::int64_t> tokens_of_experts);
// Of the most loaded rank over the mean (eq. 6).
double balance_ratio(const Placement& placement, std::span<const std::int64_t> tokens_of_experts);

// Expert and rank of each copy of weights that `to` has and `from` has not: what changing the placement must send.
// Ordered by expert, then rank.
std::vector<std::pair<std::int64_t, std::int64_t>> new_copies(const Placement& from, const Placement& to);

// vExperts in the order of their tokens, each onto the least loaded rank with a free slot (longest processing time
// first; Graham 1969). Throws InputError where vexperts are no number of at least 1 for each expert, or more than there
// are slots.
Placement pack_largest_first(std::span<const std::int64_t> tokens_of_experts, std::span<const std::int64_t> vexperts,
                             std::int64_t ranks, std::int64_t slots_per_rank);

}  // namespace orrery::flexmoe
