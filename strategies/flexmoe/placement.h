// Which experts lie on which ranks. A vExpert is a slot of a rank that is bound to an expert. An expert has as many
// vExperts as its load asks for, on one rank or several, and its tokens are divided evenly among them. vExperts of one
// expert on one rank share its weights (FlexMoE, Nie et al. 2023, arXiv 2304.03946).
#pragma once

#include <cstdint>
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

}  // namespace orrery::flexmoe
