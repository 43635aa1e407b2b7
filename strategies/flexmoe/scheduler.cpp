#include "strategies/flexmoe/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "sim/base/error.h"

namespace orrery::flexmoe {
namespace {

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

}  // namespace

double layer_seconds(const ExpertPlacement& placement, const RoutingMatrix& tokens, const LayerProfile& profile) {
  return layer_seconds(placement, tokens, profile, token_seconds(profile, placement.ranks()));
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

namespace {

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
  made.seconds_before = cost(placement, tokens);
  made.balance_before = made.balance_after = balance_ratio(placement, loads);
  while (made.balance_after > most_imbalance) {
    const std::vector<Adjustment> plan = make_plan(made.placement, tokens, cost, also_busiest_rank);
    if (plan.empty()) break;
    for (const Adjustment& a : plan) apply(a, made.placement);
    made.adjustments.insert(made.adjustments.end(), plan.begin(), plan.end());
    made.balance_after = balance_ratio(made.placement, loads);
  }
  made.seconds_after = cost(made.placement, tokens);
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
