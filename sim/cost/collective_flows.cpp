#include "sim/cost/collective_flows.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>

#include "sim/base/error.h"
#include "sim/base/index.h"
#include "sim/cost/exchange_patterns.h"
#include "sim/cost/exchange_skew.h"

namespace orrery {

void FlowGraph::clear() {
  edges.clear();
  after.clear();
  phases = 1;
}

namespace {

using Algorithm = CollectiveAlgorithm;
using Member = std::int32_t;
using Index = std::int32_t;

Index wrap(Index i, Index n) { return ((i % n) + n) % n; }

// The members of a group by node.
class Nodes {
 public:
  explicit Nodes(const GroupMembers& group) : node_of_(group.devices.size()) {
    if (group.devices_per_node < 1)
      throw InputError({}, std::to_string(group.devices_per_node) + " devices per node", "at least 1");
    if (group.devices.size() > at(std::numeric_limits<Member>::max()))
      throw InputError({}, std::to_string(group.devices.size()) + " members", "a group that 32 bits can number");
    std::unordered_map<std::int64_t, Index> seen;
    std::vector<Index> size;
    if (group.order == RingOrder::leaf) {
      std::vector<std::int64_t> nodes(group.devices.begin(), group.devices.end());
      for (std::int64_t& device : nodes) device /= group.devices_per_node;
      std::sort(nodes.begin(), nodes.end());
      nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
      for (const std::int64_t node : nodes) seen.emplace(node, static_cast<Index>(seen.size()));
      size.assign(nodes.size(), 0);
    }
    std::int64_t before = -1;
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      const std::int64_t node = group.devices[i] / group.devices_per_node;
      // The members of a node usually follow each other.
      node_of_[i] = i > 0 && node == before ? node_of_[i - 1]
                                            : seen.try_emplace(node, static_cast<Index>(size.size())).first->second;
      before = node;
      if (at(node_of_[i]) == size.size()) size.push_back(0);
      ++size[at(node_of_[i])];
    }
    first_.assign(size.size() + 1, 0);
    for (std::size_t a = 0; a < size.size(); ++a) first_[a + 1] = first_[a] + size[a];
    smallest_ = size.empty() ? 0 : *std::min_element(size.begin(), size.end());
    members_.resize(node_of_.size());
    position_.resize(node_of_.size());
    std::vector<Index> filled(size.size(), 0);
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      const std::size_t a = at(node_of_[i]);
      position_[i] = filled[a]++;
      members_[at(first_[a] + position_[i])] = static_cast<Member>(i);
    }
  }

  Index members() const { return static_cast<Index>(members_.size()); }
  Index count() const { return static_cast<Index>(first_.size()) - 1; }
  Index size(Index node) const { return first_[at(node) + 1] - first_[at(node)]; }
  Index smallest() const { return smallest_; }
  Index node_of(Member m) const { return node_of_[at(m)]; }
  Index position(Member m) const { return position_[at(m)]; }  // its index among the members of its node
  std::span<const Member> of(Index node) const {
    return std::span(members_).subspan(at(first_[at(node)]), at(size(node)));
  }

 private:
  std::vector<Index> node_of_, position_, first_;
  std::vector<Member> members_;
  Index smallest_ = 0;
};

// What an edge waits for: a range of FlowGraph::after.
struct After {
  Index first = 0, count = 0;
};

// share_of_tokens() by place: most members send a place the same, and powers are slow.
class Shares {
 public:
  Shares(double balanced, double choices, Index places)
      : balanced_(balanced), choices_(choices), rows_(at(places), -1), shares_(at(places)) {}
  double of(Index place, double rows) {
    if (rows != rows_[at(place)]) {
      rows_[at(place)] = rows;
      shares_[at(place)] = share_of_tokens(balanced_, choices_, rows);
    }
    return shares_[at(place)];
  }

 private:
  double balanced_, choices_;
  std::vector<double> rows_, shares_;
};

class Builder {
 public:
  Builder(const GroupMembers& group, const FlowOptions& options, FlowGraph& graph)
      : group_(group), nodes_(group), options_(options), both_ways_(group.both_directions), graph_(graph) {
    if (options.chunks < 1) throw InputError({}, std::to_string(options.chunks) + " chunks", "at least 1");
    if (!group.rows.empty() && group.rows.size() != group.devices.size() * group.devices.size())
      throw InputError({}, std::to_string(group.rows.size()) + " parts",
                       std::to_string(group.devices.size() * group.devices.size()) + ", one for each two members");
    graph_.clear();
  }

  void rings(OpKind kind, bool both_ways) {
    both_ways_ |= both_ways;
    if (nodes_.count() == 1) {
      rings_in_node(kind, 0);
      return;
    }
    const Index count = nodes_.smallest() * (is_odd_mesh() && nodes_.smallest() > 1 ? 2 : 1);
    reserve(std::int64_t{nodes_.members()} * count * (both_ways_ ? 2 : 1));
    for (Index c = 0; c < count; ++c)
      for (int way = 0; way < (both_ways_ ? 2 : 1); ++way) ring_across(kind, c, count, way == 1);
  }

  void trees() {
    const Index count = nodes_.smallest(), trees = nodes_.count() > 1 || is_odd_mesh() ? 2 : 1;
    reserve(2 * std::int64_t{nodes_.members()} * count * trees);
    std::vector<Index> parent(at(nodes_.members()));
    std::vector<FlowEnd> ends(parent.size());
    for (Member m = 0; m < nodes_.members(); ++m) ends[at(m)] = {m};
    for (Index c = 0; c < count; ++c)
      for (int t = 0; t < trees; ++t) {
        // The chain of each node hangs below the member whose NIC the channel uses.
        for (Index a = 0; a < nodes_.count(); ++a) {
          chain_of(a, c, count, is_odd_mesh() && t == 1);
          for (std::size_t j = 1; j < chain_.size(); ++j) parent[at(chain_[j])] = chain_[j - 1];
          const Index up = t == 0 ? tree_parent(nodes_.count(), a) : twin_parent(nodes_.count(), a);
          parent[at(chain_[0])] = up == kTreeRoot ? kTreeRoot : nodes_.of(up)[at(entry(c, count))];
        }
        add_tree(parent, ends, {}, 1.0 / (count * trees));
      }
  }

  void nvls() {
    // Every member sends all its data to the switch, which reduces one shard for each head and passes the results on.
    const Index heads = nodes_.smallest(), members = nodes_.members(), count = nodes_.count();
    const double shard = 1.0 / heads;
    reserve(2 * std::int64_t{members} + std::int64_t{count} * heads * (count > 1 ? 6 : 2));
    std::vector<Index> reduced(at(count) * at(heads));  // edges to the heads; by head, then node
    std::vector<Index> results(reduced.size());         // edges from the heads
    for (Index a = 0; a < count; ++a) {
      const After sent = after(to_switch(a, 1));
      for (Index h = 0; h < heads; ++h) {
        const Member head = nodes_.of(a)[at(h)];
        reduced[at(h * count + a)] = pass({head, true}, {head}, shard, sent);
      }
    }
    std::vector<Index> parent(at(count));
    std::vector<FlowEnd> ends(parent.size());
    const int trees = count > 1 ? 2 : 1;
    for (Index h = 0; h < heads; ++h) {
      const std::span<const Index> seeds = std::span(reduced).subspan(at(h * count), at(count));
      Tree tree[2];
      for (int t = 0; t < trees; ++t) {
        for (Index a = 0; a < count; ++a) {
          parent[at(a)] = t == 0 ? tree_parent(count, a) : twin_parent(count, a);
          ends[at(a)] = {nodes_.of(a)[at(h)]};
        }
        tree[t] = add_tree(parent, ends, seeds, 1.0 / (heads * trees));
      }
      for (Index a = 0; a < count; ++a) {
        const Index first = afters();
        for (int t = 0; t < trees; ++t) wait_for_total(tree[t], a);
        const FlowEnd head = ends[at(a)];
        results[at(h * count + a)] = pass(head, {head.member, true}, shard, since(first));
      }
    }
    for (Index a = 0; a < count; ++a) {
      const Index first = afters();
      for (Index h = 0; h < heads; ++h) wait_for(results[at(h * count + a)]);
      from_switch(a, 1, since(first));
    }
  }

  // The vector has as many shards as the smallest node has members. On each node a head collects one shard and sends it
  // up to its leaf switch, which sums up for its nodes; a spine sums up for the leaves. The result returns the same
  // way.
  void collnet(OpKind kind) {
    const Index heads = nodes_.smallest(), count = nodes_.count();
    const bool all_reduce = kind == OpKind::all_reduce;
    const bool nvls = group_.in_switch_reduction && all_reduce;
    const double shard = 1.0 / heads;
    const auto leaf_of = [&](Member m) { return group_.leaves.empty() ? 0 : group_.leaves[at(m)]; };
    const auto fabric = [](Member m, FlowEnd::Fabric where) { return FlowEnd{m, false, where}; };
    std::vector<std::vector<Index>> switched(at(count));  // by node: the edges of its members to their scale-up switch
    if (nvls)
      for (Index a = 0; a < count; ++a) switched[at(a)] = to_switch(a, shard * heads);
    std::vector<Index> results(at(count * heads));
    for (Index h = 0; h < heads; ++h) {
      // Up to the leaves.
      struct Leaf {
        std::int64_t leaf;
        Member first;
        std::vector<Index> up, nodes;
      };
      std::vector<Leaf> leaves;
      for (Index a = 0; a < count; ++a) {
        const Member head = nodes_.of(a)[at(h)];
        std::vector<Index> collected;
        if (nvls) {
          collected = {pass({head, true}, {head}, shard, after(switched[at(a)]))};
        } else {
          for (const Member m : nodes_.of(a))
            if (m != head) collected.push_back(pass({m}, {head}, shard));
        }
        const Index up = pass({head}, fabric(head, FlowEnd::Fabric::leaf), shard, after(collected));
        auto leaf = std::find_if(leaves.begin(), leaves.end(), [&](const Leaf& l) { return l.leaf == leaf_of(head); });
        if (leaf == leaves.end()) leaf = leaves.insert(leaves.end(), Leaf{leaf_of(head), head, {}, {}});
        leaf->up.push_back(up);
        leaf->nodes.push_back(a);
      }
      // Over the spine, if there are several leaves. In a reduce-scatter, each leaf receives only what its nodes keep.
      const FlowEnd spine = fabric(nodes_.of(0)[at(h)], FlowEnd::Fabric::spine);
      const bool several = leaves.size() > 1;
      std::vector<Index> sums;
      if (several)
        for (const Leaf& leaf : leaves)
          sums.push_back(pass(fabric(leaf.first, FlowEnd::Fabric::leaf), spine, shard, after(leaf.up)));
      for (const Leaf& leaf : leaves) {
        After total = after(several ? sums : leaf.up);
        const double kept = all_reduce ? 1 : static_cast<double>(leaf.nodes.size()) / count;
        if (several) total = after({pass(spine, fabric(leaf.first, FlowEnd::Fabric::leaf), shard * kept, total)});
        for (const Index a : leaf.nodes) {
          const Member head = nodes_.of(a)[at(h)];
          results[at(h * count + a)] =
              pass(fabric(head, FlowEnd::Fabric::leaf), {head}, all_reduce ? shard : shard / count, total);
        }
      }
    }
    if (!all_reduce) return;
    // Back to all members of a node.
    for (Index a = 0; a < count; ++a) {
      std::vector<Index> spread;
      for (Index h = 0; h < heads; ++h) {
        const Member head = nodes_.of(a)[at(h)];
        const After total = after({results[at(h * count + a)]});
        if (nvls) {
          spread.push_back(pass({head}, {head, true}, shard, total));
        } else {
          for (const Member m : nodes_.of(a))
            if (m != head) pass({head}, {m}, shard, total);
        }
      }
      if (nvls) from_switch(a, shard * heads, after(spread));
    }
  }

  void hierarchical(OpKind kind) {
    const auto within = [&](OpKind part) {
      begin_phase();
      for (Index a = 0; a < nodes_.count(); ++a) rings_in_node(part, a);
    };
    if (kind != OpKind::all_gather) within(OpKind::reduce_scatter);
    begin_phase();
    if (nodes_.count() > 1)
      for (int way = 0; way < (both_ways_ ? 2 : 1); ++way) rails(kind, way == 1);
    if (kind != OpKind::reduce_scatter) within(OpKind::all_gather);
  }

  void first_ranks() {
    order_.clear();
    for (Index a = 0; a < nodes_.count(); ++a) order_.push_back(nodes_.of(a).front());
    for (int way = 0; way < (both_ways_ ? 2 : 1); ++way) {
      if (way == 1) std::ranges::reverse(order_);
      add_ring(OpKind::all_reduce, both_ways_ ? 0.5 : 1, order_, order_);
    }
    begin_phase();
    for (Index a = 0; a < nodes_.count(); ++a) {
      root_ = nodes_.of(a).front();
      rings_in_node(OpKind::broadcast, a);
    }
  }

  void hierarchical_all_to_all() {
    // Data for position j of other nodes leaves over the NIC of position j here, modulo the node's number of members.
    const double part = 1.0 / nodes_.members();
    Index largest = 0;
    for (Index a = 0; a < nodes_.count(); ++a) largest = std::max(largest, nodes_.size(a));
    std::vector<Index> nodes_with(at(largest), 0);  // by position: number of nodes that have it
    for (Member m = 0; m < nodes_.members(); ++m) ++nodes_with[at(nodes_.position(m))];
    reserve(pairs_in_nodes() + std::int64_t{nodes_.members()} * (nodes_.count() - 1));
    for (Index a = 0; a < nodes_.count(); ++a) {
      const std::span<const Member> here = nodes_.of(a);
      const Index r = nodes_.size(a);
      for (Index x = 0; x < r; ++x) {
        std::int64_t destinations = 1;  // the member itself counts as one
        for (Index j = x; j < largest; j += r) destinations += nodes_with[at(j)] - (j < r ? 1 : 0);
        for (const Member m : here) {
          if (m == here[at(x)]) continue;
          double rows = equal() ? static_cast<double>(destinations) : 0;
          if (!equal())
            for_each_at(x, r, [&](Member to) {
              if (nodes_.node_of(to) != a || to == here[at(x)]) rows += rows_between(m, to);
            });
          add({m}, {here[at(x)]}, part * rows);
        }
      }
    }
    begin_phase();
    for (Index a = 0; a < nodes_.count(); ++a) {
      const std::span<const Member> here = nodes_.of(a);
      for (Index away = 1; away < nodes_.count(); ++away) {
        const Index b = wrap(a + away, nodes_.count());
        for (Index j = 0; j < nodes_.size(b); ++j) {
          double rows = equal() ? nodes_.size(a) : 0;
          if (!equal())
            for (const Member m : here) rows += rows_between(m, nodes_.of(b)[at(j)]);
          add({here[at(j % nodes_.size(a))]}, {nodes_.of(b)[at(j)]}, part * rows);
        }
      }
    }
  }

  // Over NICs to the member at the same place in each node; from there to all others that need it.
  void exchange_tokens() {
    reserve(pairs_in_nodes() + std::int64_t{nodes_.members()} * (nodes_.count() - 1));
    const TokenShares& tokens = group_.tokens;
    Shares to_rank(tokens.to_rank, tokens.choices, nodes_.members());
    Shares to_node(tokens.to_node, tokens.choices, nodes_.count());
    std::vector<double> passed_on;
    for (Index a = 0; a < nodes_.count(); ++a) {
      const std::span<const Member> here = nodes_.of(a);
      const Index r = nodes_.size(a);
      for (Index x = 0; x < r; ++x) {
        // By position: what it has received from the members at its place, as many as there are nodes, and passes on.
        passed_on.assign(here.size(), equal() ? tokens.to_rank * nodes_.members() / r : 0);
        if (!equal())
          for_each_at(x, r, [&](Member m) {
            for (std::size_t j = 0; j < here.size(); ++j) passed_on[j] += to_rank.of(here[j], rows_between(m, here[j]));
          });
        for (Index away = 1; away < r; ++away) {
          const auto j = at(wrap(x + away, r));
          add({here[at(x)]}, {here[j]}, passed_on[j]);
        }
        for (Index away = 1; away < nodes_.count(); ++away) {
          const Index b = wrap(a + away, nodes_.count());
          double rows = 0;
          if (!equal())
            for (const Member to : nodes_.of(b)) rows += rows_between(here[at(x)], to);
          add({here[at(x)]}, {nodes_.of(b)[at(x % nodes_.size(b))]},
              equal() ? tokens.to_node : to_node.of(b, rows / nodes_.size(b)));
        }
      }
    }
  }

  void halving_doubling(OpKind kind) {
    const HalvingDoubling exchange(kind, nodes_.members());
    const auto count = static_cast<Index>(exchange.participants()), extra = static_cast<Index>(exchange.extra());
    reserve(std::int64_t{count} * exchange.steps() + 2 * extra);
    const auto member = [&](Index v) { return FlowEnd{static_cast<Member>(exchange.rank_of(v))}; };
    for (Index v = 0; v < extra; ++v) add({2 * v}, member(v), exchange.share_in());
    // Both halves of a participant's exchange must end before its next exchange starts (sendrecv): the arrival of data
    // in one step says nothing about what the partner sent in the step before.
    Index before = 0, partner = 0;  // first edge of the step before; the bit in which partners differed there
    const auto exchanged = [&](Index v) { return after({before + (v ^ partner), before + v}); };
    for (int step = 0; step < exchange.steps(); ++step) {
      begin_phase();
      const auto base = static_cast<Index>(graph_.edges.size());
      const Index mask = Index{1} << exchange.bit(step);
      for (Index v = 0; v < count; ++v) {
        const After ready = step > 0 ? exchanged(v) : v < extra ? after({v}) : After{};
        add(member(v), member(v ^ mask), exchange.share(step, v), 1, 0, ready);
      }
      before = base;
      partner = mask;
    }
    begin_phase();
    for (Index v = 0; v < extra; ++v) add(member(v), {2 * v}, exchange.share_out(), 1, 0, exchanged(v));
  }

  void pairs() {
    const Index n = nodes_.members();
    const double part = 1.0 / n;
    const bool by_node = options_.by_node && nodes_.count() > 1;
    reserve(by_node ? pairs_in_nodes() + std::int64_t{n} * (nodes_.count() - 1) : std::int64_t{n} * (n - 1));
    for (Member i = 0; i < n; ++i) {
      const Index a = nodes_.node_of(i);
      // Each member starts with the one after it, so that no member is the first destination of all others.
      if (!by_node) {
        for (Index away = 1; away < n; ++away) {
          const Member j = i + away < n ? i + away : i + away - n;
          add_pair(i, j, part * rows_between(i, j));
        }
        continue;
      }
      for (const Member j : nodes_.of(a))
        if (j != i) add_pair(i, j, part * rows_between(i, j));
      for (Index away = 1; away < nodes_.count(); ++away) {
        const Index b = wrap(a + away, nodes_.count());
        double rows = equal() ? nodes_.size(b) : 0;
        if (!equal())
          for (const Member j : nodes_.of(b)) rows += rows_between(i, j);
        add_pair(i, nodes_.of(b)[at((nodes_.position(i) + away) % nodes_.size(b))], part * rows);
      }
    }
  }

  void message(Member from, Member to) { add({from}, {to}, 1); }
  void shift() {
    for (Member m = 0; m < nodes_.members(); ++m) message(m, next(m));
  }

  // A message that leaves a node goes in parts to the node's members, leaves over the NIC of each, and is joined at its
  // destination.
  void routed_shift() {
    for (int phase = 0; phase < 3; ++phase) {
      if (phase > 0) begin_phase();
      for (Member m = 0; m < nodes_.members(); ++m) {
        const Member to = next(m);
        const Index a = nodes_.node_of(m), b = nodes_.node_of(to), parts = nodes_.size(a);
        if (a == b) {
          if (phase == 0) message(m, to);
          continue;
        }
        for (Index x = 0; x < parts; ++x) {
          const Member by = nodes_.of(a)[at(x)], door = nodes_.of(b)[at(x % nodes_.size(b))];
          const Member from_here[]{m, by, door}, to_there[]{by, door, to};
          if (from_here[phase] != to_there[phase]) add({from_here[phase]}, {to_there[phase]}, 1.0 / parts);
        }
      }
    }
  }

  void finish() { graph_.phases = graph_.edges.empty() ? 1 : graph_.edges.back().phase + 1; }

 private:
  void reserve(std::int64_t edges) {
    if (edges > std::numeric_limits<Index>::max())
      throw InputError({}, "a collective of " + std::to_string(edges) + " edges",
                       "fewer than 2^31: a smaller group, or one flow to each node instead of each member");
    graph_.edges.reserve(at(edges));
  }
  std::int64_t pairs_in_nodes() const {
    std::int64_t pairs = 0;
    for (Index a = 0; a < nodes_.count(); ++a) pairs += std::int64_t{nodes_.size(a)} * (nodes_.size(a) - 1);
    return pairs;
  }

  Member next(Member m) const { return m + 1 < nodes_.members() ? m + 1 : 0; }
  // Visits the members whose position in their node is x modulo `r`.
  template <class Visit>
  void for_each_at(Index x, Index r, Visit&& visit) const {
    for (Index node = 0; node < nodes_.count(); ++node)
      for (Index j = x; j < nodes_.size(node); j += r) visit(nodes_.of(node)[at(j)]);
  }
  // The relative size of a part of an all-to-all: 1 if all are equal.
  bool equal() const { return group_.rows.empty(); }
  double rows_between(Member from, Member to) const {
    return equal() ? 1 : group_.rows[at(std::int64_t{from} * nodes_.members() + to)];
  }

  Index afters() const { return static_cast<Index>(graph_.after.size()); }
  void wait_for(Index edge) { graph_.after.push_back(edge); }
  After since(Index first) const { return {first, afters() - first}; }
  After after(std::initializer_list<Index> edges) { return after(std::span(edges.begin(), edges.size())); }
  After after(std::span<const Index> edges) {
    const Index first = afters();
    graph_.after.insert(graph_.after.end(), edges.begin(), edges.end());
    return since(first);
  }
  Index add(FlowEnd from, FlowEnd to, double bytes, Index messages = 1, Index lag = 0, After after = {}) {
    graph_.edges.push_back({.from = from,
                            .to = to,
                            .bytes = bytes,
                            .messages = messages,
                            .lag = lag,
                            .first_after = after.first,
                            .afters = after.count,
                            .phase = phase_});
    return static_cast<Index>(graph_.edges.size()) - 1;
  }
  // Sends `share` of the op's bytes chunk by chunk, each as soon as it has come.
  Index pass(FlowEnd from, FlowEnd to, double share, After after = {}) {
    return add(from, to, share / options_.chunks, options_.chunks, 0, after);
  }
  // From each member of a node to the scale-up switch, and from the switch to each.
  std::vector<Index> to_switch(Index node, double share) {
    std::vector<Index> edges;
    for (const Member m : nodes_.of(node)) edges.push_back(pass({m}, {m, true}, share));
    return edges;
  }
  void from_switch(Index node, double share, After after) {
    for (const Member m : nodes_.of(node)) pass({m, true}, {m}, share, after);
  }
  struct Tree {
    Index up = 0;    // first edge towards the root; the edges away from it follow
    Index root = 0;  // vertex
    Index count = 0;
    After at_root;
    Index up_of(Index v) const { return up + v - (v > root ? 1 : 0); }
    Index down_of(Index v) const { return up_of(v) + count - 1; }
  };

  void add_pair(Member from, Member to, double bytes) {
    if (bytes == 0) return;
    const Index e = add({from}, {to}, bytes);
    graph_.edges[at(e)].scale_up_first = options_.rail_aligned && nodes_.node_of(from) != nodes_.node_of(to);
  }
  // A phase without edges is not counted.
  void begin_phase() {
    if (!graph_.edges.empty() && graph_.edges.back().phase == phase_) ++phase_;
  }

  bool is_odd_mesh() const { return group_.full_mesh && nodes_.smallest() % 2 == 1; }
  // The position at which a channel enters and leaves a node: the same on all nodes, so that it stays on one rail.
  Index entry(Index channel, Index count) const {
    return static_cast<Index>(std::int64_t{channel} * nodes_.smallest() / count);
  }
  // The rings over the members of a node of more than one, of a mesh whose pairs differ.
  const std::vector<NodeRing>& mapped_rings(Index node) {
    std::vector<std::int64_t> devices;
    for (const Member m : nodes_.of(node)) devices.push_back(group_.devices[at(m)] % group_.devices_per_node);
    const auto [found, is_new] = mapped_rings_.try_emplace(std::move(devices));
    if (is_new) found->second = group_.links->rings(found->first);
    return found->second;
  }
  // The ring whose share the first channels have used least, by the method of Webster.
  static const NodeRing& ring_of_channel(std::span<const NodeRing> rings, Index channel) {
    std::vector<Index> channels(rings.size(), 0);
    for (;; --channel) {
      std::size_t best = 0;
      for (std::size_t i = 1; i < rings.size(); ++i)
        if (rings[i].share * (2 * channels[best] + 1) > rings[best].share * (2 * channels[i] + 1)) best = i;
      if (channel == 0) return rings[best];
      ++channels[best];
    }
  }

  // Writes the members of a node in the order of a channel, starting with the one whose NIC it uses, into chain_. On a
  // mesh the chains of all channels use all links equally, or follow its rings.
  void chain_of(Index node, Index channel, Index count, bool reversed) {
    const std::span<const Member> here = nodes_.of(node);
    const Index r = nodes_.size(node), first = entry(channel, count);
    chain_.resize(here.size());
    if (group_.links != nullptr && r > 2) {
      const std::vector<Index>& order = ring_of_channel(mapped_rings(node), channel).order;
      const auto start = static_cast<Index>(std::find(order.begin(), order.end(), first) - order.begin());
      for (Index j = 0; j < r; ++j) chain_[at(j)] = here[at(order[at(wrap(start + (reversed ? -j : j), r))])];
      return;
    }
    for (Index j = 0; j < r; ++j) {
      const Index step = group_.full_mesh ? zigzag(j) : j;
      chain_[at(j)] = here[at(wrap(first + (reversed ? -step : step), r))];
    }
  }

  void rings_in_node(OpKind kind, Index node) {
    const std::span<const Member> here = nodes_.of(node);
    const Index n = nodes_.size(node);
    if (n == 1) return;
    if ((!group_.full_mesh && group_.links == nullptr) || n == 2) {
      const int ways = both_ways_ ? 2 : 1;
      for (int way = 0; way < ways; ++way) {
        order_.assign(here.begin(), here.end());
        if (way == 1) std::reverse(order_.begin(), order_.end());
        add_ring(kind, 1.0 / ways, order_, order_);
      }
      return;
    }
    for (const NodeRing& ring : group_.full_mesh ? mesh_rings(n) : mapped_rings(node)) {
      order_.clear();
      for (const Index place : ring.order) order_.push_back(here[at(place)]);
      add_ring(kind, ring.share, order_, order_);
    }
  }

  void ring_across(OpKind kind, Index channel, Index count, bool backwards) {
    order_.clear();
    senders_.clear();
    const bool mirrored = count > nodes_.smallest() && channel % 2 == 1;
    for (Index i = 0; i < nodes_.count(); ++i) {
      chain_of(backwards ? nodes_.count() - 1 - i : i, channel, count, backwards != mirrored);
      order_.insert(order_.end(), chain_.begin(), chain_.end());
      senders_.insert(senders_.end(), chain_.begin(), chain_.end());
      senders_.back() = chain_.front();
    }
    add_ring(kind, 1.0 / (both_ways_ ? 2 * count : count), order_, senders_);
  }

  // Sends `share` of the op's bytes along a ring. The device of `senders[i]` sends what `order[i]` passes on.
  void add_ring(OpKind kind, double share, std::span<const Member> order, std::span<const Member> senders) {
    const auto n = static_cast<Index>(order.size());
    const auto base = static_cast<Index>(graph_.edges.size());
    if (kind == OpKind::broadcast || kind == OpKind::reduce) {
      // The ring without the edge into the root, or for reduce without the edge out of it.
      auto first = static_cast<Index>(std::find(order.begin(), order.end(), root_) - order.begin());
      if (kind == OpKind::reduce) ++first;
      for (Index i = 0; i < n - 1; ++i) {
        const Index here = wrap(first + i, n);
        pass({senders[at(here)]}, {order[at(wrap(here + 1, n))]}, share, i > 0 ? after({base + i - 1}) : After{});
      }
      return;
    }
    const Index steps = kind == OpKind::all_reduce ? 2 * (n - 1) : n - 1;
    for (Index i = 0; i < n; ++i)
      add({senders[at(i)]}, {order[at(i + 1 < n ? i + 1 : 0)]}, share / n, steps, -1,
          after({base + (i > 0 ? i : n) - 1}));
  }

  // Up to the root of a tree and down again. A vertex waits for its children and for its seed edge, if there is one.
  Tree add_tree(std::span<const Index> parent, std::span<const FlowEnd> ends, std::span<const Index> seeds,
                double share) {
    const auto count = static_cast<Index>(parent.size());
    Tree tree{.up = static_cast<Index>(graph_.edges.size()), .count = count, .at_root = {}};
    offset_.assign(at(count) + 1, 0);
    for (Index v = 0; v < count; ++v) {
      if (parent[at(v)] == kTreeRoot)
        tree.root = v;
      else
        ++offset_[at(parent[at(v)]) + 1];
      if (!seeds.empty()) ++offset_[at(v) + 1];
    }
    offset_[0] = afters();
    for (Index v = 0; v < count; ++v) offset_[at(v) + 1] += offset_[at(v)];
    graph_.after.resize(at(offset_[at(count)]));
    filled_.assign(offset_.begin(), offset_.end());
    for (Index v = 0; v < count; ++v) {
      if (parent[at(v)] != kTreeRoot) graph_.after[at(filled_[at(parent[at(v)])]++)] = tree.up_of(v);
      if (!seeds.empty()) graph_.after[at(filled_[at(v)]++)] = seeds[at(v)];
    }
    const auto below = [&](Index v) { return After{offset_[at(v)], offset_[at(v) + 1] - offset_[at(v)]}; };
    tree.at_root = below(tree.root);

    for (Index v = 0; v < count; ++v)
      if (v != tree.root) pass(ends[at(v)], ends[at(parent[at(v)])], share, below(v));
    for (Index v = 0; v < count; ++v) {
      if (v == tree.root) continue;
      const Index up = parent[at(v)];
      pass(ends[at(up)], ends[at(v)], share, up == tree.root ? tree.at_root : after({tree.down_of(up)}));
    }
    return tree;
  }
  // Appends the edges that bring the sum over the tree to vertex v.
  void wait_for_total(const Tree& tree, Index v) {
    if (v != tree.root) {
      wait_for(tree.down_of(v));
      return;
    }
    for (Index i = 0; i < tree.at_root.count; ++i) wait_for(graph_.after[at(tree.at_root.first + i)]);
  }

  // Rings across the nodes, one for each position. If nodes have unequal numbers of members, each member represents its
  // equal share of the node's bytes, and sends to those members of the next node whose shares overlap its own.
  void rails(OpKind kind, bool backwards) {
    const Index count = nodes_.count();
    const double way = both_ways_ ? 0.5 : 1, members = nodes_.members();
    const Index steps = kind == OpKind::all_reduce ? 2 * (count - 1) : count - 1;
    const auto base = static_cast<Index>(graph_.edges.size());
    std::vector<Index> first_into(at(nodes_.members())), count_into(at(nodes_.members()), 0);
    for (Index i = 0; i < count; ++i) {
      const Index a = backwards ? count - 1 - i : i, b = wrap(backwards ? a - 1 : a + 1, count);
      const std::int64_t here = nodes_.size(a), there = nodes_.size(b);
      // A gathered node does not receive its own part, and a reduced part ends at its owner.
      const double total = kind == OpKind::all_reduce   ? static_cast<double>(steps) / count
                           : kind == OpKind::all_gather ? 1 - static_cast<double>(there) / members
                                                        : 1 - static_cast<double>(here) / members;
      for (std::int64_t x = 0, y = 0, done = 0; x < here && y < there;) {
        const std::int64_t until = std::min((x + 1) * there, (y + 1) * here);
        const double overlap = static_cast<double>(until - done) / static_cast<double>(here * there);
        const Member to = nodes_.of(b)[at(y)];
        const Index e = add({nodes_.of(a)[at(x)]}, {to}, way * total * overlap / steps, steps, -1);
        if (count_into[at(to)]++ == 0) first_into[at(to)] = e;
        done = until;
        if (until == (x + 1) * there) ++x;
        if (until == (y + 1) * here) ++y;
      }
    }
    for (Index e = base; e < static_cast<Index>(graph_.edges.size()); ++e) {
      const Member from = graph_.edges[at(e)].from.member;
      graph_.edges[at(e)].first_after = afters();
      graph_.edges[at(e)].afters = count_into[at(from)];
      for (Index i = 0; i < count_into[at(from)]; ++i) wait_for(first_into[at(from)] + i);
    }
  }

  const GroupMembers& group_;
  const Nodes nodes_;
  const FlowOptions& options_;
  bool both_ways_;
  FlowGraph& graph_;
  std::uint8_t phase_ = 0;
  std::vector<Member> order_, senders_, chain_;  // working storage
  std::vector<Index> offset_, filled_;
  std::map<std::vector<std::int64_t>, std::vector<NodeRing>> mapped_rings_;  // by devices within the node
  Member root_ = 0;                                                          // of broadcast and reduce
};

// How a collective of some kinds runs by an algorithm.
struct Lowering {
  Algorithm algorithm;
  std::vector<OpKind> kinds;
  void (*build)(Builder&, OpKind);
};

const Lowering& lowering_of(OpKind kind, Algorithm algorithm) {
  using enum OpKind;
  static const std::vector<Lowering> all{
      {Algorithm::ring,
       {all_reduce, all_gather, reduce_scatter, broadcast, reduce},
       [](Builder& b, OpKind k) { b.rings(k, false); }},
      {Algorithm::bidirectional_ring,
       {all_reduce, all_gather, reduce_scatter, broadcast, reduce},
       [](Builder& b, OpKind k) { b.rings(k, true); }},
      {Algorithm::direct, {all_to_all}, [](Builder& b, OpKind) { b.pairs(); }},
      {Algorithm::direct, {ring_shift}, [](Builder& b, OpKind) { b.shift(); }},
      {Algorithm::direct, {send}, [](Builder& b, OpKind) { b.message(0, 1); }},
      {Algorithm::tree, {all_reduce}, [](Builder& b, OpKind) { b.trees(); }},
      {Algorithm::hierarchical,
       {all_reduce, all_gather, reduce_scatter},
       [](Builder& b, OpKind k) { b.hierarchical(k); }},
      {Algorithm::hierarchical, {all_to_all}, [](Builder& b, OpKind) { b.hierarchical_all_to_all(); }},
      {Algorithm::hierarchical, {ring_shift}, [](Builder& b, OpKind) { b.routed_shift(); }},
      {Algorithm::first_ranks, {all_reduce}, [](Builder& b, OpKind) { b.first_ranks(); }},
      {Algorithm::nvls, {all_reduce}, [](Builder& b, OpKind) { b.nvls(); }},
      {Algorithm::collnet, {all_reduce}, [](Builder& b, OpKind k) { b.collnet(k); }},
      {Algorithm::halving_doubling,
       {all_reduce, all_gather, reduce_scatter},
       [](Builder& b, OpKind k) { b.halving_doubling(k); }},
      {Algorithm::collnet, {reduce_scatter}, [](Builder& b, OpKind k) { b.collnet(k); }},
      {Algorithm::by_token, {all_to_all}, [](Builder& b, OpKind) { b.exchange_tokens(); }}};
  std::string others;
  for (const Lowering& one : all) {
    if (std::ranges::find(one.kinds, kind) == one.kinds.end()) continue;
    if (one.algorithm == algorithm) return one;
    others += std::string(others.empty() ? "" : ", ") + name_of(one.algorithm);
  }
  if (others.empty()) throw InputError({}, name_of(kind), "a communication op");
  throw InputError({}, std::string(name_of(algorithm)) + " for " + name_of(kind), others);
}

}  // namespace

void collective_flows(OpKind kind, CollectiveAlgorithm algorithm, const GroupMembers& members,
                      const FlowOptions& options, FlowGraph& graph) {
  Builder b(members, options, graph);
  const Lowering& lowering = lowering_of(kind, algorithm);
  if (members.devices.size() < 2) return;
  lowering.build(b, kind);
  b.finish();
}

double estimated_flows(OpKind kind, CollectiveAlgorithm algorithm, std::int64_t members, std::int64_t nodes,
                       const FlowOptions& options) {
  if (members < 2) return 0;
  const double n = static_cast<double>(members), a = static_cast<double>(nodes), here = n / a;
  const double rounds = kind == OpKind::all_reduce ? 2 : 1;
  switch (algorithm) {
    case Algorithm::ring:
      return n * (nodes > 1 ? here : 1);
    case Algorithm::bidirectional_ring:
      return 2 * n * (nodes > 1 ? here : 1);
    case Algorithm::tree:
      return 2 * n * here * (nodes > 1 ? 2 : 1);
    case Algorithm::nvls:
      return 4 * n + (nodes > 1 ? 4 * n : 0);
    case Algorithm::halving_doubling:
      return n * (std::log2(n) + 1) * rounds;
    case Algorithm::hierarchical:
      if (kind == OpKind::all_to_all) return n * (here + a);
      if (kind == OpKind::ring_shift) return n + 3 * a * here;
      return n * (rounds + 1);
    case Algorithm::first_ranks:
      return n;
    case Algorithm::by_token:
      return n * (here + a);
    case Algorithm::collnet:  // within the node, and to the switches and back
      return n * (rounds * (here - 1) + 2);
    case Algorithm::direct:
      if (kind != OpKind::all_to_all) return n;
      return n * (options.by_node ? here + a : n);
    default:
      return 0;
  }
}

}  // namespace orrery
