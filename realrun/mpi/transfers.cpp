#include "realrun/mpi/transfers.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "sim/base/error.h"
#include "sim/cost/collective_flows.h"
#include "sim/cost/exchange_patterns.h"

namespace orrery::mpi {
namespace {

using Algorithm = CollectiveAlgorithm;
using Kind = Transfer::Kind;

// Part `i` of a range, divided into `parts` parts as equally as possible.
Range part_of(Range whole, std::int64_t parts, std::int64_t i) {
  const std::int64_t begin = whole.elements * i / parts;
  return {whole.begin + begin, whole.elements * (i + 1) / parts - begin};
}

// What a message carries, and whether its receiver adds it to what it has.
struct Content {
  std::vector<Range> ranges;
  bool adds = false;
};

struct Collective {
  OpKind kind;
  Algorithm algorithm;
  std::int64_t members, elements;
  std::int64_t chunks;  // that chains and trees pass on one by one

  // Of message `k` of an edge of collective_flows().
  Content content(const FlowGraph& graph, std::size_t edge, std::int64_t k) const {
    const FlowEdge& e = graph.edges[edge];
    if (algorithm == Algorithm::halving_doubling) return halving_doubling(e);
    if (algorithm == Algorithm::tree) {  // half of the elements each; first up, then down
      const auto edges = static_cast<std::size_t>(members - 1);
      const Range half = part_of({0, elements}, 2, edge / edges < 2 ? 0 : 1);
      return {{part_of(half, chunks, k)}, edge / edges % 2 == 0};
    }
    if (kind == OpKind::broadcast) return {{part_of({0, elements}, chunks, k)}, false};
    // The part that a member sends first: its own when gathering; when reducing, the part that reaches its owner last.
    const std::int64_t first = kind == OpKind::all_gather ? e.from.member : e.from.member - 1;
    return {{part((first - k + 2 * members) % members)},
            kind == OpKind::reduce_scatter || (kind == OpKind::all_reduce && k < members - 1)};
  }

 private:
  Range whole() const { return {0, kind == OpKind::all_reduce ? elements : members * elements}; }
  Range part(std::int64_t of) const { return part_of(whole(), members, of); }
  std::vector<Range> all_but(std::int64_t of) const {
    const Range own = part(of);
    return {{0, own.begin}, {own.begin + own.elements, whole().elements - own.begin - own.elements}};
  }

  Content halving_doubling(const FlowEdge& e) const {
    const HalvingDoubling exchange(kind, members);
    const std::int64_t participants = exchange.participants(), extra = exchange.extra();
    const int step = e.phase - (extra > 0 ? 1 : 0);
    if (step < 0 || step == exchange.steps()) {  // between an extra rank and its odd neighbour
      const bool in = step < 0;
      const std::int64_t rank = in ? e.from.member : e.to.member;
      // A reduce-scatter keeps what it has of its own part, and adds it to what the others have.
      if (kind == OpKind::all_reduce) return {{whole()}, in};
      if (kind == OpKind::all_gather) return {in ? std::vector{part(rank)} : all_but(rank)};
      return {in ? all_but(rank) : std::vector{part(rank)}, true};
    }
    // Halving sends the part that agrees with the partner so far and keeps the rest; doubling sends what it has.
    const std::int64_t sender = e.from.member < 2 * extra ? e.from.member / 2 : e.from.member - extra;
    const std::int64_t bit = std::int64_t{1} << exchange.bit(step);
    const std::int64_t given = exchange.halves(step) ? sender ^ bit : sender;
    Content content{{}, exchange.halves(step)};
    for (std::int64_t v = given % (2 * bit); v < participants; v += 2 * bit) {
      // A participant's block: an equal part of the buffer, or the parts of the ranks that it represents.
      if (kind == OpKind::all_reduce) {
        content.ranges.push_back(part_of(whole(), participants, v));
        continue;
      }
      if (v < extra) content.ranges.push_back(part(2 * v));
      content.ranges.push_back(part(exchange.rank_of(v)));
    }
    return content;
  }
};

// A member's share of the messages of `graph`. A transfer waits for all of the member's transfers of earlier phases.
Transfers view_of(const FlowGraph& graph, const Collective& collective, std::int32_t member) {
  Transfers schedule;
  std::vector<std::vector<std::size_t>> transfers(graph.edges.size());     // by the member's edges: of their messages
  std::map<std::pair<std::int64_t, std::int64_t>, std::size_t> handed_on;  // by range: the sends of partial sums
  const auto key_of = [](const std::vector<Range>& ranges) {
    return std::pair(ranges.front().begin, ranges.front().elements);
  };
  for (int phase = 0; phase < graph.phases; ++phase) {
    const std::size_t begin = schedule.size();
    std::vector<std::size_t> before(begin), own;
    std::iota(before.begin(), before.end(), std::size_t{0});
    std::int32_t messages = 0;
    for (std::size_t e = 0; e < graph.edges.size(); ++e) {
      const FlowEdge& edge = graph.edges[e];
      if (edge.phase != phase || (edge.from.member != member && edge.to.member != member)) continue;
      own.push_back(e);
      messages = std::max(messages, edge.messages);
    }
    for (std::int32_t k = 0; k < messages; ++k)
      for (const std::size_t e : own) {
        const FlowEdge& edge = graph.edges[e];
        if (k >= edge.messages) continue;
        const bool sends = edge.from.member == member;
        Content content = collective.content(graph, e, k);
        if (sends && content.adds) handed_on[key_of(content.ranges)] = schedule.size();
        transfers[e].push_back(schedule.size());
        schedule.push_back({sends          ? Kind::send
                            : content.adds ? Kind::receive_and_add
                                           : Kind::receive,
                            static_cast<std::size_t>(sends ? edge.to.member : edge.from.member),
                            std::move(content.ranges), before});
      }
    for (const std::size_t e : own)
      for (std::int32_t k = 0; k < graph.edges[e].messages; ++k) {
        Transfer& transfer = schedule[transfers[e][static_cast<std::size_t>(k)]];
        if (transfer.kind == Kind::send) {
          for (const std::int32_t a : graph.after_of(graph.edges[e])) {
            const auto& arrivals = transfers[static_cast<std::size_t>(a)];
            const std::int32_t needed = k + graph.edges[e].lag;
            if (needed >= 0 && static_cast<std::size_t>(needed) < arrivals.size())
              transfer.after.push_back(arrivals[static_cast<std::size_t>(needed)]);
          }
        } else if (transfer.kind == Kind::receive) {  // the partial sum that it overwrites has been sent
          const auto sent = handed_on.find(key_of(transfer.ranges));
          if (sent != handed_on.end() && sent->second >= begin) transfer.after.push_back(sent->second);
        }
      }
  }
  return schedule;
}

}  // namespace

std::int64_t Transfer::elements() const {
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.elements;
  return sum;
}

Transfers unequal_all_to_all(std::size_t i, std::span<const std::int64_t> sends,
                            std::span<const std::int64_t> receives) {
  Transfers schedule;
  const std::size_t n = sends.size();
  const auto part = [](std::span<const std::int64_t> parts, std::size_t m) {
    return Range{std::accumulate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(m), std::int64_t{0}),
                 parts[m]};
  };
  for (std::size_t away = 1; away < n; ++away) {
    const std::size_t from = (i + n - away) % n;
    schedule.push_back({Kind::receive, from, {part(receives, from)}, {}});
  }
  for (std::size_t away = 1; away < n; ++away) {
    const std::size_t to = (i + away) % n;
    schedule.push_back({Kind::send, to, {part(sends, to)}, {}});
  }
  return schedule;
}

Transfers schedule_of(OpKind kind, CollectiveAlgorithm algorithm, std::size_t members, std::size_t member,
                     std::int64_t elements, std::int64_t chunk_elements) {
  const bool gathers = kind == OpKind::all_reduce || kind == OpKind::all_gather || kind == OpKind::reduce_scatter;
  if (!(gathers && (algorithm == Algorithm::ring || algorithm == Algorithm::halving_doubling)) &&
      !(kind == OpKind::all_reduce && algorithm == Algorithm::tree) &&
      !(kind == OpKind::broadcast && algorithm == Algorithm::ring))
    throw InputError({}, std::string(name_of(algorithm)) + " for " + name_of(kind),
                     "ring, tree or halving_doubling for all_reduce, ring or halving_doubling for all_gather and "
                     "reduce_scatter, direct for all_to_all, ring for broadcast");
  const std::int64_t passed_on = algorithm == Algorithm::tree ? (elements + 1) / 2 : elements;
  const Collective collective{kind, algorithm, static_cast<std::int64_t>(members), elements,
                              std::max<std::int64_t>(1, (passed_on + chunk_elements - 1) / chunk_elements)};
  std::vector<std::int64_t> devices(members);
  std::iota(devices.begin(), devices.end(), std::int64_t{0});
  FlowGraph graph;
  collective_flows(kind, algorithm, {.devices = devices}, {.chunks = static_cast<std::int32_t>(collective.chunks)},
                   graph);
  return view_of(graph, collective, static_cast<std::int32_t>(member));
}

}  // namespace orrery::mpi
