#include "sim/cost/link_map.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "sim/base/index.h"

namespace orrery {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// The cycle over all n members with the largest sum of widths, among those without a pair below `least` (Held and Karp
// 1962); empty if there is none. `widths`: symmetric, by ordered pair.
std::vector<std::int32_t> heaviest_cycle(std::span<const double> widths, std::size_t n, double least) {
  const auto width = [&](std::size_t a, std::size_t b) {
    return widths[a * n + b] >= least ? widths[a * n + b] : kNone;
  };
  // By the set of members passed after the first, and by the last of them: the largest sum, and the member before.
  const std::size_t others = n - 1, sets = std::size_t{1} << others;
  std::vector<double> most(sets * others, kNone);
  std::vector<std::int32_t> before(sets * others, 0);
  for (std::size_t e = 0; e < others; ++e) most[(std::size_t{1} << e) * others + e] = width(0, e + 1);
  for (std::size_t set = 1; set < sets; ++set)
    for (std::size_t e = 0; e < others; ++e) {
      const double here = most[set * others + e];
      if (here == kNone) continue;
      for (std::size_t next = 0; next < others; ++next) {
        if ((set >> next & 1) != 0) continue;
        const std::size_t there = (set | std::size_t{1} << next) * others + next;
        const double sum = here + width(e + 1, next + 1);
        if (sum <= most[there]) continue;
        most[there] = sum;
        before[there] = static_cast<std::int32_t>(e);
      }
    }
  std::size_t set = sets - 1, last = 0;
  double best = kNone;
  for (std::size_t e = 0; e < others; ++e)
    if (const double sum = most[set * others + e] + width(e + 1, 0); sum > best) {
      best = sum;
      last = e;
    }
  if (best == kNone) return {};
  std::vector<std::int32_t> order;
  while (set != 0) {
    order.push_back(static_cast<std::int32_t>(last + 1));
    const auto previous = static_cast<std::size_t>(before[set * others + last]);
    set ^= std::size_t{1} << last;
    last = previous;
  }
  order.push_back(0);
  std::reverse(order.begin(), order.end());
  return order;
}

// The same with the largest `least` for which there is a cycle; empty if there is none of positive width.
std::vector<std::int32_t> widest_cycle(std::span<const double> widths, std::size_t n) {
  std::vector<double> steps;
  for (const double width : widths)
    if (width > 0) steps.push_back(width);
  std::sort(steps.begin(), steps.end(), std::greater<>());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  const auto least = std::partition_point(steps.begin(), steps.end(),
                                          [&](double step) { return heaviest_cycle(widths, n, step).empty(); });
  return least == steps.end() ? std::vector<std::int32_t>{} : heaviest_cycle(widths, n, *least);
}

}  // namespace

std::vector<NodeRing> mesh_rings(std::int32_t members) {
  const std::int32_t q = members - 1, families = q % 2 == 1 ? 2 : 1;
  std::vector<NodeRing> rings;
  for (std::int32_t family = 0; family < families; ++family)
    for (std::int32_t c = 0; c < q; ++c) {
      NodeRing& ring = rings.emplace_back(NodeRing{.order = {q}, .share = 1.0 / (families * q)});
      for (std::int32_t j = 0; j < q; ++j) {
        const std::int32_t place = (c + (family == 0 ? zigzag(j) : -zigzag(j))) % q;
        ring.order.push_back(place < 0 ? place + q : place);
      }
    }
  return rings;
}

LinkMap::LinkMap(const Node& node) {
  if (node.links.empty() || node.intra != IntraFabric::direct_mesh || node.devices < 2) return;
  devices_ = node.devices;
  port_ = node.intra_bytes_per_second;
  rates_.assign(at(devices_ * devices_), 0);
  for (const PairLinks& links : node.links)
    for (const auto& [a, b] : links.pairs) rates_[pair(a, b)] = rates_[pair(b, a)] = links.bytes_per_second;
  ways_.resize(rates_.size());
  for (std::int64_t from = 0; from < devices_; ++from) find_ways(from);
}

// The ways to all higher devices, and back.
void LinkMap::find_ways(std::int64_t from) {
  struct Reached {
    std::int64_t links = 0, before = -1;
    double width = 0;
  };
  std::vector<Reached> reached(at(devices_));
  reached[at(from)] = {0, from, std::numeric_limits<double>::infinity()};
  for (std::int64_t links = 1; links < devices_; ++links)
    for (std::int64_t to = 0; to < devices_; ++to) {
      Reached& there = reached[at(to)];
      if (there.before >= 0) continue;
      for (std::int64_t i = 0; i < devices_; ++i) {
        const std::int64_t over = (from + i) % devices_;
        const Reached& here = reached[at(over)];
        const double width = std::min(here.width, bytes_per_second(over, to));
        if (here.before >= 0 && here.links == links - 1 && width > there.width) there = {links, over, width};
      }
    }
  for (std::int64_t to = from + 1; to < devices_; ++to) {
    std::vector<std::int64_t>& back = ways_[pair(to, from)];
    for (std::int64_t d = to; d != from; d = reached[at(d)].before) back.push_back(d);
    back.push_back(from);
    ways_[pair(from, to)].assign(back.rbegin(), back.rend());
  }
}

double LinkMap::even_rate() const {
  const double rate = empty() ? 0 : bytes_per_second(0, 1);
  for (std::int64_t a = 0; a < devices_; ++a)
    for (std::int64_t b = 0; b < a; ++b)
      if (bytes_per_second(a, b) != rate) return 0;
  return rate;
}

std::vector<NodeRing> LinkMap::rings(std::span<const std::int64_t> devices) const {
  const std::size_t n = devices.size();
  if (n == 2) return {{.order = {0, 1}, .share = 1}};
  std::vector<NodeRing> rings;  // with rates in place of shares
  std::vector<double> left = rates_;
  double least = std::numeric_limits<double>::infinity();
  for (const std::int64_t a : devices)
    for (const std::int64_t b : devices)
      if (a != b) least = std::min(least, bytes_per_second(a, b));
  if (least > 0) {
    rings = mesh_rings(static_cast<std::int32_t>(n));
    for (NodeRing& ring : rings) ring.share *= least * static_cast<double>(n - 1);
    for (const std::int64_t a : devices)
      for (const std::int64_t b : devices)
        if (a != b) left[pair(a, b)] -= least;
  }
  const auto add_rings = [&](bool over_others) {
    std::vector<double> widths(n * n, 0);
    for (;;) {
      for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
          if (i == j) continue;
          const auto passed = way(devices[i], devices[j]);
          double& width = widths[i * n + j] = passed.size() == 2 || over_others ? left[pair(passed[0], passed[1])] : 0;
          for (std::size_t p = 1; p + 1 < passed.size(); ++p)
            width = std::min(width, left[pair(passed[p], passed[p + 1])]);
        }
      const std::vector<std::int32_t> order = widest_cycle(widths, n);
      if (order.empty()) return;
      // The ring in one direction and in the other.
      Loads loads(left.size(), 0);
      for (std::size_t i = 0; i < n; ++i) {
        const std::int64_t a = devices[at(order[i])], b = devices[at(order[(i + 1) % n])];
        add_load(a, b, 1, loads);
        add_load(b, a, 1, loads);
      }
      double rate = std::numeric_limits<double>::infinity();
      for (std::size_t l = 0; l < left.size(); ++l)
        if (loads[l] > 0) rate = std::min(rate, left[l] / loads[l]);
      for (std::size_t l = 0; l < left.size(); ++l) {
        if (loads[l] == 0) continue;
        left[l] -= rate * loads[l];
        if (left[l] < 1e-9 * rate) left[l] = 0;  // rounding
      }
      rings.push_back({order, rate});
      rings.push_back({{order.rbegin(), order.rend()}, rate});
    }
  };
  add_rings(false);
  if (rings.empty()) add_rings(true);
  double all = 0;
  for (const NodeRing& ring : rings) all += ring.share;
  for (NodeRing& ring : rings) ring.share /= all;
  return rings;
}

void LinkMap::add_load(std::int64_t from, std::int64_t to, double load, Loads& loads) const {
  const auto passed = way(from, to);
  for (std::size_t p = 0; p + 1 < passed.size(); ++p) loads[pair(passed[p], passed[p + 1])] += load;
}

double LinkMap::rate_of(const Loads& loads) const {
  double rate = port_;
  for (std::size_t l = 0; l < loads.size(); ++l)
    if (loads[l] > 0) rate = std::min(rate, rates_[l] / loads[l]);
  return rate;
}

LinkMap::Rates LinkMap::rates(std::int64_t ranks, std::int64_t stride) const {
  Loads of_rings(rates_.size(), 0), of_exchanges = of_rings, of_shifts = of_rings;
  std::vector<std::int64_t> group(at(ranks));
  for (std::int64_t first = 0; first + (ranks - 1) * stride < devices_; ++first) {
    if (first % (ranks * stride) >= stride) continue;  // in the middle of a block's groups
    for (std::int64_t i = 0; i < ranks; ++i) group[at(i)] = first + i * stride;
    for (const NodeRing& ring : rings(group))
      for (std::size_t i = 0; i < group.size(); ++i)
        add_load(group[at(ring.order[i])], group[at(ring.order[(i + 1) % group.size()])], ring.share, of_rings);
    for (std::size_t i = 0; i < group.size(); ++i) {
      add_load(group[i], group[(i + 1) % group.size()], 1, of_shifts);
      for (const std::int64_t to : group)
        if (to != group[i]) add_load(group[i], to, 1, of_exchanges);
    }
  }
  return {.ring = rate_of(of_rings),
          .exchange = std::min(port_, static_cast<double>(ranks - 1) * rate_of(of_exchanges)),
          .shift = rate_of(of_shifts)};
}

double LinkMap::send_rate(std::int64_t distance) const {
  double rate = port_;
  for (std::int64_t block = 0; block + distance < devices_; block += distance) {
    Loads loads(rates_.size(), 0);
    for (std::int64_t from = block; from < block + distance && from + distance < devices_; ++from)
      add_load(from, from + distance, 1, loads);
    rate = std::min(rate, rate_of(loads));
  }
  return rate;
}

}  // namespace orrery
