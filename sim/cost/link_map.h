// The links between the devices of a node whose pairs differ (Node::links): the ways of messages, the rings of
// collectives, and the rates that groups of devices get.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/hardware/cluster.h"

namespace orrery {

// A ring in one direction.
struct NodeRing {
  std::vector<std::int32_t> order;  // places in the list of its devices
  double share = 0;                 // of a collective's bytes; the shares of all rings add up to 1
};

// 0, 1, -1, 2, -2, ...: modulo an even m, the differences within the first m terms are all different, so that the m
// rotations of this path pass from each number to each other exactly once (Williams 1949). Modulo an odd m, the
// rotations of the path and of its mirror image do so twice.
inline std::int32_t zigzag(std::int32_t j) { return j % 2 == 1 ? (j + 1) / 2 : -(j / 2); }

// Rings that use every link of a mesh of `members` > 2 equally in both directions: Walecki's construction, which closes
// the paths of zigzag() over all members but the last through the last. For 4 and 6 members no members - 1 rings do so
// (Tillson 1980). For even numbers these are 2 (members - 1) rings, with each link in two of them.
std::vector<NodeRing> mesh_rings(std::int32_t members);

class LinkMap {
 public:
  // Empty if the node has no links by pair. REQUIRES: links that join all devices (read_cluster).
  explicit LinkMap(const Node& node);

  bool empty() const { return rates_.empty(); }
  // The rate of every pair, if all have links of the same rate: the node is then a mesh like any other. Otherwise 0.
  double even_rate() const;

  // The rate of the pair's own links, one direction; 0: it has none.
  double bytes_per_second(std::int64_t a, std::int64_t b) const { return rates_[pair(a, b)]; }
  // The devices that a message passes, both ends included: those of the pair's own links. Without any it takes as few
  // links as possible, of such ways the widest, of equally wide ways the one over the next device after the lower end.
  std::span<const std::int64_t> way(std::int64_t a, std::int64_t b) const { return ways_[pair(a, b)]; }

  // The rings over a group of at least two devices. If all its pairs are joined, the rings of a mesh at the rate of the
  // slowest pair come first. What the links between its devices have left, and all that they have in other groups,
  // goes to one ring after the other in both directions: that whose narrowest link is the widest, of such rings that
  // with the widest links together. Rings pass devices only over their own links, as those of RCCL do, unless these
  // close no ring. More may be possible, but no link carries more than its rate.
  std::vector<NodeRing> rings(std::span<const std::int64_t> devices) const;

  // What each device gets if the groups that blocks of ranks x stride devices make up, each of `ranks` devices `stride`
  // apart, do the same at the same time, in bytes per second. The slowest group counts. The rates of all links of the
  // device (Node::intra_bytes_per_second) bound it, too.
  struct Rates {
    double ring = 0;      // rings(): nccl-tests' bus bandwidth; two devices: the narrowest link on their way
    double exchange = 0;  // messages to all others, which the busiest link on their ways bounds
    double shift = 0;     // a message to the next one; the last device sends to the first
  };
  // REQUIRES: 2 <= ranks, (ranks - 1) x stride < devices of the node.
  Rates rates(std::int64_t ranks, std::int64_t stride) const;
  // The same for messages from each block of `distance` devices to the next block.
  double send_rate(std::int64_t distance) const;

 private:
  using Loads = std::vector<double>;  // by ordered pair

  std::size_t pair(std::int64_t a, std::int64_t b) const { return static_cast<std::size_t>(a * devices_ + b); }
  void find_ways(std::int64_t from);
  void add_load(std::int64_t from, std::int64_t to, double load, Loads& loads) const;
  // The rate at which a load of one passes the link for which it is the heaviest.
  double rate_of(const Loads& loads) const;

  std::int64_t devices_ = 0;
  double port_ = 0;
  std::vector<double> rates_;                    // by ordered pair
  std::vector<std::vector<std::int64_t>> ways_;  // by ordered pair
};

}  // namespace orrery
