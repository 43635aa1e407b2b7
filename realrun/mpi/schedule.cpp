#include "realrun/mpi/schedule.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "sim/base/error.h"
#include "sim/cost/halving_doubling.h"

namespace orrery::mpi {
namespace {

using Algorithm = CollectiveAlgorithm;
using Kind = Transfer::Kind;

std::int64_t as_int(std::size_t n) { return static_cast<std::int64_t>(n); }

// Part `i` of `elements`, divided into `parts` parts as equally as possible.
Range part_of(std::int64_t elements, std::int64_t parts, std::int64_t i) {
  const std::int64_t begin = elements * i / parts;
  return {begin, elements * (i + 1) / parts - begin};
}

std::vector<Range> chunks_of(Range range, std::int64_t chunk) {
  std::vector<Range> chunks;
  for (std::int64_t at = 0; at < range.elements; at += chunk)
    chunks.push_back({range.begin + at, std::min(chunk, range.elements - at)});
  return chunks;
}

class ScheduleBuilder {
 public:
  std::size_t add(Kind kind, std::size_t member, std::vector<Range> ranges, std::vector<std::size_t> after) {
    schedule_.push_back({kind, member, std::move(ranges), std::move(after)});
    return schedule_.size() - 1;
  }
  Schedule take() { return std::move(schedule_); }

 private:
  Schedule schedule_;
};

// Patarasuk and Yuan 2009: in each step a member passes on what it received in the step before.
Schedule ring(OpKind kind, std::size_t n, std::size_t i, std::int64_t elements) {
  ScheduleBuilder b;
  const std::size_t next = (i + 1) % n, previous = (i + n - 1) % n;
  const auto part = [&](std::size_t c) {
    return kind == OpKind::all_reduce ? part_of(elements, as_int(n), as_int(c)) : Range{as_int(c) * elements, elements};
  };
  const std::size_t rounds = kind == OpKind::all_reduce ? 2 : 1;
  // The part that a member sends first: its own when gathering; when reducing, the part that reaches its owner last.
  const std::size_t first = kind == OpKind::all_gather ? i : previous;
  std::vector<std::optional<std::size_t>> sent(n);  // the last send of each part
  std::optional<std::size_t> received;
  for (std::size_t step = 0; step < rounds * (n - 1); ++step) {
    const std::size_t out = (first + n * rounds - step) % n, in = (out + n - 1) % n;
    std::vector<std::size_t> after;
    if (received) after.push_back(*received);
    sent[out] = b.add(Kind::send, next, {part(out)}, after);
    const bool adds = kind == OpKind::reduce_scatter || (kind == OpKind::all_reduce && step < n - 1);
    after.clear();
    if (sent[in]) after.push_back(*sent[in]);  // the overwritten data has been sent
    received = b.add(adds ? Kind::receive_and_add : Kind::receive, previous, {part(in)}, after);
  }
  return b.take();
}

Schedule chain(std::size_t n, std::size_t i, std::int64_t elements, std::int64_t chunk) {
  ScheduleBuilder b;
  for (const Range& range : chunks_of({0, elements}, chunk)) {
    std::vector<std::size_t> after;
    if (i > 0) after.push_back(b.add(Kind::receive, i - 1, {range}, {}));
    if (i + 1 < n) b.add(Kind::send, i + 1, {range}, after);
  }
  return b.take();
}

Schedule all_to_all(std::size_t n, std::size_t i, std::int64_t elements) {
  ScheduleBuilder b;
  for (std::size_t away = 1; away < n; ++away)
    b.add(Kind::receive, (i + n - away) % n, {{as_int((i + n - away) % n) * elements, elements}}, {});
  for (std::size_t away = 1; away < n; ++away)
    b.add(Kind::send, (i + away) % n, {{as_int((i + away) % n) * elements, elements}}, {});
  return b.take();
}

// The parent of a node in NCCL's binary tree (src/graph/trees.cc, ncclGetBtree), and in the second tree, in which the
// first one's leaves are inner nodes (ncclGetDtree). -1: the root.
std::int64_t parent_in_first(std::int64_t n, std::int64_t v) {
  if (v == 0) return -1;
  const std::int64_t bit = v & -v, up = (v ^ bit) | (bit << 1);
  return up < n ? up : v ^ bit;
}
std::int64_t parent_in_second(std::int64_t n, std::int64_t v) {
  const bool mirror = n % 2 == 0;
  const std::int64_t parent = parent_in_first(n, mirror ? n - 1 - v : (v + n - 1) % n);
  if (parent < 0) return -1;
  return mirror ? n - 1 - parent : (parent + 1) % n;
}

// Half of the bytes go up and down each of two trees.
Schedule trees(std::size_t n, std::size_t i, std::int64_t elements, std::int64_t chunk) {
  ScheduleBuilder b;
  for (const std::int64_t tree : {0, 1}) {
    const auto parent_of = [&](std::int64_t v) {
      return tree == 0 ? parent_in_first(as_int(n), v) : parent_in_second(as_int(n), v);
    };
    const std::int64_t parent = parent_of(as_int(i));
    std::vector<std::size_t> children;
    for (std::size_t v = 0; v < n; ++v)
      if (parent_of(as_int(v)) == as_int(i)) children.push_back(v);
    for (const Range& range : chunks_of(part_of(elements, 2, tree), chunk)) {
      std::vector<std::size_t> total;
      for (const std::size_t child : children) total.push_back(b.add(Kind::receive_and_add, child, {range}, {}));
      if (parent >= 0) {
        const std::size_t up = b.add(Kind::send, static_cast<std::size_t>(parent), {range}, total);
        total = {b.add(Kind::receive, static_cast<std::size_t>(parent), {range}, {up})};
      }
      for (const std::size_t child : children) b.add(Kind::send, child, {range}, total);
    }
  }
  return b.take();
}

Schedule halving_doubling(OpKind kind, std::size_t n, std::size_t i, std::int64_t elements) {
  ScheduleBuilder b;
  const HalvingDoubling exchange(kind, as_int(n));
  const std::int64_t participants = exchange.participants(), extra = exchange.extra();
  // A participant's block: an equal part of the buffer, or the parts of the ranks that it represents.
  const auto block = [&](std::int64_t v) -> std::vector<Range> {
    if (kind == OpKind::all_reduce) return {part_of(elements, participants, v)};
    if (v < extra) return {{2 * v * elements, 2 * elements}};
    return {{exchange.rank_of(v) * elements, elements}};
  };
  const auto blocks = [&](auto&& wanted) {
    std::vector<Range> ranges;
    for (std::int64_t v = 0; v < participants; ++v)
      if (wanted(v))
        for (const Range& range : block(v)) ranges.push_back(range);
    return ranges;
  };
  const auto all = [&] { return Range{0, kind == OpKind::all_reduce ? elements : as_int(n) * elements}; };
  const auto own = [&](std::size_t rank) { return Range{as_int(rank) * elements, elements}; };
  const auto all_but = [&](std::size_t rank) {
    const Range part = own(rank), whole = all();
    std::vector<Range> ranges{{0, part.begin}, {part.begin + part.elements, whole.elements - part.begin - elements}};
    std::erase_if(ranges, [](const Range& r) { return r.elements == 0; });
    return ranges;
  };
  const bool folded = as_int(i) < 2 * extra;
  if (folded && i % 2 == 0) {  // an extra rank: everything goes through its odd neighbour
    const std::size_t in = b.add(Kind::send, i + 1,
                                 kind == OpKind::all_reduce   ? std::vector{all()}
                                 : kind == OpKind::all_gather ? std::vector{own(i)}
                                                              : all_but(i),
                                 {});
    // A reduce-scatter keeps what it has of its own part, and adds it to what the others have.
    b.add(kind == OpKind::reduce_scatter ? Kind::receive_and_add : Kind::receive, i + 1,
          kind == OpKind::all_reduce   ? std::vector{all()}
          : kind == OpKind::all_gather ? all_but(i)
                                       : std::vector{own(i)},
          {in});
    return b.take();
  }
  const std::int64_t me = folded ? as_int(i) / 2 : as_int(i) - extra;
  std::vector<std::size_t> before;
  if (folded)
    before = {b.add(kind == OpKind::all_gather ? Kind::receive : Kind::receive_and_add, i - 1,
                    kind == OpKind::all_reduce   ? std::vector{all()}
                    : kind == OpKind::all_gather ? std::vector{own(i - 1)}
                                                 : all_but(i - 1),
                    {})};
  for (int step = 0; step < exchange.steps(); ++step) {
    const int bit = exchange.bit(step);
    const std::int64_t mask = (std::int64_t{2} << bit) - 1, partner = me ^ (std::int64_t{1} << bit);
    const auto peer = static_cast<std::size_t>(exchange.rank_of(partner));
    const bool halves = exchange.halves(step);
    // Halving sends the part that agrees with the partner so far and keeps the rest; doubling sends what it has.
    const std::int64_t given = halves ? partner : me, taken = halves ? me : partner;
    const std::size_t out =
        b.add(Kind::send, peer, blocks([&](std::int64_t v) { return (v & mask) == (given & mask); }), before);
    const std::size_t in = b.add(halves ? Kind::receive_and_add : Kind::receive, peer,
                                 blocks([&](std::int64_t v) { return (v & mask) == (taken & mask); }), before);
    before = {out, in};
  }
  if (folded)
    b.add(Kind::send, i - 1,
          kind == OpKind::all_reduce   ? std::vector{all()}
          : kind == OpKind::all_gather ? all_but(i - 1)
                                       : std::vector{own(i - 1)},
          before);
  return b.take();
}

}  // namespace

Schedule unequal_all_to_all(std::size_t i, std::span<const std::int64_t> sends,
                            std::span<const std::int64_t> receives) {
  ScheduleBuilder b;
  const std::size_t n = sends.size();
  const auto part = [](std::span<const std::int64_t> parts, std::size_t m) {
    return Range{std::accumulate(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(m), std::int64_t{0}),
                 parts[m]};
  };
  for (std::size_t away = 1; away < n; ++away) {
    const std::size_t from = (i + n - away) % n;
    b.add(Kind::receive, from, {part(receives, from)}, {});
  }
  for (std::size_t away = 1; away < n; ++away) {
    const std::size_t to = (i + away) % n;
    b.add(Kind::send, to, {part(sends, to)}, {});
  }
  return b.take();
}

std::int64_t Transfer::elements() const {
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.elements;
  return sum;
}

Schedule schedule_of(OpKind kind, CollectiveAlgorithm algorithm, std::size_t members, std::size_t member,
                     std::int64_t elements, std::int64_t chunk_elements) {
  const bool gathers = kind == OpKind::all_reduce || kind == OpKind::all_gather || kind == OpKind::reduce_scatter;
  Schedule schedule;
  if (gathers && algorithm == Algorithm::ring)
    schedule = ring(kind, members, member, elements);
  else if (gathers && algorithm == Algorithm::halving_doubling)
    schedule = halving_doubling(kind, members, member, elements);
  else if (kind == OpKind::all_reduce && algorithm == Algorithm::tree)
    schedule = trees(members, member, elements, chunk_elements);
  else if (kind == OpKind::all_to_all && algorithm == Algorithm::direct)
    schedule = all_to_all(members, member, elements);
  else if (kind == OpKind::broadcast && algorithm == Algorithm::ring)
    schedule = chain(members, member, elements, chunk_elements);
  else
    throw InputError({}, std::string(name_of(algorithm)) + " for " + name_of(kind),
                     "ring, tree or halving_doubling for all_reduce, ring or halving_doubling for all_gather and "
                     "reduce_scatter, direct for all_to_all, ring for broadcast");
  return schedule;
}

}  // namespace orrery::mpi
