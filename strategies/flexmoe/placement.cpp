#include "strategies/flexmoe/placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "sim/base/error.h"

namespace orrery::flexmoe {
namespace {

void check_experts(std::int64_t placed, std::size_t counted) {
  if (placed != static_cast<std::int64_t>(counted))
    throw InputError({}, fmt::format("tokens of {} experts", counted),
                     fmt::format("tokens of the {} placed experts", placed));
}

// Forward once, backward twice (eq. 7); dispatch and combine, forward and backward (eq. 8).
constexpr double kPasses = 3, kAllToAlls = 4;

// Savings smaller than the rounding error of a sum of many terms do not count.
constexpr double kRounding = 1e-12;
bool saves(double now, double before) { return now < before * (1 - kRounding); }

// Seconds of a token from one rank to another: [to * ranks + from]; 0 within a rank.
std::vector<double> token_seconds(const LayerProfile& profile, std::int64_t ranks) {
  std::vector<double> seconds;
  for (std::int64_t to = 0; to < ranks; ++to)
    for (std::int64_t from = 0; from < ranks; ++from)
      seconds.push_back(from == to ? 0 : profile.token_bytes / profile.bytes_per_second(from, to));
  return seconds;
}

double layer_seconds(const ExpertPlacement& placement, const RoutingMatrix& tokens, const LayerProfile& profile,
                     const std::vector<double>& of_links) {
  placement.check();
  const auto ranks = static_cast<std::size_t>(placement.ranks()),
             experts = static_cast<std::size_t>(placement.experts());
  if (tokens.source_ranks != placement.ranks() || tokens.experts != placement.experts())
    throw InputError(
        {}, fmt::format("tokens of {} ranks for {} experts", tokens.source_ranks, tokens.experts),
        fmt::format("tokens of the placement's {} ranks for {} experts", placement.ranks(), placement.experts()));
  if (of_links.size() != ranks * ranks)
    throw InputError({}, fmt::format("a placement on {} ranks", ranks),
                     "a placement on the cost function's number of ranks");
  std::vector<double> seconds(ranks), sent(ranks);
  for (std::size_t e = 0; e < experts; ++e) {
    const auto expert = static_cast<std::int64_t>(e);
    double all = 0;
    for (std::size_t from = 0; from < ranks; ++from)
      all += sent[from] = static_cast<double>(tokens.tokens[from * experts + e]);
    const std::vector<std::int64_t> holders = placement.ranks_of(expert);
    const double synchronise =
        holders.size() > 1 ? profile.gradient_bytes / profile.all_reduced_bytes_per_second(holders) : 0;
    for (const std::int64_t rank : holders) {
      const double share =
          static_cast<double>(placement.vexperts(expert, rank)) / static_cast<double>(placement.vexperts(expert));
      const double* const links = of_links.data() + static_cast<std::size_t>(rank) * ranks;
      double slowest = 0;
      for (std::size_t from = 0; from < ranks; ++from) slowest = std::max(slowest, sent[from] * links[from]);
      seconds[static_cast<std::size_t>(rank)] +=
          kPasses * share * all / profile.tokens_per_second + kAllToAlls * share * slowest + synchronise;
    }
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

// Keeps the cheapest of the plans that are tried.
class Cheapest {
 public:
  Cheapest(const ExpertPlacement& placement, const RoutingMatrix& tokens, const PlacementCost& cost)
      : placement_(placement), tokens_(tokens), cost_(cost), seconds_(cost(placement, tokens)) {}

  void consider(std::vector<Adjustment> plan) {
    ExpertPlacement changed = placement_;
    for (const Adjustment& a : plan) apply(a, changed);
    const double seconds = cost_(changed, tokens_);
    if (!saves(seconds, seconds_)) return;
    seconds_ = seconds;
    plan_ = std::move(plan);
  }
  std::vector<Adjustment> plan() && { return std::move(plan_); }

 private:
  const ExpertPlacement& placement_;
  const RoutingMatrix& tokens_;
  const PlacementCost& cost_;
  double seconds_;
  std::vector<Adjustment> plan_;  // empty: nothing is cheaper than the given placement
};

std::int64_t most_loaded_of_busiest_rank(const ExpertPlacement& placement, const std::vector<std::int64_t>& loads) {
  const std::vector<double> of_ranks = rank_loads(placement, loads);
  const std::int64_t busiest = std::ranges::max_element(of_ranks) - of_ranks.begin();
  std::int64_t expert = -1;
  double most = -1;
  for (std::int64_t e = 0; e < placement.experts(); ++e) {
    if (placement.vexperts(e, busiest) == 0) continue;
    const double here = static_cast<double>(loads[static_cast<std::size_t>(e)] * placement.vexperts(e, busiest)) /
                        static_cast<double>(placement.vexperts(e));
    if (here > most) most = here, expert = e;
  }
  return expert;
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

PlacementCost cost_of(LayerProfile profile, std::int64_t ranks) {
  std::vector<double> of_links = token_seconds(profile, ranks);
  return [profile = std::move(profile), of_links = std::move(of_links)](const ExpertPlacement& placement,
                                                                        const RoutingMatrix& tokens) {
    return layer_seconds(placement, tokens, profile, of_links);
  };
}

void apply(const Adjustment& a, ExpertPlacement& placement) {
  switch (a.kind) {
    case Adjustment::Kind::expand:
      return placement.expand(a.expert, a.rank);
    case Adjustment::Kind::shrink:
      return placement.shrink(a.expert, a.rank);
    case Adjustment::Kind::migrate:
      return placement.migrate(a.expert, a.rank, a.other_expert, a.other_rank);
  }
}

std::vector<Adjustment> make_plan(const ExpertPlacement& placement, const RoutingMatrix& tokens,
                                  const PlacementCost& cost, bool also_busiest_rank) {
  const std::vector<std::int64_t> loads = tokens.by_expert();
  std::optional<std::int64_t> most, fewest;
  const auto of_vexpert = [&](std::int64_t e) {
    return static_cast<double>(loads[static_cast<std::size_t>(e)]) / static_cast<double>(placement.vexperts(e));
  };
  for (std::int64_t e = 0; e < placement.experts(); ++e) {
    if (!most || of_vexpert(e) > of_vexpert(*most)) most = e;
    if (placement.vexperts(e) > 1 && (!fewest || of_vexpert(e) < of_vexpert(*fewest))) fewest = e;
  }
  Cheapest cheapest(placement, tokens, cost);
  using Kind = Adjustment::Kind;
  const auto consider = [&](std::int64_t expert) {
    for (std::int64_t rank = 0; rank < placement.ranks(); ++rank)
      if (placement.free_slots(rank) > 0) cheapest.consider({{Kind::expand, expert, rank}});
    if (fewest && fewest != expert)
      for (const std::int64_t released : placement.ranks_of(*fewest))
        for (std::int64_t rank = 0; rank < placement.ranks(); ++rank)
          if (rank == released || placement.free_slots(rank) > 0)
            cheapest.consider({{Kind::shrink, *fewest, released}, {Kind::expand, expert, rank}});
  };
  consider(*most);
  if (also_busiest_rank)
    if (const std::int64_t expert = most_loaded_of_busiest_rank(placement, loads); expert >= 0 && expert != *most)
      consider(expert);
  return std::move(cheapest).plan();
}

PlacementChange schedule(const ExpertPlacement& placement, const RoutingMatrix& tokens, const PlacementCost& cost,
                         double most_imbalance, bool also_busiest_rank) {
  if (!(most_imbalance >= 1))
    throw InputError({}, fmt::format("a balance ratio of at most {}", most_imbalance),
                     "at least 1, which is perfect balance");
  const std::vector<std::int64_t> loads = tokens.by_expert();
  PlacementChange made{placement, {}};
  made.balance_before = made.balance_after = balance_ratio(placement, loads);
  while (made.balance_after > most_imbalance) {
    const std::vector<Adjustment> plan = make_plan(made.placement, tokens, cost, also_busiest_rank);
    if (plan.empty()) break;
    for (const Adjustment& a : plan) apply(a, made.placement);
    made.adjustments.insert(made.adjustments.end(), plan.begin(), plan.end());
    made.balance_after = balance_ratio(made.placement, loads);
  }
  return made;
}

std::vector<Adjustment> gather_replicas(ExpertPlacement& placement, const RoutingMatrix& tokens,
                                        const PlacementCost& cost) {
  std::vector<Adjustment> made;
  for (;;) {
    Cheapest cheapest(placement, tokens, cost);
    for (std::int64_t e = 0; e < placement.experts(); ++e) {
      const std::vector<std::int64_t> ranks = placement.ranks_of(e);
      for (const std::int64_t from : ranks)
        for (const std::int64_t to : ranks)
          for (std::int64_t other = 0; other < placement.experts() && from != to; ++other)
            if (other != e && placement.vexperts(other, to) > 0)
              cheapest.consider({{Adjustment::Kind::migrate, e, from, other, to}});
    }
    const std::vector<Adjustment> plan = std::move(cheapest).plan();
    if (plan.empty()) return made;
    apply(plan.front(), placement);
    made.push_back(plan.front());
  }
}

}  // namespace orrery::flexmoe
