#include "strategies/flexmoe/placement.h"

#include <fmt/format.h>

#include <numeric>

#include "sim/base/error.h"

namespace orrery::flexmoe {
namespace {

void check_experts(std::int64_t placed, std::size_t counted) {
  if (placed != static_cast<std::int64_t>(counted))
    throw InputError({}, fmt::format("tokens of {} experts", counted),
                     fmt::format("tokens of the {} placed experts", placed));
}

}  // namespace

ExpertPlacement::ExpertPlacement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank)
    : experts_(experts), ranks_(ranks), slots_per_rank_(slots_per_rank) {
  if (experts < 1 || ranks < 1 || slots_per_rank < 1 || ranks * slots_per_rank < experts)
    throw InputError({}, fmt::format("{} ranks of {} slots", ranks, slots_per_rank),
                     fmt::format("at least one slot for each of {} experts", experts));
  at_.resize(static_cast<std::size_t>(ranks * experts));
  of_expert_.resize(static_cast<std::size_t>(experts));
  free_.assign(static_cast<std::size_t>(ranks), slots_per_rank);
}

ExpertPlacement::ExpertPlacement(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank,
                                 std::span<const std::int64_t> expert_of_slot)
    : ExpertPlacement(experts, ranks, slots_per_rank) {
  if (static_cast<std::int64_t>(expert_of_slot.size()) != ranks * slots_per_rank)
    throw InputError({}, fmt::format("{} slots", expert_of_slot.size()), fmt::format("{}", ranks * slots_per_rank));
  for (std::size_t slot = 0; slot < expert_of_slot.size(); ++slot) {
    const std::int64_t expert = expert_of_slot[slot];
    if (expert == -1) continue;
    if (expert < 0 || expert >= experts)
      throw InputError({}, fmt::format("expert {} in slot {}", expert, slot), fmt::format("0 to {}", experts - 1));
    add(expert, static_cast<std::int64_t>(slot) / slots_per_rank, 1);
  }
  check();
}

ExpertPlacement ExpertPlacement::in_blocks(std::int64_t experts, std::int64_t ranks, std::int64_t slots_per_rank) {
  ExpertPlacement placement(experts, ranks, slots_per_rank);
  if (experts % ranks != 0)
    throw InputError({}, fmt::format("{} experts", experts), fmt::format("a multiple of {} ranks", ranks));
  for (std::int64_t e = 0; e < experts; ++e) placement.expand(e, e / (experts / ranks));
  return placement;
}

std::vector<std::int64_t> ExpertPlacement::ranks_of(std::int64_t expert) const {
  std::vector<std::int64_t> all;
  for (std::int64_t rank = 0; rank < ranks_; ++rank)
    if (vexperts(expert, rank) > 0) all.push_back(rank);
  return all;
}

void ExpertPlacement::add(std::int64_t expert, std::int64_t rank, std::int64_t vexperts) {
  at_[place(expert, rank)] += vexperts;
  of_expert_[static_cast<std::size_t>(expert)] += vexperts;
  free_[static_cast<std::size_t>(rank)] -= vexperts;
}

void ExpertPlacement::expand(std::int64_t expert, std::int64_t rank) {
  if (free_slots(rank) == 0)
    throw InputError({}, fmt::format("no free slot for expert {} on rank {}", expert, rank), "a free slot");
  add(expert, rank, 1);
}

void ExpertPlacement::shrink(std::int64_t expert, std::int64_t rank) {
  if (vexperts(expert, rank) == 0)
    throw InputError({}, fmt::format("no vExpert of expert {} on rank {}", expert, rank), "a vExpert to release");
  if (vexperts(expert) == 1)
    throw InputError({}, fmt::format("a release of the last vExpert of expert {}", expert),
                     "at least one vExpert of every expert");
  add(expert, rank, -1);
}

void ExpertPlacement::migrate(std::int64_t expert, std::int64_t rank, std::int64_t other_expert,
                              std::int64_t other_rank) {
  for (const auto& [e, r] : {std::pair{expert, rank}, std::pair{other_expert, other_rank}})
    if (vexperts(e, r) == 0)
      throw InputError({}, fmt::format("no vExpert of expert {} on rank {}", e, r), "a vExpert to exchange");
  add(expert, rank, -1);
  add(other_expert, other_rank, -1);
  add(expert, other_rank, 1);
  add(other_expert, rank, 1);
}

void ExpertPlacement::check() const {
  for (std::int64_t e = 0; e < experts_; ++e)
    if (vexperts(e) == 0)
      throw InputError({}, fmt::format("no replica of expert {}", e), "at least one of every expert");
}

std::vector<double> rank_loads(const ExpertPlacement& placement, std::span<const std::int64_t> tokens_of_experts) {
  placement.check();
  check_experts(placement.experts(), tokens_of_experts.size());
  std::vector<double> loads(static_cast<std::size_t>(placement.ranks()));
  for (std::int64_t rank = 0; rank < placement.ranks(); ++rank)
    for (std::int64_t e = 0; e < placement.experts(); ++e)
      if (const std::int64_t here = placement.vexperts(e, rank); here > 0)
        loads[static_cast<std::size_t>(rank)] += static_cast<double>(tokens_of_experts[static_cast<std::size_t>(e)]) *
                                                 static_cast<double>(here) / static_cast<double>(placement.vexperts(e));
  return loads;
}

double balance_ratio(const ExpertPlacement& placement, std::span<const std::int64_t> tokens_of_experts) {
  return max_over_mean(rank_loads(placement, tokens_of_experts));
}

std::vector<std::pair<std::int64_t, std::int64_t>> new_copies(const ExpertPlacement& from, const ExpertPlacement& to) {
  std::vector<std::pair<std::int64_t, std::int64_t>> copies;
  for (std::int64_t e = 0; e < to.experts(); ++e)
    for (const std::int64_t rank : to.ranks_of(e))
      if (from.vexperts(e, rank) == 0) copies.emplace_back(e, rank);
  return copies;
}

}  // namespace orrery::flexmoe
