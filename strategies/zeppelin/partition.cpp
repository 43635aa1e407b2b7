#include "strategies/zeppelin/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/error.h"
#include "sim/program/load.h"

namespace orrery::zeppelin {
namespace {

struct Document {
  std::int64_t begin = 0, end = 0;
  std::int64_t length() const { return end - begin; }
  double pairs() const { return static_cast<double>(length()) * static_cast<double>(length()) / 2; }
};

// Returns documents in descending order of length; equal ones in order of position.
std::vector<Document> documents_of(std::span<const std::int64_t> ends) {
  std::vector<Document> documents;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) { documents.push_back({begin, end}); });
  std::ranges::stable_sort(documents, [](const Document& a, const Document& b) { return a.length() > b.length(); });
  return documents;
}

double as_double(std::int64_t n) { return static_cast<double>(n); }

// What each rank has been given so far.
class Room {
 public:
  Room(const Ranks& ranks, double capacity)
      : ranks_(&ranks),
        capacity_(capacity),
        tokens_(static_cast<std::size_t>(ranks.count), 0),
        pairs_(static_cast<std::size_t>(ranks.count), 0) {}

  // Returns, of the rings of this size within `count` ranks from `first`, the one with room and the least attention.
  std::optional<std::int64_t> find(const Document& d, std::int64_t ring, std::int64_t first, std::int64_t count) const {
    std::optional<std::int64_t> best;
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t at = first; at < first + count; at += ring) {
      double pairs = 0;
      bool room = true;
      for (std::int64_t r = at; r < at + ring; ++r) {
        pairs = std::max(pairs, pairs_[static_cast<std::size_t>(r)]);
        room = room && tokens_[static_cast<std::size_t>(r)] + as_double(d.length()) / as_double(ring) <= capacity_;
      }
      if (!room || pairs >= least) continue;
      least = pairs;
      best = at;
    }
    return best;
  }
  void put(const Document& d, std::int64_t ring, std::int64_t first) {
    for (std::int64_t r = first; r < first + ring; ++r) {
      tokens_[static_cast<std::size_t>(r)] += as_double(d.length()) / as_double(ring);
      pairs_[static_cast<std::size_t>(r)] += d.pairs() / as_double(ring);
    }
  }
  double pairs_of_node(std::int64_t first) const { return of_node(pairs_, first); }
  double tokens_of_node(std::int64_t first) const { return of_node(tokens_, first); }

 private:
  double of_node(const std::vector<double>& all, std::int64_t first) const {
    return std::accumulate(all.begin() + first, all.begin() + first + ranks_->of_node, 0.0);
  }

  const Ranks* ranks_;
  double capacity_;
  std::vector<double> tokens_, pairs_;
};

struct Placement {
  Document document;
  std::int64_t ring = 1, first = 0;
};
using Placements = std::vector<Placement>;

std::int64_t ring_of_at_least(const Ranks& ranks, double least) {
  for (const std::int64_t ring : ranks.rings)
    if (as_double(ring) >= least) return ring;
  return ranks.count;
}
std::int64_t next_ring(const Ranks& ranks, std::int64_t ring) {
  const auto at = std::ranges::upper_bound(ranks.rings, ring);
  return at == ranks.rings.end() ? ranks.count + 1 : *at;
}

// Places a document on the smallest ring with room, of `least` to `most` ranks, among `count` ranks from `first`.
// Returns false if there is none.
bool place(const Document& d, const Ranks& ranks, std::int64_t least, std::int64_t most, std::int64_t first,
           std::int64_t count, Room& room, Placements& placements) {
  for (std::int64_t ring = least; ring <= most; ring = next_ring(ranks, ring))
    if (const std::optional<std::int64_t> at = room.find(d, ring, first, count)) {
      room.put(d, ring, *at);
      placements.push_back({d, ring, *at});
      return true;
    }
  return false;
}

// Within a node: divides documents over its ranks, or places them whole on one. Returns false if there is no room.
bool place_in_node(const std::vector<Document>& here, const Ranks& ranks, std::int64_t first, Room& room,
                   Placements& placements, double capacity) {
  double pairs = room.pairs_of_node(first);
  for (const Document& d : here) pairs += d.pairs();
  const double mean = pairs / as_double(ranks.of_node);
  std::size_t cut = 0;  // number of divided documents
  while (cut < here.size() && as_double(here[cut].length()) > capacity) ++cut;
  for (; cut <= here.size(); ++cut) {
    Room trial = room;
    Placements placed;
    for (std::size_t i = 0; i < here.size(); ++i) {
      const Document& d = here[i];
      const std::int64_t even = std::max(next_ring(ranks, 1), ring_of_at_least(ranks, d.pairs() / mean)),
                         least = i < cut ? std::min(even, ranks.of_node) : 1, most = i < cut ? ranks.of_node : 1;
      if (place(d, ranks, least, most, first, ranks.of_node, trial, placed)) continue;
      if (i < cut) return false;
      break;
    }
    if (placed.size() < here.size()) continue;
    room = std::move(trial);
    placements.insert(placements.end(), placed.begin(), placed.end());
    return true;
  }
  return false;
}

// Divides `cut` documents over nodes and places the others whole on one node each.
std::optional<Placements> by_zones(const std::vector<Document>& documents, std::size_t cut, std::int64_t tokens,
                                   const Ranks& ranks, double capacity) {
  const std::int64_t nodes = ranks.count / ranks.of_node;
  const double share = as_double(tokens) / as_double(nodes);
  Room room(ranks, capacity);
  Placements placements;
  for (std::size_t i = 0; i < cut; ++i) {
    const double over = std::max(2.0, std::ceil(as_double(documents[i].length()) / share));
    if (!place(documents[i], ranks, ring_of_at_least(ranks, over * as_double(ranks.of_node)), ranks.count, 0,
               ranks.count, room, placements))
      return std::nullopt;
  }
  struct OfNode {
    std::vector<Document> documents;
    double tokens, pairs;
  };
  std::vector<OfNode> of_nodes;
  for (std::int64_t first = 0; first < ranks.count; first += ranks.of_node)
    of_nodes.push_back({{}, room.tokens_of_node(first), room.pairs_of_node(first)});
  for (std::size_t i = cut; i < documents.size(); ++i) {
    const Document& d = documents[i];
    OfNode* best = nullptr;
    for (OfNode& node : of_nodes)
      if (node.tokens + as_double(d.length()) <= capacity * as_double(ranks.of_node) &&
          (best == nullptr || node.pairs < best->pairs))
        best = &node;
    if (best == nullptr) return std::nullopt;
    best->documents.push_back(d);
    best->tokens += as_double(d.length());
    best->pairs += d.pairs();
  }
  for (std::size_t n = 0; n < of_nodes.size(); ++n)
    if (!place_in_node(of_nodes[n].documents, ranks, static_cast<std::int64_t>(n) * ranks.of_node, room, placements,
                       capacity))
      return std::nullopt;
  return placements;
}

std::optional<Placements> by_zones(const std::vector<Document>& documents, std::int64_t tokens, const Ranks& ranks,
                                   double capacity) {
  const bool nodes = ranks.count > ranks.of_node;
  std::size_t cut = 0;
  while (nodes && cut < documents.size() && as_double(documents[cut].length()) > capacity * as_double(ranks.of_node))
    ++cut;
  for (; cut <= (nodes ? documents.size() : 0); ++cut)
    if (std::optional<Placements> found = by_zones(documents, cut, tokens, ranks, capacity)) return found;
  return std::nullopt;
}

Placements by_length(const std::vector<Document>& documents, const Ranks& ranks, double capacity) {
  Room room(ranks, std::numeric_limits<double>::infinity());
  Placements placements;
  for (const Document& d : documents) {
    const std::int64_t ring = ring_of_at_least(ranks, as_double(d.length()) / capacity);
    place(d, ranks, ring, ring, 0, ranks.count, room, placements);
  }
  return placements;
}

Placements over_all(const std::vector<Document>& documents, const Ranks& ranks) {
  Placements placements;
  for (const Document& d : documents) placements.push_back({d, ranks.count, 0});
  return placements;
}

// Time of the slowest rank. Each step of a ring takes as long as its computation or its transfer, whichever is longer.
// Tokens beyond the mean move, within the node or out of it, or are computed where they are.
double estimated_seconds(const Placements& placements, const Ranks& ranks, const Rates& rates, bool remapping) {
  std::vector<double> seconds(static_cast<std::size_t>(ranks.count), 0), tokens(seconds.size(), 0);
  for (const Placement& p : placements) {
    const double ring = as_double(p.ring), of_rank = as_double(p.document.length()) / ring;
    const double compute = p.document.pairs() / ring * rates.seconds_per_pair,
                 sends = of_rank * (ring - 1) *
                         (p.ring > ranks.of_node ? rates.seconds_per_key_between : rates.seconds_per_key_in_node);
    for (std::int64_t r = p.first; r < p.first + p.ring; ++r) {
      seconds[static_cast<std::size_t>(r)] += std::max(compute, sends);
      tokens[static_cast<std::size_t>(r)] += of_rank;
    }
  }
  if (!remapping) {
    for (std::size_t r = 0; r < seconds.size(); ++r) seconds[r] += tokens[r] * rates.seconds_per_token;
    return *std::ranges::max_element(seconds);
  }
  const auto surplus = [](const std::vector<double>& of, double mean) {
    return std::max(0.0, *std::ranges::max_element(of) - mean);
  };
  const double mean = std::reduce(tokens.begin(), tokens.end()) / as_double(ranks.count);
  std::vector<double> of_nodes;
  for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(ranks.of_node))
    of_nodes.push_back(std::accumulate(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                                       tokens.begin() + static_cast<std::ptrdiff_t>(first) + ranks.of_node, 0.0));
  // What leaves a node is sent over the NICs of all its ranks.
  const double in_node = surplus(tokens, mean),
               between = surplus(of_nodes, mean * as_double(ranks.of_node)) / as_double(ranks.of_node);
  return *std::ranges::max_element(seconds) +
         std::max(in_node * rates.seconds_per_moved_in_node, between * rates.seconds_per_moved_between);
}

void limit_sizes(Placements& placements) {
  for (;;) {
    std::vector<std::int64_t> rings;
    for (const Placement& p : placements) rings.push_back(p.ring);
    std::ranges::sort(rings);
    rings.erase(std::unique(rings.begin(), rings.end()), rings.end());
    if (rings.size() <= kMostZones) return;
    const std::size_t smallest = rings[0] == 1 ? 1 : 0;
    for (Placement& p : placements)
      if (p.ring == rings[smallest]) {
        p.ring = rings[smallest + 1];
        p.first = p.first / p.ring * p.ring;
      }
  }
}

// A group that exchanges (FlexSP): its documents, and the work of each of its ranks.
struct Group {
  std::int64_t ring = 1, tokens = 0;
  double seconds = 0;
  std::vector<Document> documents = {};
};

class Groups {
 public:
  Groups(const std::vector<Document>& documents, const Ranks& ranks, const Rates& rates, double capacity)
      : documents_(documents), ranks_(ranks), rates_(rates), capacity_(capacity) {}

  std::optional<std::vector<Group>> find() {
    for (; smallest_ < ranks_.rings.size() && ranks_.rings[smallest_] <= ranks_.most_exchanging; ++smallest_) {
      std::optional<std::vector<Group>> best = within(std::numeric_limits<double>::infinity());
      if (!best) continue;
      double least = 0, most = longest(*best);
      constexpr int kHalvings = 40;
      for (int i = 0; i < kHalvings; ++i) {
        const double limit = (least + most) / 2;
        if (std::optional<std::vector<Group>> found = within(limit)) {
          most = std::min(limit, longest(*found));
          best = std::move(found);
        } else {
          least = limit;
        }
      }
      widen(*best);
      std::ranges::stable_sort(*best, std::ranges::greater(), &Group::ring);
      std::size_t sizes = 1;
      for (std::size_t g = 1; g < best->size(); ++g) sizes += (*best)[g].ring != (*best)[g - 1].ring ? 1 : 0;
      if (sizes <= kMostZones) return best;
    }
    return std::nullopt;
  }

 private:
  static double longest(const std::vector<Group>& groups) {
    return std::ranges::max_element(groups, {}, &Group::seconds)->seconds;
  }
  // Fractions of a rank's tokens, by heads, that go to other ranks of its node and to other nodes.
  double seconds(const Document& d, std::int64_t ring) const {
    const double n = as_double(ring), in_node = as_double(std::min(ring, ranks_.of_node));
    const double moved = std::max((in_node - 1) / n * rates_.seconds_per_moved_in_node,
                                  (n - in_node) / n * rates_.seconds_per_moved_between);
    return (d.pairs() * rates_.seconds_per_pair + as_double(d.length()) * (rates_.seconds_per_token + moved)) / n;
  }
  bool has_room(std::int64_t tokens, std::int64_t ring) const {
    return as_double(tokens) <= capacity_ * as_double(ring);
  }
  void put(const Document& d, Group& group) const {
    group.documents.push_back(d);
    group.tokens += d.length();
    group.seconds += seconds(d, group.ring);
  }

  // Forms groups of which none takes longer than `limit`, on no more ranks than there are. A document goes to the
  // smallest group that has room for it; among these to the one that it leaves the least room.
  std::optional<std::vector<Group>> within(double limit) const {
    std::vector<Group> groups;
    std::int64_t used = 0;
    for (const Document& d : documents_) {
      Group* best = nullptr;
      for (Group& group : groups)
        if (has_room(group.tokens + d.length(), group.ring) && group.seconds + seconds(d, group.ring) <= limit &&
            (best == nullptr || group.ring < best->ring || (group.ring == best->ring && group.seconds > best->seconds)))
          best = &group;
      if (best == nullptr) {
        std::int64_t ring = ranks_.rings[smallest_];
        while (ring <= ranks_.most_exchanging && (!has_room(d.length(), ring) || seconds(d, ring) > limit))
          ring = next_ring(ranks_, ring);
        used += ring;
        if (ring > ranks_.most_exchanging || used > ranks_.count) return std::nullopt;
        best = &groups.emplace_back();
        best->ring = ring;
      }
      put(d, *best);
    }
    return groups;
  }

  // Adds left-over ranks to the slowest group that they are enough to enlarge by one step.
  void widen(std::vector<Group>& groups) const {
    std::int64_t left = ranks_.count;
    for (const Group& group : groups) left -= group.ring;
    for (;;) {
      Group* slowest = nullptr;
      for (Group& group : groups) {
        const std::int64_t wider = next_ring(ranks_, group.ring);
        if (wider <= ranks_.most_exchanging && wider - group.ring <= left &&
            (slowest == nullptr || group.seconds > slowest->seconds))
          slowest = &group;
      }
      if (slowest == nullptr) return;
      Group wider{.ring = next_ring(ranks_, slowest->ring)};
      for (const Document& d : slowest->documents) put(d, wider);
      if (wider.seconds >= slowest->seconds) return;
      left -= wider.ring - slowest->ring;
      *slowest = std::move(wider);
    }
  }

  const std::vector<Document>& documents_;
  const Ranks& ranks_;
  const Rates& rates_;
  const double capacity_;
  std::size_t smallest_ = 0;  // smallest allowed group size
};

// The positions of a group's documents in order; each rank has the next part of them.
void lay(const Group& group, std::int64_t first, Zone& zone) {
  std::vector<Document> documents = group.documents;
  std::ranges::sort(documents, {}, &Document::begin);
  std::int64_t before = 0;
  std::size_t d = 0;
  for (std::int64_t r = 0; r < group.ring; ++r) {
    const std::int64_t end = group.tokens * (r + 1) / group.ring;
    for (std::int64_t at = group.tokens * r / group.ring; at < end;) {
      while (before + documents[d].length() <= at) before += documents[d++].length();
      const std::int64_t count = std::min(end, before + documents[d].length()) - at;
      zone.of_rank[static_cast<std::size_t>(first + r)].push_back({documents[d].begin + at - before, count});
      at += count;
    }
  }
  for (const Document& document : documents) zone.documents.push_back({document.begin, document.end, first});
}

// The largest groups first, so that each begins at a multiple of its size.
std::vector<Zone> zones_of(const std::vector<Group>& groups, const Ranks& ranks) {
  std::vector<Zone> zones;
  std::int64_t first = 0;
  for (const Group& group : groups) {
    if (zones.empty() || zones.back().ring != group.ring) {
      zones.push_back({.ring = group.ring, .documents = {}, .of_rank = {}});
      zones.back().of_rank.resize(static_cast<std::size_t>(ranks.count));
    }
    lay(group, first, zones.back());
    first += group.ring;
  }
  return zones;
}

// Chunks as equal as possible; extra tokens go to the ranks of the ring that have the fewest.
void lay(const Placement& p, std::vector<std::int64_t>& tokens, Zone& zone) {
  const auto ring = static_cast<std::size_t>(p.ring), first = static_cast<std::size_t>(p.first);
  std::vector<std::int64_t> chunks(2 * ring, p.document.length() / (2 * p.ring));
  std::vector<int> extras(ring, 0);
  for (std::size_t r = 0; r < ring; ++r) tokens[first + r] += 2 * chunks[0];
  for (std::int64_t left = p.document.length() % (2 * p.ring); left > 0; --left) {
    std::size_t fewest = ring;
    for (std::size_t r = 0; r < ring; ++r)
      if (extras[r] < 2 && (fewest == ring || tokens[first + r] < tokens[first + fewest])) fewest = r;
    ++chunks[extras[fewest] == 0 ? fewest : 2 * ring - 1 - fewest];
    ++extras[fewest];
    ++tokens[first + fewest];
  }
  std::vector<std::int64_t> begins(2 * ring);
  std::exclusive_scan(chunks.begin(), chunks.end(), begins.begin(), p.document.begin);
  for (std::size_t r = 0; r < ring; ++r)
    for (const std::size_t chunk : {r, 2 * ring - 1 - r})
      if (chunks[chunk] > 0) zone.of_rank[first + r].push_back({begins[chunk], chunks[chunk]});
  zone.documents.push_back({p.document.begin, p.document.end, p.first});
}

// Divides `whole` in proportion to `of`, with no share larger than its entry; the shares sum to `whole`. REQUIRES:
// `whole` is at most the sum of `of`.
std::vector<std::int64_t> shares_of(std::int64_t whole, const std::vector<std::int64_t>& of) {
  std::vector<std::int64_t> shares;
  const std::int64_t all = std::reduce(of.begin(), of.end());
  std::int64_t given = 0, behind = 0;
  for (const std::int64_t n : of) {
    behind += n;
    const std::int64_t up_to = all == 0 ? 0 : behind * whole / all;
    shares.push_back(std::min(n, up_to - given));
    given += shares.back();
  }
  for (std::size_t i = 0; given < whole; i = (i + 1) % shares.size())
    if (shares[i] < of[i]) ++shares[i], ++given;
  return shares;
}

// Every rank keeps as many of the tokens it attends with as it is to have. The rest goes to ranks that have fewer,
// first within its node, in proportion to each rank's surplus and shortage.
class Homes {
 public:
  Homes(const std::vector<Zone>& zones, const Ranks& ranks, std::int64_t tokens)
      : ranks_(ranks),
        home_(static_cast<std::size_t>(ranks.count)),
        surplus_(home_.size()),
        too_many_(home_.size(), 0) {
    const std::int64_t quota = tokens / ranks.count;
    lacks_.assign(home_.size(), quota);
    for (const Zone& zone : zones)
      for (std::size_t r = 0; r < home_.size(); ++r)
        for (const IndexRange& run : zone.of_rank[r]) {
          const std::int64_t kept = std::min(run.count, lacks_[r]);
          if (kept > 0) home_[r].push_back(run.slice(0, kept));
          if (kept < run.count) surplus_[r].push_back(run.slice(kept, run.count - kept));
          lacks_[r] -= kept;
          too_many_[r] += run.count - kept;
        }
  }

  RunsOfParts find() {
    for (std::int64_t first = 0; first < ranks_.count; first += ranks_.of_node) match(first, ranks_.of_node);
    match(0, ranks_.count);
    return std::move(home_);
  }

 private:
  // Matches surplus and shortage among these ranks.
  void match(std::int64_t first, std::int64_t count) {
    const auto of = [&](const std::vector<std::int64_t>& all) {
      return std::vector<std::int64_t>(all.begin() + first, all.begin() + first + count);
    };
    const std::vector<std::int64_t> more = of(too_many_), less = of(lacks_);
    const std::int64_t moved = std::min(std::reduce(more.begin(), more.end()), std::reduce(less.begin(), less.end()));
    std::vector<std::int64_t> give = shares_of(moved, more), take = shares_of(moved, less);
    std::size_t to = 0;
    for (std::size_t from = 0; from < give.size(); ++from)
      while (give[from] > 0) {
        while (take[to] == 0) ++to;
        const std::size_t here = static_cast<std::size_t>(first) + from, there = static_cast<std::size_t>(first) + to;
        IndexRange& run = surplus_[here].front();
        const std::int64_t n = std::min({run.count, give[from], take[to]});
        home_[there].push_back(run.slice(0, n));
        give[from] -= n, take[to] -= n;
        too_many_[here] -= n, lacks_[there] -= n;
        run = run.slice(n, run.count - n);
        if (run.count == 0) surplus_[here].erase(surplus_[here].begin());
      }
  }

  const Ranks& ranks_;
  RunsOfParts home_, surplus_;
  std::vector<std::int64_t> too_many_, lacks_;
};

}  // namespace

Ranks ranks_of(std::int64_t count, std::int64_t of_node) {
  Ranks ranks{.count = count, .of_node = of_node, .rings = {1}};
  for (std::int64_t left : {of_node, count / of_node})
    for (std::int64_t factor = 2; left > 1; ++factor)
      for (; left % factor == 0; left /= factor) ranks.rings.push_back(ranks.rings.back() * factor);
  return ranks;
}

Partition partition(const Options& options, std::span<const std::int64_t> ends, const Ranks& ranks,
                    const Rates& rates) {
  const std::vector<Document> documents = documents_of(ends);
  const std::int64_t tokens = ends.back();
  const double mean = as_double(tokens) / as_double(ranks.count);
  Partition p;
  std::optional<Placements> placements;
  if (options.partition == PartitionRule::flexsp) {
    p.capacity = options.capacity > 0 ? options.capacity : 2;
    const auto groups = Groups(documents, ranks, rates, p.capacity * mean).find();
    if (!groups)
      throw InputError(
          {"", "/plan/zeppelin_partition"}, "\"flexsp\"",
          fmt::format("another one, or a zeppelin_capacity above {:g}: groups of up to {} ranks, which key/value heads "
                      "limit, cannot hold the batch; its longest document has {:.1f} times the mean tokens of a rank",
                      p.capacity, ranks.most_exchanging, as_double(documents.front().length()) / mean));
    p.zones = zones_of(*groups, ranks);
    p.at_home = Homes(p.zones, ranks, tokens).find();
    return p;
  }
  if (options.partition == PartitionRule::hybrid) {
    p.capacity = std::max(1.0, options.capacity);
    placements = by_length(documents, ranks, p.capacity * mean);
  } else if (options.partition == PartitionRule::zones && options.capacity > 0) {
    p.capacity = options.capacity;
    placements = by_zones(documents, tokens, ranks, p.capacity * mean);
  } else if (options.partition == PartitionRule::zones) {
    double least = std::numeric_limits<double>::infinity();
    constexpr int kEighths = 8;
    for (int eighths = kEighths; eighths <= 2 * kEighths; ++eighths) {
      const double capacity = static_cast<double>(eighths) / kEighths;
      std::optional<Placements> trial = by_zones(documents, tokens, ranks, capacity * mean);
      if (!trial) continue;
      const double seconds = estimated_seconds(*trial, ranks, rates, options.remapping);
      if (seconds >= least) continue;
      least = seconds;
      p.capacity = capacity;
      placements = std::move(trial);
    }
  }
  if (!placements) placements = over_all(documents, ranks);
  limit_sizes(*placements);

  std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks.count), 0);
  for (const std::int64_t ring : ranks.rings) {
    Zone zone{.ring = ring, .documents = {}, .of_rank = {}};
    zone.of_rank.resize(of_rank.size());
    for (const Placement& placed : *placements)
      if (placed.ring == ring) lay(placed, of_rank, zone);
    if (!zone.documents.empty()) p.zones.insert(p.zones.begin(), std::move(zone));
  }
  p.at_home = Homes(p.zones, ranks, tokens).find();
  return p;
}

}  // namespace orrery::zeppelin
