#include "sim/cost/collective_cost.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/index.h"
#include "sim/cost/exchange_patterns.h"
#include "sim/cost/fabric_traffic.h"

namespace orrery {
namespace {

using Algorithm = CollectiveAlgorithm;
using Protocol = CollectiveProtocol;

constexpr std::array kProtocols{Protocol::simple, Protocol::ll128, Protocol::ll};
constexpr std::size_t index_of(Protocol p) { return static_cast<std::size_t>(p) - 1; }

double as_double(std::int64_t n) { return static_cast<double>(n); }

// Levels of a binary tree over the nodes.
std::int64_t tree_depth(std::int64_t nodes) { return std::bit_width(static_cast<std::uint64_t>(nodes - 1)); }

// Bytes that the busiest node of NCCL's double binary tree sends, over the message: it is a leaf of one tree (half up)
// and an inner node of the other (half up, half to each of two children). Two nodes are root and leaf in turn. Of three
// nodes, each has at most one child and a parent in one tree.
double busiest_node(std::int64_t nodes) { return nodes == 2 ? 1.0 : nodes == 3 ? 1.5 : 2.0; }
// The same for the busiest channel, which carries one tree only.
double busiest_channel(std::int64_t nodes) { return nodes == 2 ? 1.0 : nodes == 3 ? 2.0 : 3.0; }

// nccl-tests, doc/PERFORMANCE.md: bytes that each rank must send, over the size.
double bus_factor(OpKind kind, std::int64_t ranks) {
  const double n = as_double(ranks);
  switch (kind) {
    case OpKind::all_reduce:
      return 2 * (n - 1) / n;
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::all_to_all:
      return (n - 1) / n;
    default:
      return 1;
  }
}

}  // namespace

struct CollectiveModel::MappedRates {
  std::vector<LinkMap::Rates> of_groups;  // by ranks - 1 and stride
  std::vector<double> of_sends;           // by distance
};

struct CollectiveModel::Group {
  std::int64_t n = 1;              // ranks
  std::int64_t r = 1, fewest = 1;  // per node; on the node that has the fewest
  std::int64_t nodes = 1;
  std::int64_t stride = 1;
  double ring_rate = std::numeric_limits<double>::infinity();  // within the node, Simple, including its share
  double nic_rate = std::numeric_limits<double>::infinity();   // of all NICs of a node for this group, before shares
  double one_rank_nic_rate = std::numeric_limits<double>::infinity();  // the same if only one of its ranks sends
  double channels_nic_rate = std::numeric_limits<double>::infinity();  // over as many as its smallest node has ranks
  double used = 1;  // the share of the NICs under a leaf switch, or of those on its rails, that groups like this fill
  double ll_rate = 0;
  Crossing crossing;
  const FabricTraffic* load = nullptr;
};

// Its terms, without the slow-down of steps.
struct CollectiveModel::Candidate : CollectiveCost {
  double fabric_seconds = 0;  // inter_seconds, with the narrower links beyond the leaf switches
  double total_seconds() const { return latency_seconds + moving_seconds(fabric_seconds); }
};

CollectiveModel::CollectiveModel(const Cluster& cluster, const CollectiveCalibration& calibration)
    : intra_(calibration.intra),
      inter_(calibration.inter),
      reduction_(calibration.reduction),
      token_exchange_(calibration.token_exchange),
      step_slowdown_(calibration.step_slowdown),
      node_(cluster.node),
      fabric_(cluster.fabric) {
  provenance_ = fmt::format("node class \"{}\" ({}); network class \"{}\" ({}){}{}", calibration.intra_class,
                            calibration.intra_source, calibration.inter_class, calibration.inter_source,
                            calibration.note.empty() ? "" : "; note: ", calibration.note);
  if (node_.pcie_bytes_per_second <= 0) node_.pcie_bytes_per_second = cluster.device.pcie_bytes_per_second;
  pcie_bytes_per_second_ = node_.pcie_bytes_per_second;
  const bool over_pcie = node_.intra == IntraFabric::pcie || node_.intra == IntraFabric::nvlink_pairs;
  if (over_pcie && node_.intra_bytes_per_second > 0) pcie_bytes_per_second_ = node_.intra_bytes_per_second;
  if (node_.pair_bytes_per_second <= 0) node_.pair_bytes_per_second = node_.intra_bytes_per_second;
  if (const LinkMap map(node_); map.even_rate() > 0)
    node_.pair_bytes_per_second = map.even_rate();
  else if (!map.empty())
    mapped_ = &mapped_rates_of(node_, map);
  nic_bytes_per_second_ = cluster.inter_node_bytes_per_second();
  // A rank uses the NICs nearest to it, at least one.
  rank_nic_bytes_per_second_ = std::max(node_.nic_bytes_per_second, nic_bytes_per_second_ / as_double(node_.devices));
  if (node_.pcie_bytes_per_second > 0)
    rank_nic_bytes_per_second_ = std::min(rank_nic_bytes_per_second_, node_.pcie_bytes_per_second);
  extra_latency_seconds_ = std::max(0.0, fabric_.latency_seconds - inter_.included_latency_seconds);
}

// Rings take a tenth of a millisecond to find for eight devices, and a tenth of a second for sixteen. A search predicts
// many plans on one kind of node, so they are found once.
const CollectiveModel::MappedRates& CollectiveModel::mapped_rates_of(const Node& node, const LinkMap& map) {
  const std::int64_t devices = node.devices;
  std::vector<double> key{node.intra_bytes_per_second, as_double(devices)};
  for (std::int64_t a = 0; a < devices; ++a)
    for (std::int64_t b = 0; b < a; ++b) key.push_back(map.bytes_per_second(a, b));
  static std::mutex mutex;
  static std::map<std::vector<double>, MappedRates> known;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace(std::move(key));
  MappedRates& rates = found->second;
  if (!is_new) return rates;
  rates.of_groups.resize(at(devices * devices));
  rates.of_sends.resize(at(devices));
  for (std::int64_t stride = 1; stride < devices; ++stride) {
    rates.of_sends[at(stride)] = map.send_rate(stride);
    for (std::int64_t ranks = 2; (ranks - 1) * stride < devices; ++ranks)
      rates.of_groups[at((ranks - 1) * devices + stride)] = map.rates(ranks, stride);
  }
  return rates;
}

// The members of a group over several digits may lie in several blocks; they count as neighbours at the stride of its
// first members, as far as the node reaches.
const LinkMap::Rates& CollectiveModel::mapped_rates(std::int64_t ranks, std::int64_t stride) const {
  const std::int64_t farthest = (node_.devices - 1) / (ranks - 1);
  return mapped_->of_groups[at((ranks - 1) * node_.devices + std::min(stride, farthest))];
}

double CollectiveModel::exchange_rate(const Group& g) const {
  return mapped_ == nullptr ? link_of(g.r, g.stride).bytes_per_second : mapped_rates(g.r, g.stride).exchange;
}

double CollectiveModel::message_rate(OpKind kind, const Group& g) const {
  if (mapped_ == nullptr)
    return node_.intra == IntraFabric::direct_mesh ? node_.pair_bytes_per_second
                                                   : link_of(g.r, g.stride).bytes_per_second;
  return kind == OpKind::send ? mapped_->of_sends[at(std::min(g.stride, node_.devices - 1))]
                              : mapped_rates(g.r, g.stride).shift;
}

CollectiveModel::Link CollectiveModel::link_of(std::int64_t ranks, std::int64_t stride) const {
  switch (node_.intra) {
    case IntraFabric::nvswitch:
      return {node_.intra_bytes_per_second};
    case IntraFabric::direct_mesh:
      if (mapped_ != nullptr) return {mapped_rates(ranks, stride).ring};
      // Each rank has links to ranks - 1 others of the group; rings are laid over all of them.
      return {std::min(node_.intra_bytes_per_second, as_double(ranks - 1) * node_.pair_bytes_per_second)};
    case IntraFabric::nvlink_pairs:
      if (ranks == 2 && stride == 1) return {node_.pair_bytes_per_second};
      return {pcie_bytes_per_second_, true, ranks * stride > node_.devices_per_pcie_root};
    case IntraFabric::pcie:
      break;
  }
  const std::int64_t per_switch = node_.devices_per_pcie_switch;
  if (ranks * stride <= per_switch) return {pcie_bytes_per_second_};
  // Groups of this kind with interleaved ranks share the up-link of a switch.
  const std::int64_t groups = std::min(stride, per_switch);
  return {pcie_bytes_per_second_ / as_double(groups), true, ranks * stride > node_.devices_per_pcie_root};
}

CollectiveModel::Crossing CollectiveModel::crossing_of(const GroupSpan& span, double used) const {
  Crossing crossing;
  const std::int64_t nodes = span.nodes;
  // Distance in nodes between neighbouring nodes of the group.
  const std::int64_t apart = std::max<std::int64_t>(1, span.stride / node_.devices);
  if (fabric_.kind == FabricKind::single_switch) return crossing;

  if (fabric_.kind == FabricKind::torus) {
    const auto dimensions = static_cast<std::int64_t>(fabric_.dimensions.size());
    if (dimensions == 0) return crossing;
    // The dimensions along which the group extends; it cannot use the links of the others. Half of an all-to-all's
    // bytes cross the bisection of the longest one: d/8 link-times per link pair (Dally and Towles, Principles and
    // Practices of Interconnection Networks, section 3.3), with 2 links per dimension.
    std::int64_t below = 1, extended = 0, longest = 1;
    for (const std::int64_t d : fabric_.dimensions) {
      if (below * d > apart && below < apart * nodes) {
        ++extended;
        longest = std::max(longest, d);
      }
      below *= d;
    }
    extended = std::max<std::int64_t>(extended, 1);
    crossing.ring = crossing.tree = as_double(dimensions) / as_double(extended);
    crossing.all_to_all = std::max(crossing.ring, as_double(longest * dimensions) / 4);
    return crossing;
  }

  const bool dragonfly = fabric_.kind == FabricKind::dragonfly;
  const std::int64_t local = dragonfly ? fabric_.nodes_per_group : fabric_.nodes_per_leaf;
  const double narrowing = (dragonfly ? fabric_.global_taper : fabric_.oversubscription) * used;
  if (dragonfly && fabric_.nodes_per_leaf > 0 && nodes * apart > fabric_.nodes_per_leaf)
    crossing.latency_seconds += fabric_.hop_latency_seconds;
  // Ranks of different rails meet at the spine, unless NVSwitch carries the bytes to the right rail first (NCCL's PXN).
  const std::int64_t rails = std::min({span.ranks_per_node, node_.nics, node_.devices});
  if (fabric_.kind == FabricKind::rail_fat_tree && rails > 1 && node_.intra != IntraFabric::nvswitch)
    crossing.all_to_all = std::max(1.0, narrowing * as_double(rails - 1) / as_double(rails));
  if (local <= 0 || nodes * apart <= local) return crossing;
  crossing.latency_seconds += 2 * fabric_.hop_latency_seconds;  // up and down again
  // The up-links carry the traffic of `local / narrowing` nodes. A ring leaves a leaf once for each of the `apart`
  // interleaved groups. The blocks of a tree have about twice as many edges to the outside. An all-to-all sends
  // everything but the leaf's own share.
  const double leaf = as_double(local);
  const double leaving = std::min(as_double(apart), leaf) / leaf;
  crossing.ring = std::max(1.0, narrowing * leaving);
  crossing.tree = std::max(1.0, narrowing * std::min(1.0, 2 * leaving));
  const double inside = std::max(1.0, leaf / as_double(apart));
  const double outside = std::max(0.0, as_double(nodes) - inside) / as_double(nodes - 1);
  crossing.all_to_all = std::max(crossing.all_to_all, narrowing * outside);
  return crossing;
}

CollectiveModel::Crossing CollectiveModel::crossing_of(const FabricTraffic& load, const Group& g) const {
  Crossing crossing;
  if (load.leaves_switch) crossing.latency_seconds += fabric_.hop_latency_seconds;
  if (load.leaves_leaf) crossing.latency_seconds += 2 * fabric_.hop_latency_seconds;  // up and down again
  // Seconds on the busiest link between switches over seconds on the NICs, for the same bytes.
  const auto slower = [](double seconds, double nic_seconds) { return std::max(1.0, seconds / nic_seconds); };
  crossing.ring = slower(load.ring_seconds, 1 / g.channels_nic_rate);
  crossing.tree = slower(load.tree_seconds, busiest_node(g.nodes) / g.channels_nic_rate);
  crossing.reduction = slower(load.reduction_seconds, 1 / g.nic_rate);
  crossing.shift = slower(load.shift_seconds, 1 / g.one_rank_nic_rate);
  crossing.send = slower(load.send_seconds, 1 / g.one_rank_nic_rate);
  const double n = as_double(g.n), r = as_double(g.r);
  crossing.all_to_all = slower(load.all_to_all_seconds, r * (n - r) / n / g.nic_rate);
  return crossing;
}

CollectiveModel::Crossing CollectiveModel::exchange_crossing(std::int64_t apart, double used) const {
  if (fabric_.kind != FabricKind::torus || fabric_.dimensions.empty())
    return crossing_of({.ranks = 2, .ranks_per_node = 1, .nodes = 2, .stride = apart * node_.devices}, used);
  // All exchanges of a block cross the one link in its middle, which is one of two per dimension.
  std::int64_t below = 1;
  for (const std::int64_t d : fabric_.dimensions) {
    if (apart < below * d) break;
    below *= d;
  }
  Crossing crossing;
  crossing.ring = 2 * as_double(static_cast<std::int64_t>(fabric_.dimensions.size())) *
                  as_double(std::max<std::int64_t>(1, apart / below));
  return crossing;
}

CollectiveModel::Group CollectiveModel::group_of(const GroupSpan& span) const {
  Group g;
  g.n = span.ranks;
  g.nodes = span.nodes;
  g.r = span.ranks_per_node;
  g.stride = span.stride;
  g.ll_rate = intra_.ll_bytes_per_second[g.nodes == 1 ? 0 : g.nodes < 4 ? 1 : 2];
  if (g.r > 1) {
    const Link link = link_of(g.r, g.stride);
    if (!(link.bytes_per_second > 0))
      throw InputError({.file = {}, .pointer = "/cluster/intra_node_bytes_per_second"}, "no value",
                       "the rate between the devices of a node");
    g.ring_rate = link.bytes_per_second * link.share_of(intra_);
  }
  if (g.nodes > 1) {
    if (!(nic_bytes_per_second_ > 0))
      throw InputError({.file = {}, .pointer = "/cluster/inter_node_bytes_per_second"}, "no value",
                       "the rate of a node's NICs");
    const double share = nic_bytes_per_second_ / as_double(span.groups_sharing_nics);
    g.nic_rate = std::min(share, as_double(g.r) * rank_nic_bytes_per_second_);
    g.one_rank_nic_rate = std::min(share, rank_nic_bytes_per_second_);
    g.fewest = span.fewest_per_node > 0 ? span.fewest_per_node : g.r;
    g.channels_nic_rate = std::min(share, as_double(g.fewest) * rank_nic_bytes_per_second_);
    // Groups of other kinds leave the NICs that these do not fill, and with rails the NICs of other rails, idle.
    const double groups = as_double(span.groups_sharing_nics);
    const bool has_rails = fabric_.kind == FabricKind::rail_fat_tree;
    const auto of_rails = [&](std::int64_t nics) { return std::min(1.0, groups * as_double(g.r) / as_double(nics)); };
    const double there = has_rails ? of_rails(std::clamp<std::int64_t>(node_.nics, 1, node_.devices)) : 1;
    g.used = std::min(1.0, groups * g.nic_rate / (nic_bytes_per_second_ * there));
    g.load = span.load.get();
    if (g.load != nullptr) {
      g.crossing = crossing_of(*g.load, g);
    } else {
      g.crossing = crossing_of(span, g.used);
      g.crossing.shift = g.crossing.send = g.crossing.reduction = g.crossing.ring;
    }
  }
  return g;
}

// The formulas of NCCL's tuning.cc (ncclTopoTuneModel); the constants come from the calibration.
struct CollectiveModel::Formulas {
  const CollectiveModel& m;
  const Group& g;
  double bytes;
  double n = as_double(g.n), r = as_double(g.r), nodes = as_double(g.nodes);
  bool across = g.nodes > 1;
  double wire = m.extra_latency_seconds_ + g.crossing.latency_seconds;
  double ring_nic = g.channels_nic_rate * m.inter_.ring_share / g.crossing.ring;
  double tree_nic = g.channels_nic_rate * m.inter_.tree_share / g.crossing.tree;

  bool ll128_legal() const { return m.intra_.ll128 && (!across || m.inter_.ll128); }

  // Simple also waits for the receiver's credit, so that the network is crossed a second time (tuning.cc adds the NIC
  // latency twice).
  static double crossed(double one_way, Protocol p) { return p == Protocol::simple ? 2 * one_way : one_way; }
  double wire_of(Protocol p) const { return crossed(wire, p); }
  double filled(double seconds, double half_bytes) const { return seconds * bytes / (bytes + half_bytes); }
  // A round of NVLS takes one chunk from each rank. The time to fill its pipeline therefore grows with the ranks, and
  // so does the size from which chunks are full. The latency of the smallest sizes does not grow (tuning.cc).
  double nvls_latency() const {
    const IntraCalibration& c = m.intra_;
    return c.nvls_seconds + filled(c.nvls_fill_seconds, c.nvls_fill_bytes) +
           filled(r * c.nvls_rank_seconds, r * c.nvls_fill_bytes);
  }
  double ring_step(Protocol p) const { return ring_step(p, wire); }
  double ring_step(Protocol p, double one_way) const {
    const InterCalibration& c = m.inter_;
    return c.ring_step_seconds[index_of(p)] + crossed(one_way, p) +
           (p == Protocol::simple ? filled(c.ring_fill_seconds, c.ring_fill_bytes) : 0);
  }
  double tree_step(Protocol p) const {
    const InterCalibration& c = m.inter_;
    return c.tree_step_seconds[index_of(p)] + wire_of(p) +
           (p == Protocol::simple ? filled(c.tree_fill_seconds, c.tree_fill_bytes) : 0);
  }
  double stack(Protocol p) const { return m.inter_.base_seconds[index_of(p)] + m.intra_.network_base_seconds; }
  double send_stack(Protocol p) const {
    return m.inter_.send_base_seconds[index_of(p)] + m.intra_.network_base_seconds;
  }
  // The share of a Simple rate that a protocol reaches; LL also has an absolute limit.
  double intra_share(double share, Protocol p) const {
    return p == Protocol::ll ? std::min(share, g.ll_rate / (g.r > 1 ? g.ring_rate : g.nic_rate)) : share;
  }
  // Relative to the rate of a node's NICs, or to that of the one NIC which a rank sends by.
  double inter_share(double share, Protocol p) const { return inter_share(share, p, g.nic_rate); }
  double inter_share(double share, Protocol p, double nic_rate) const {
    return p == Protocol::ll ? std::min({share, m.inter_.ll_share, g.ll_rate / nic_rate}) : share;
  }

  Candidate ring(OpKind kind, Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    const bool chain = kind == OpKind::broadcast || kind == OpKind::reduce;
    const double rounds = kind == OpKind::all_reduce ? 2 : 1;
    const double steps = rounds * (n - 1), out_steps = rounds * (nodes - 1);
    // Bytes over each edge; within the node also the copy of the first step.
    const double edge = chain ? bytes : steps / n * bytes;
    const double edge_and_copy = chain ? bytes : (steps + c.local_steps) / n * bytes;
    // One of a node's r ring edges leaves it; channels differ in which one.
    const double inside = across ? (r - 1) / r : 1;
    Candidate x{{.algorithm = Algorithm::ring, .protocol = p}};
    x.latency_seconds = c.base_seconds[i] + (steps - out_steps) * c.step_seconds[i];
    x.intra_seconds = edge_and_copy * inside / (g.ring_rate * intra_share(c.protocol_share[i], p));
    // A chain is a ring without the edge into the first rank (for reduce: the edge out of it).
    const double edges = chain ? (n - 1) / n : 1;
    x.intra_bytes = edges * edge * inside;
    if (across) {
      x.latency_seconds += stack(p) + out_steps * ring_step(p);
      x.fabric_seconds = edge / (ring_nic * inter_share(c.protocol_share[i], p));
      x.inter_seconds = x.fabric_seconds / g.crossing.ring;
      x.inter_bytes = edges * edge;
    }
    return x;
  }

  // Links are full duplex: a ring fills one direction of a port in and one out, and so do two halves.
  Candidate bidirectional_ring(OpKind kind, Protocol p) const {
    Candidate x = ring(kind, p);
    x.algorithm = Algorithm::bidirectional_ring;
    return x;
  }

  // Each step waits for the one before, so that the times of the levels add up. If some partners are in the node and
  // others are not, the slower ones count.
  Candidate halving_doubling(OpKind kind, Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    const HalvingDoubling exchange(kind, g.n);
    Candidate x{{.algorithm = Algorithm::halving_doubling, .protocol = p, .in_sequence = true}};
    x.latency_seconds = c.base_seconds[i] + (across ? stack(p) : 0);
    const double nic_share = m.inter_.ring_share * inter_share(c.protocol_share[i], p);
    const std::int64_t nodes_apart = std::max<std::int64_t>(1, g.stride / m.node_.devices);
    // If all numbers are powers of two, all ranks do the same, and the first one represents them.
    const bool alike = exchange.extra() == 0 && std::has_single_bit(static_cast<std::uint64_t>(g.r));
    std::vector<double> leaving(alike ? 1 : static_cast<std::size_t>((g.n - 1) / g.r + 1));
    double slowest_inside = 0, largest_outside = 0, inside = 0, outside = 0;
    std::int64_t farthest = 0;
    std::size_t bit = 0;  // in which partners differ; extra ranks are next to theirs
    const auto send = [&](std::int64_t from, std::int64_t to, double share) {
      const std::int64_t distance = std::abs(to / g.r - from / g.r);
      const double sent = share * bytes;
      if (distance == 0) {
        const Link link = m.link_of(2, std::abs(to - from) * g.stride);
        const double rate = link.bytes_per_second * link.share_of(c);
        const double reached = rate * c.protocol_share[i];
        slowest_inside = std::max(slowest_inside, sent / (p == Protocol::ll ? std::min(reached, g.ll_rate) : reached));
        inside += alike ? sent * n : sent;
      } else {
        const double together = alike ? sent * r : sent;
        leaving[static_cast<std::size_t>(from / g.r)] += together;
        largest_outside = std::max(largest_outside, sent);
        outside += alike ? together * nodes : together;
        farthest = std::max(farthest, distance);
      }
    };
    const auto end_step = [&] {
      if (farthest == 0) {
        x.latency_seconds += c.step_seconds[i];
      } else {
        Crossing crossing = g.load != nullptr ? g.crossing : m.exchange_crossing(farthest * nodes_apart, g.used);
        x.latency_seconds += ring_step(p, m.extra_latency_seconds_ + crossing.latency_seconds);
        const double nic = std::max(*std::max_element(leaving.begin(), leaving.end()) / g.nic_rate,
                                    largest_outside / g.one_rank_nic_rate) /
                           nic_share;
        if (g.load != nullptr && bit < g.load->exchange_seconds.size())
          crossing.ring = std::max(1.0, g.load->exchange_seconds[bit] * largest_outside / (nic * nic_share));
        if (nic * crossing.ring >= slowest_inside) {
          x.inter_seconds += nic;
          x.fabric_seconds += nic * crossing.ring;
          slowest_inside = 0;
        }
        std::fill(leaving.begin(), leaving.end(), 0);
      }
      x.intra_seconds += slowest_inside;
      slowest_inside = largest_outside = 0;
      farthest = 0;
    };
    const std::int64_t extra = exchange.extra();
    for (std::int64_t v = 0; v < extra; ++v) send(2 * v, 2 * v + 1, exchange.share_in());
    if (extra > 0) end_step();
    for (int step = 0; step < exchange.steps(); ++step) {
      bit = static_cast<std::size_t>(exchange.bit(step));
      for (std::int64_t v = 0; v < (alike ? 1 : exchange.participants()); ++v)
        send(exchange.rank_of(v), exchange.rank_of(v ^ (std::int64_t{1} << exchange.bit(step))),
             exchange.share(step, v));
      end_step();
    }
    bit = 0;
    for (std::int64_t v = 0; v < extra; ++v) send(2 * v + 1, 2 * v, exchange.share_out());
    if (extra > 0) end_step();
    x.intra_bytes = inside / n;
    x.inter_bytes = outside / nodes;
    return x;
  }

  // Phases one after the other, as libraries above NCCL call them: reduce-scatter in the node, rails of one rank per
  // node, all-gather in the node. Without a reduction the rails come first.
  Candidate hierarchical(OpKind kind, Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    const double rounds = kind == OpKind::all_reduce ? 2 : 1;
    const double in_steps = rounds * (r - 1), out_steps = rounds * (nodes - 1);
    Candidate x{{.algorithm = Algorithm::hierarchical, .protocol = p, .in_sequence = true}};
    x.latency_seconds =
        (rounds + 1) * c.base_seconds[i] + in_steps * c.step_seconds[i] + stack(p) + out_steps * ring_step(p);
    x.intra_bytes = in_steps / r * bytes;
    x.inter_bytes = out_steps / nodes * bytes;
    x.intra_seconds =
        rounds * (r - 1 + c.local_steps) / r * bytes / (g.ring_rate * intra_share(c.protocol_share[i], p));
    x.fabric_seconds = x.inter_bytes / (ring_nic * inter_share(c.protocol_share[i], p));
    x.inter_seconds = x.fabric_seconds / g.crossing.ring;
    return x;
  }

  // A ring over the first ranks of the nodes, each with one NIC. Then each sends to the ranks of its node.
  Candidate first_ranks(Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    const double out_steps = 2 * (nodes - 1);
    Candidate x{{.algorithm = Algorithm::first_ranks, .protocol = p, .in_sequence = true}};
    x.latency_seconds = 2 * c.base_seconds[i] + (r - 1) * c.step_seconds[i] + stack(p) + out_steps * ring_step(p);
    x.intra_bytes = (r - 1) / r * bytes;
    x.intra_seconds = bytes / (g.ring_rate * intra_share(c.protocol_share[i], p));
    x.inter_bytes = out_steps / nodes * bytes;
    x.inter_seconds = x.inter_bytes / (g.one_rank_nic_rate * m.inter_.ring_share *
                                       inter_share(c.protocol_share[i], p, g.one_rank_nic_rate));
    // The crossing is relative to all NICs of a node, of which one sends here.
    x.fabric_seconds = x.inter_seconds * std::max(1.0, g.crossing.ring * g.one_rank_nic_rate / g.nic_rate);
    return x;
  }

  // A chain in each node and a double binary tree over the nodes; up, then down.
  Candidate tree(Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    Candidate x{{.algorithm = Algorithm::tree, .protocol = p}};
    x.latency_seconds = c.base_seconds[i] + 2 * (r - 1) * c.step_seconds[i];
    if (g.r > 1) {
      // tuning.cc: half the ring's rate, whatever the chain's length.
      x.intra_seconds = 2 * bytes / (g.ring_rate * intra_share(c.protocol_share[i], p) * c.tree_share[i]);
      x.intra_bytes = 2 * (r - 1) / r * bytes;
    }
    if (across) {
      x.latency_seconds += stack(p) + 2 * as_double(tree_depth(g.nodes)) * tree_step(p);
      x.fabric_seconds =
          busiest_node(g.nodes) * bytes / (tree_nic * inter_share(c.protocol_share[i], p) * c.tree_share[i]);
      x.inter_seconds = x.fabric_seconds / g.crossing.tree;
      x.inter_bytes = 2 * (nodes - 1) / nodes * bytes;
    }
    return x;
  }

  // Each rank's switch ports carry its bytes once up, and the reduced shard once more.
  Candidate nvls() const {
    const IntraCalibration& c = m.intra_;
    Candidate x{{.algorithm = Algorithm::nvls, .protocol = Protocol::simple, .in_switch = true}};
    x.latency_seconds = nvls_latency();
    x.intra_bytes = (r + 1) / r * bytes;
    x.intra_seconds = x.intra_bytes / (m.node_.intra_bytes_per_second * c.nvls_share);
    if (across) {
      x.latency_seconds += stack(Protocol::simple) + 2 * as_double(tree_depth(g.nodes)) * tree_step(Protocol::simple);
      x.intra_seconds /= c.nvls_network_share;
      const double channel_nic = m.rank_nic_bytes_per_second_ * as_double(c.nvls_channels);
      const double one_tree = busiest_channel(g.nodes) / (channel_nic * m.inter_.tree_share);
      x.fabric_seconds = bytes * std::max(busiest_node(g.nodes) / tree_nic, one_tree);
      x.inter_seconds = bytes * std::max(busiest_node(g.nodes) / (tree_nic * g.crossing.tree), one_tree);
      x.inter_bytes = 2 * (nodes - 1) / nodes * bytes;
    }
    return x;
  }

  // Each node sends the sum of its ranks' vectors up once and receives the result once, whatever the number of nodes:
  // half of the bytes of a ring. Within the node NVSwitch reduces, or each rank reduces a part for all (CollNetDirect).
  Candidate collnet(OpKind kind) const {
    const IntraCalibration& c = m.intra_;
    const ReductionCalibration& red = m.reduction_;
    const bool all_reduce = kind == OpKind::all_reduce;
    Candidate x{{.algorithm = Algorithm::collnet, .protocol = Protocol::simple}};
    if (all_reduce && m.node_.in_switch_reduction && g.r >= c.nvls_least_ranks) {
      x = nvls();
      x.algorithm = Algorithm::collnet;
      x.latency_seconds = nvls_latency() + red.nvls_network_seconds;
    } else {
      const double rounds = all_reduce ? 2 : 1;
      x.latency_seconds = rounds * (g.r > 1 ? red.step_seconds + (r - 1) * red.rank_seconds : 0) + red.network_seconds;
      if (g.r > 1) {
        x.intra_bytes = rounds * (r - 1) / r * bytes;
        x.intra_seconds = rounds * (r - 1 + c.local_steps) / r * bytes / g.ring_rate;
      }
    }
    x.latency_seconds += wire_of(Protocol::simple);
    x.inter_bytes = bytes;
    x.inter_seconds = bytes / (g.nic_rate * red.nic_share);
    x.fabric_seconds = x.inter_seconds * g.crossing.reduction;
    return x;
  }

  // Seconds within the node if each rank sends `sent` bytes to all, itself included.
  double all_to_all_intra_seconds(double sent) const {
    if (g.r == 1) return 0;
    const double to_peers = (r - 1 + m.intra_.local_steps) / n * sent;
    if (!m.link_of(g.r, g.stride).leaves_switch) return to_peers / (m.exchange_rate(g) * m.intra_.all_to_all_share);
    // All devices of a switch send to other switches at the same time, and all devices of a root to other roots.
    const Node& node = m.node_;
    const std::int64_t per_switch = node.intra == IntraFabric::pcie ? node.devices_per_pcie_switch : 1;
    const auto peers_of = [&](std::int64_t devices) { return std::clamp<std::int64_t>(devices / g.stride, 1, g.r); };
    const std::int64_t here = peers_of(per_switch), below_root = std::max(here, peers_of(node.devices_per_pcie_root));
    const auto seconds = [&](std::int64_t peers, double share) {
      return as_double(per_switch) * as_double(peers) / n * sent / (m.pcie_bytes_per_second_ * share);
    };
    return std::max(
        to_peers / (m.pcie_bytes_per_second_ * m.intra_.all_to_all_share),
        seconds(below_root - here, m.intra_.all_to_all_share) + seconds(g.r - below_root, m.intra_.host_bridge_share));
  }

  // `by_node`: bytes are first collected within the node on the rank of the right rail, so that a rank sends one
  // message to each node instead of one to each rank.
  Candidate all_to_all(Protocol p, bool by_node) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    Candidate x{
        {.algorithm = by_node ? Algorithm::hierarchical : Algorithm::direct, .protocol = p, .in_sequence = by_node}};
    x.latency_seconds = c.all_to_all_base_seconds[i] + (r - 1) * c.send_step_seconds;
    x.intra_bytes = (r - 1) / (by_node ? r : n) * bytes;
    x.intra_seconds = all_to_all_intra_seconds(by_node ? bytes * nodes : bytes) / c.protocol_share[i];
    if (across) {
      const double messages = by_node ? nodes - 1 : n - r;
      x.latency_seconds += send_stack(p) + messages * m.inter_.send_step_seconds[i] + wire_of(p);
      if (by_node) x.latency_seconds += c.all_to_all_base_seconds[i];
      x.inter_bytes = r * (n - r) / n * bytes;
      const double share = inter_share(c.protocol_share[i], p);
      const auto seconds = [&](double sent, double rate) { return sent / (rate * m.inter_.all_to_all_share * share); };
      // The node with the fewest ranks sends more from each: most of its peers are elsewhere.
      const double fewest = as_double(g.fewest), of_fewest = fewest * (n - fewest) / n * bytes;
      x.inter_seconds = std::max(seconds(x.inter_bytes, g.nic_rate), seconds(of_fewest, g.channels_nic_rate));
      x.fabric_seconds = std::max(x.inter_seconds, seconds(x.inter_bytes * g.crossing.all_to_all, g.nic_rate));
    }
    return x;
  }

  // A message to the next rank of the group; the slowest hop counts.
  Candidate message(OpKind kind, Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    Candidate x{{.algorithm = Algorithm::direct, .protocol = p}};
    x.latency_seconds = c.send_base_seconds[i] + c.send_step_seconds;
    if (g.r > 1) {
      x.intra_seconds = bytes / (m.message_rate(kind, g) * c.send_share * c.protocol_share[i]);
      x.intra_bytes = bytes * (n - (across ? nodes : 0)) / n;
    }
    if (across) {
      x.latency_seconds += send_stack(p) + ring_step(p);
      const double crossing = kind == OpKind::ring_shift ? g.crossing.shift : g.crossing.send;
      x.fabric_seconds =
          bytes * crossing / (g.one_rank_nic_rate * m.inter_.ring_share *
                              inter_share(c.protocol_share[i], p, g.one_rank_nic_rate));
      x.inter_seconds = x.fabric_seconds / crossing;
      x.inter_bytes = bytes;
    }
    return x;
  }

  // The same over all NICs of a node: a message that leaves the node is split equally over the group's ranks there,
  // each part goes over its rank's NIC, and the parts are joined at the other end (the routing layer of Zeppelin, arXiv
  // 2509.21841).
  Candidate routed_shift(Protocol p) const {
    const IntraCalibration& c = m.intra_;
    const std::size_t i = index_of(p);
    Candidate x = message(OpKind::ring_shift, p);
    x.algorithm = Algorithm::hierarchical;
    x.in_sequence = true;
    x.latency_seconds += 2 * (c.send_base_seconds[i] + (r - 1) * c.send_step_seconds);
    // Messages that stay in the node go at the same time, and take at least as long as one of these.
    x.intra_seconds *= std::max(1.0, 2 * (r - 1) / r);
    x.intra_bytes += 2 * (r - 1) / r * bytes * nodes / n;
    x.inter_seconds = std::max(bytes / g.nic_rate, bytes / r / g.one_rank_nic_rate) /
                      (m.inter_.ring_share * inter_share(c.protocol_share[i], p));
    x.fabric_seconds = x.inter_seconds * g.crossing.shift;
    return x;
  }

  void split_latency(OpKind kind, CollectiveCost& cost) const {
    const std::size_t i = index_of(cost.protocol);
    cost.base_seconds = m.intra_.base_seconds[i] + (across ? stack(cost.protocol) : 0);
    cost.intra_step_seconds = m.intra_.step_seconds[i];
    cost.inter_step_seconds = across ? ring_step(cost.protocol) : 0;
    switch (cost.algorithm) {
      case Algorithm::hierarchical:
        if (kind == OpKind::all_to_all || kind == OpKind::ring_shift) break;
        cost.base_seconds += (kind == OpKind::all_reduce ? 2 : 1) * m.intra_.base_seconds[i];
        return;
      case Algorithm::first_ranks:
        cost.base_seconds += m.intra_.base_seconds[i];
        return;
      case Algorithm::tree:
        cost.inter_step_seconds = across ? tree_step(cost.protocol) : 0;
        return;
      case Algorithm::nvls:
        cost.inter_step_seconds = across ? tree_step(cost.protocol) : 0;
        cost.intra_step_seconds = 0;
        cost.base_seconds = cost.latency_seconds - 2 * as_double(tree_depth(g.nodes)) * cost.inter_step_seconds;
        return;
      case Algorithm::direct:
      case Algorithm::collnet:
      case Algorithm::by_token:
        break;
      default:
        return;
    }
    // The messages of one round: there is no chain of steps.
    cost.base_seconds = cost.latency_seconds;
    cost.intra_step_seconds = cost.inter_step_seconds = 0;
  }
};

// Calls visit(candidate) for each legal pair: for all pairs that NCCL considers, and for the wanted one.
template <class Visit>
void CollectiveModel::for_each_candidate(OpKind kind, const Formulas& f, Algorithm wanted, Visit&& visit) const {
  const Group& g = f.g;
  const bool in_phases = wanted == Algorithm::hierarchical && f.across && g.r > 1;
  switch (kind) {
    case OpKind::all_reduce:
      if (node_.in_switch_reduction && g.r >= intra_.nvls_least_ranks) visit(f.nvls());
      [[fallthrough]];
    case OpKind::all_gather:
    case OpKind::reduce_scatter:
    case OpKind::broadcast:
    case OpKind::reduce: {
      if (fabric_.in_network_reduction && reduction_.nic_share > 0 && f.across &&
          (kind == OpKind::all_reduce || kind == OpKind::reduce_scatter))
        visit(f.collnet(kind));
      const bool chain = kind == OpKind::broadcast || kind == OpKind::reduce;
      for (const Protocol p : kProtocols) {
        if (p == Protocol::ll128 && !f.ll128_legal()) continue;
        visit(f.ring(kind, p));
        // Within a node a tree is a chain, which is never faster than the ring.
        if (kind == OpKind::all_reduce && (f.across || wanted == Algorithm::tree)) visit(f.tree(p));
        if (in_phases && !chain) visit(f.hierarchical(kind, p));
        if (wanted == Algorithm::first_ranks && kind == OpKind::all_reduce && f.across && g.r > 1)
          visit(f.first_ranks(p));
        if (wanted == Algorithm::bidirectional_ring) visit(f.bidirectional_ring(kind, p));
        if (wanted == Algorithm::halving_doubling && !chain) visit(f.halving_doubling(kind, p));
      }
      return;
    }
    case OpKind::all_to_all:
      for (const Protocol p : {Protocol::simple, Protocol::ll}) {
        visit(f.all_to_all(p, false));
        if (in_phases) visit(f.all_to_all(p, true));
      }
      return;
    case OpKind::ring_shift:
      if (in_phases)
        for (const Protocol p : {Protocol::simple, Protocol::ll}) visit(f.routed_shift(p));
      [[fallthrough]];
    case OpKind::send:
      for (const Protocol p : {Protocol::simple, Protocol::ll}) visit(f.message(kind, p));
      return;
    default:
      throw InputError({}, name_of(kind), "a communication op");
  }
}

CollectiveCost CollectiveModel::cost(OpKind kind, double bytes, const GroupSpan& span, Algorithm algorithm,
                                     Protocol protocol) const {
  if (span.ranks <= 1 || !(bytes > 0)) return {};
  const Group g = group_of(span);
  const Formulas f{*this, g, bytes};
  Candidate best;
  double least = std::numeric_limits<double>::infinity();
  int best_match = -1;
  for_each_candidate(kind, f, algorithm, [&](const Candidate& c) {
    // A wanted algorithm counts more than a wanted protocol. A candidate that lacks either is not chosen for its speed.
    const int match = (algorithm == Algorithm::automatic || algorithm == c.algorithm ? 2 : 0) +
                      (protocol == Protocol::automatic || protocol == c.protocol ? 1 : 0);
    const double seconds = c.total_seconds();
    if (match < best_match || (match == best_match && seconds >= least)) return;
    best_match = match;
    least = seconds;
    best = c;
  });
  return cost_of(kind, f, best);
}

CollectiveCost CollectiveModel::token_exchange(double bytes, const Router& router, const GroupSpan& span) const {
  if (span.ranks <= 1 || !(bytes > 0)) return {};
  const Group g = group_of(span);
  const Formulas f{*this, g, bytes};
  const TokenShares shares = token_shares(router, g.n, g.nodes);
  Candidate x = f.all_to_all(Protocol::simple, g.nodes > 1 && g.r > 1);
  x.algorithm = Algorithm::by_token;
  x.in_sequence = false;  // chunk by chunk
  x.intra_bytes = x.intra_seconds = x.inter_bytes = x.fabric_seconds = x.inter_seconds = 0;
  if (g.r > 1) {
    x.intra_bytes = f.n * shares.to_rank * bytes;
    x.intra_seconds = x.intra_bytes / (exchange_rate(g) * token_exchange_.link_share);
  }
  if (g.nodes > 1) {
    x.inter_bytes = f.r * (f.nodes - 1) * shares.to_node * bytes;
    x.inter_seconds = x.inter_bytes / (g.nic_rate * token_exchange_.nic_share);
    x.fabric_seconds = x.inter_seconds * g.crossing.all_to_all;
  }
  x.token_shares = shares;
  return cost_of(OpKind::all_to_all, f, x);
}

CollectiveCost CollectiveModel::cost_of(OpKind kind, const Formulas& f, const Candidate& best) const {
  const Group& g = f.g;
  CollectiveCost cost = best;
  cost.seconds = best.total_seconds();
  cost.bus_bytes_per_second = bus_factor(kind, g.n) * f.bytes / cost.seconds;
  cost.inter_bound = best.fabric_seconds > best.intra_seconds;
  cost.between_neighbours = g.stride == 1 && (node_.intra == IntraFabric::direct_mesh ||
                                              (node_.intra == IntraFabric::nvlink_pairs && g.r == 2));
  f.split_latency(kind, cost);
  for (double* part : {&cost.seconds, &cost.latency_seconds, &cost.intra_seconds, &cost.inter_seconds,
                       &cost.base_seconds, &cost.intra_step_seconds, &cost.inter_step_seconds})
    *part *= step_slowdown_;
  cost.bus_bytes_per_second /= step_slowdown_;
  return cost;
}

CollectiveCost CollectiveModel::transfer(double bytes, std::int64_t distance, std::int64_t concurrent,
                                         const std::shared_ptr<const FabricTraffic>& load) const {
  if (!(bytes > 0) || distance == 0) return {};
  GroupSpan span{.ranks = 2, .stride = distance};
  if (distance >= node_.devices) {
    span.nodes = 2;
    span.groups_sharing_nics = std::max<std::int64_t>(1, concurrent);
    span.load = load;
  } else {
    span.ranks_per_node = 2;
  }
  return cost(OpKind::send, bytes, span);
}

std::string CollectiveModel::explain(OpKind kind, double bytes, const GroupSpan& span) const {
  if (span.ranks <= 1 || !(bytes > 0)) return "0 s: one rank, or no bytes";
  const Group g = group_of(span);
  const CollectiveCost chosen = cost(kind, bytes, span);
  std::string text, others;
  for_each_candidate(kind, {*this, g, bytes}, Algorithm::automatic, [&](const Candidate& c) {
    if (c.algorithm != chosen.algorithm || c.protocol != chosen.protocol) {
      others += fmt::format("{}{} {} {:.4g} us", others.empty() ? "" : ", ", orrery::name_of(c.algorithm),
                            nccl_name_of(c.protocol), c.total_seconds() * 1e6);
      return;
    }
    text = fmt::format(
        "{} of {:.6g} bytes over {} ranks ({} node{}, {} per node), {} {}: {:.4g} us = latency {:.4g} us + max("
        "{:.4g} us in the node, {:.4g} us over NICs)",
        name_of(kind), bytes, g.n, g.nodes, g.nodes == 1 ? "" : "s", g.r, orrery::name_of(c.algorithm),
        nccl_name_of(c.protocol), c.total_seconds() * 1e6, c.latency_seconds * 1e6, c.intra_seconds * 1e6,
        c.fabric_seconds * 1e6);
    if (c.intra_seconds > 0)
      text += fmt::format("; in the node {:.6g} bytes per rank at {:.4g} GB/s of {:.4g}", c.intra_bytes,
                          c.intra_bytes / c.intra_seconds / 1e9, link_of(g.r, g.stride).bytes_per_second / 1e9);
    if (g.nodes > 1)
      text +=
          fmt::format("; over NICs {:.6g} bytes per node at {:.4g} GB/s of {:.4g} (node {:.4g}, {} groups share it)",
                      c.inter_bytes, c.inter_bytes / c.fabric_seconds / 1e9, g.nic_rate / 1e9,
                      nic_bytes_per_second_ / 1e9, span.groups_sharing_nics);
    const double narrowed = kind == OpKind::all_to_all                                           ? g.crossing.all_to_all
                            : c.algorithm == Algorithm::ring || c.algorithm == Algorithm::direct ? g.crossing.ring
                            : c.algorithm == Algorithm::collnet                                  ? g.crossing.reduction
                                                                                                 : g.crossing.tree;
    if (g.nodes > 1 && narrowed > 1) text += fmt::format("; {:.3g} times slower beyond the leaf switches", narrowed);
  });
  if (step_slowdown_ != 1)
    text += fmt::format("; times {:.3g} in a training step (results/calibration/steps.json)", step_slowdown_);
  return fmt::format(
      "{}; bus bandwidth {:.4g} GB/s. Slower: {}. Formulas: NCCL src/graph/tuning.cc. Rates and latencies: {}", text,
      chosen.bus_bytes_per_second / 1e9, others.empty() ? "none" : others, provenance_);
}

}  // namespace orrery
