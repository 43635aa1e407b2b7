#include "strategies/flexmoe/balancers.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/base/error.h"

namespace orrery::flexmoe {
namespace {

struct Packed {
  std::size_t pack, place;  // an item's pack, and its place in the pack
};

// Puts items by descending weight into the lightest pack that is not full; equally many items per pack.
std::vector<Packed> pack_evenly(const std::vector<double>& weights, std::size_t packs) {
  const std::size_t each = weights.size() / packs;
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (each > 1)  // with one item per pack, their order stays
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return weights[a] > weights[b]; });
  std::vector<Packed> packed(weights.size());
  std::vector<double> weight(packs);
  std::vector<std::size_t> items(packs);
  for (const std::size_t item : order) {
    std::size_t lightest = packs;
    for (std::size_t p = 0; p < packs; ++p)
      if (items[p] < each && (lightest == packs || (each > 1 && weight[p] < weight[lightest]))) lightest = p;
    packed[item] = {lightest, items[lightest]++};
    weight[lightest] += weights[item];
  }
  return packed;
}

void check_divides(std::int64_t divisor, std::int64_t of, std::string_view divisors, std::string_view ofs) {
  if (divisor < 1 || of < 1 || of % divisor != 0)
    throw InputError({}, fmt::format("{} {} and {} {}", of, ofs, divisor, divisors),
                     fmt::format("equally many {} for each", ofs));
}

double compute_seconds(double tokens, const ShadowingProfile& p) {
  return 3 * 4 * tokens * p.hidden_ratio * p.hidden * p.hidden / p.flops_per_second;
}
double exchange_seconds(double tokens, const ShadowingProfile& p) {
  return 4 * tokens * p.hidden * p.element_bytes / p.bytes_per_second;
}
// Sends an expert once.
double expert_seconds(const ShadowingProfile& p) {
  return 2 * p.hidden_ratio * p.hidden * p.hidden * p.element_bytes / p.bytes_per_second;
}

}  // namespace

std::vector<std::int64_t> eplb(std::span<const std::int64_t> loads, std::int64_t replicas, std::int64_t groups,
                               std::int64_t nodes, std::int64_t ranks) {
  const auto experts = static_cast<std::int64_t>(loads.size());
  if (nodes > 0 && groups % nodes != 0) groups = nodes = 1;
  check_divides(groups, experts, "groups", "experts");
  check_divides(nodes, groups, "nodes", "groups");
  check_divides(nodes, ranks, "nodes", "ranks");
  check_divides(ranks, replicas, "ranks", "replicas");
  if (replicas < experts)
    throw InputError({}, fmt::format("{} replicas", replicas), fmt::format("at least {}, one of each expert", experts));

  // 1. Groups to nodes.
  const auto group_size = static_cast<std::size_t>(experts / groups),
             node_experts = static_cast<std::size_t>(experts / nodes);
  std::vector<double> of_group(static_cast<std::size_t>(groups));
  for (std::size_t e = 0; e < loads.size(); ++e) of_group[e / group_size] += static_cast<double>(loads[e]);
  const std::vector<Packed> group = pack_evenly(of_group, static_cast<std::size_t>(nodes));
  std::vector<std::size_t> in_nodes(loads.size());  // experts, node by node
  for (std::size_t e = 0; e < loads.size(); ++e) {
    const auto [node, place] = group[e / group_size];
    in_nodes[node * node_experts + place * group_size + e % group_size] = e;
  }

  const auto node_slots = static_cast<std::size_t>(replicas / nodes),
             node_ranks = static_cast<std::size_t>(ranks / nodes);
  std::vector<std::int64_t> expert_of_slot(static_cast<std::size_t>(replicas));
  for (std::size_t node = 0; node < static_cast<std::size_t>(nodes); ++node) {
    // 2. Replicas within the node.
    const std::size_t* own = in_nodes.data() + node * node_experts;
    std::vector<double> copies(node_experts, 1);
    const auto of_replica = [&](std::size_t i) { return static_cast<double>(loads[own[i]]) / copies[i]; };
    std::vector<std::size_t> replica(node_slots);
    std::iota(replica.begin(), replica.end(), std::size_t{0});
    for (std::size_t slot = node_experts; slot < node_slots; ++slot) {
      std::size_t most = 0;
      for (std::size_t i = 1; i < node_experts; ++i)
        if (of_replica(i) > of_replica(most)) most = i;
      replica[slot] = most;
      ++copies[most];
    }
    // 3. Replicas to ranks.
    std::vector<double> weights(node_slots);
    for (std::size_t slot = 0; slot < node_slots; ++slot) weights[slot] = of_replica(replica[slot]);
    const std::vector<Packed> packed = pack_evenly(weights, node_ranks);
    for (std::size_t slot = 0; slot < node_slots; ++slot)
      expert_of_slot[node * node_slots + packed[slot].pack * (node_slots / node_ranks) + packed[slot].place] =
          static_cast<std::int64_t>(own[replica[slot]]);
  }
  return expert_of_slot;
}

std::vector<std::int64_t> slots_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t slots) {
  const auto experts = static_cast<std::int64_t>(tokens_of_experts.size());
  if (experts < 1 || slots < experts)
    throw InputError({}, fmt::format("{} slots", slots), fmt::format("at least one for each of {} experts", experts));
  double all = 0;
  for (const std::int64_t tokens : tokens_of_experts) all += static_cast<double>(tokens);
  std::vector<double> lacking;  // missing slots relative to the share
  std::vector<std::int64_t> given;
  std::int64_t left = slots;
  for (const std::int64_t tokens : tokens_of_experts) {
    const double share = all > 0 ? static_cast<double>(tokens) * static_cast<double>(slots) / all
                                 : static_cast<double>(slots) / static_cast<double>(experts);
    given.push_back(std::max<std::int64_t>(1, static_cast<std::int64_t>(std::floor(share))));
    lacking.push_back(share - static_cast<double>(given.back()));
    left -= given.back();
  }
  const auto change = [&](std::size_t e, std::int64_t by) {
    given[e] += by;
    lacking[e] -= static_cast<double>(by);
    left -= by;
  };
  while (left > 0)
    change(static_cast<std::size_t>(std::max_element(lacking.begin(), lacking.end()) - lacking.begin()), 1);
  // Experts with one slot, although their share is less, take it from the expert with the largest surplus.
  while (left < 0) {
    std::size_t richest = given.size();
    for (std::size_t e = 0; e < given.size(); ++e)
      if (given[e] > 1 && (richest == given.size() || lacking[e] < lacking[richest])) richest = e;
    change(richest, -1);
  }
  return given;
}

ExpertPlacement place_by_popularity(std::span<const std::int64_t> tokens_of_experts, std::int64_t ranks,
                                    std::int64_t slots_per_rank) {
  std::vector<std::int64_t> expert_of_slot;
  const std::vector<std::int64_t> given = slots_by_popularity(tokens_of_experts, ranks * slots_per_rank);
  for (std::size_t e = 0; e < given.size(); ++e)
    expert_of_slot.insert(expert_of_slot.end(), static_cast<std::size_t>(given[e]), static_cast<std::int64_t>(e));
  return {static_cast<std::int64_t>(given.size()), ranks, slots_per_rank, expert_of_slot};
}

double imbalanced_seconds(double most_tokens, const ShadowingProfile& profile) {
  return compute_seconds(most_tokens, profile) + exchange_seconds(most_tokens, profile);
}

std::vector<std::int64_t> shadowed_experts(std::span<const double> tokens_of_experts, const ShadowingProfile& profile) {
  std::vector<std::int64_t> order(tokens_of_experts.size());
  std::iota(order.begin(), order.end(), 0);
  const auto tokens = [&](std::int64_t e) { return tokens_of_experts[static_cast<std::size_t>(e)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return tokens(a) > tokens(b); });
  std::size_t shadowed = 0;
  double seconds = order.empty() ? 0 : imbalanced_seconds(tokens(order.front()), profile);
  for (; shadowed + 1 < order.size(); ++shadowed) {
    const double now = imbalanced_seconds(tokens(order[shadowed + 1]), profile) +
                       static_cast<double>(shadowed + 1) * expert_seconds(profile);
    if (now >= seconds) break;
    seconds = now;
  }
  order.resize(shadowed);
  return order;
}

SwipePass swipe_once(const RoutingMatrix& tokens, std::vector<std::int64_t>& room) {
  if (tokens.experts != static_cast<std::int64_t>(room.size()))
    throw InputError({}, fmt::format("tokens for {} workers", tokens.experts),
                     fmt::format("tokens for {} workers", room.size()));
  const std::int64_t all_room = std::accumulate(room.begin(), room.end(), std::int64_t{0}), all = tokens.total();
  if (all_room < all)
    throw InputError({}, fmt::format("room for {} tokens", all_room), fmt::format("room for all {} tokens", all));
  SwipePass pass{tokens, 0};
  const auto workers = room.size(), sources = static_cast<std::size_t>(tokens.source_ranks);
  std::vector<std::int64_t> overflow(sources);
  for (std::size_t w = 0; w < workers; ++w)
    for (std::size_t s = 0; s < sources; ++s) {
      std::int64_t& sent = pass.tokens.tokens[s * workers + w];
      const std::int64_t taken = std::min(sent, room[w]);
      overflow[s] += sent - taken;
      room[w] -= taken;
      sent = taken;
    }
  std::size_t w = 0;
  for (std::size_t s = 0; s < sources; ++s) {
    pass.moved += overflow[s];
    while (overflow[s] > 0) {
      const std::int64_t taken = std::min(overflow[s], room[w]);
      pass.tokens.tokens[s * workers + w] += taken;
      overflow[s] -= taken;
      room[w] -= taken;
      if (room[w] == 0) ++w;
    }
  }
  return pass;
}

}  // namespace orrery::flexmoe
