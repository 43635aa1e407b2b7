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

// A ring sends from each device of its order to the next one, and from the last to the first.
struct NodeRing {
  std::vector<std::int32_t> order;  // places in the list of its devices
  double share = 0;                 // of a collective's bytes; the shares of all rings add up to 1
};

// 0, 1, -1, 2, -2, ...: modulo an even m, the differences within the first m terms are all different, so that the m
// rotations of this path pass from each number to each other exactly once (Williams 1949). Modulo an odd m, the
// rotations of the path and of its mirror image do so twice.
inline std::int32_t zigzag(std::int32_t j) { return j % 2 == 1 ? (j + 1) / 2 : -(j / 2); }

// Returns rings that use every link of a mesh equally in both directions. They are Walecki's: paths of zigzag() over
// all members but the last, closed through the last. An odd number of members gives members - 1 rings. An even number
// gives 2 (members - 1), with each link in two of them: for 4 and 6 members there are no fewer (Tillson 1980).
// REQUIRES: members > 2.
std::vector<NodeRing> mesh_rings(std::int32_t members);

class LinkMap {
 public:
  // Empty unless the node is a direct_mesh of several devices with links by pair. REQUIRES: links that join all devices
  // (read_cluster).
  explicit LinkMap(const Node& node);

  bool empty() const { return rates_.empty(); }
  // The rate of every pair, if all have links of the same rate: the node is then a mesh like any other. Otherwise 0.
  double even_rate() const;

  // The rate of the pair's own links, one direction; 0: it has none.
  double bytes_per_second(std::int64_t a, std::int64_t b) const { return rates_[pair(a, b)]; }
  // Returns the devices on a message's way, both ends included. Joined pairs use their own links. Others take the
  // fewest links; among such ways the widest; among equally wide ones that over the next device after the lower end.
  // REQUIRES: a != b.
  std::span<const std::int64_t> way(std::int64_t a, std::int64_t b) const { return ways_[pair(a, b)]; }

  // Returns the rings over a group of at least two devices; their orders are places in `devices`. If all pairs of the
  // group are joined, it has the rings of a mesh at the rate of the slowest pair. Then rings in both directions are
  // added until the links have nothing left: each is the one whose narrowest link is the widest, and among these the
  // one with the largest sum of widths. Neighbours in a ring are joined, as in RCCL's rings; only if there is no such
  // ring, rings pass other devices. The result need not be the most that the links can carry.
  std::vector<NodeRing> rings(std::span<const std::int64_t> devices) const;

  // Bytes per second that each device sends while all groups of one kind work at once. The node is cut into blocks of
  // ranks x stride devices; in a block, every stride-th device is of the same group. The busiest link decides, also one
  // that groups share. Node::intra_bytes_per_second is the upper limit.
  struct Rates {
    double ring = 0;      // rings(): nccl-tests' bus bandwidth; two devices: the narrowest link on their way
    double exchange = 0;  // to all other devices of the group together
    double shift = 0;     // a message to the next one; the last device sends to the first
  };
  // REQUIRES: 2 <= ranks, (ranks - 1) x stride < devices of the node.
  Rates rates(std::int64_t ranks, std::int64_t stride) const;
  // Returns the rate of each device of a block of `distance` devices that sends to the device `distance` further, while
  // all devices of that block send and others do not. The slowest block counts.
  // REQUIRES: 1 <= distance < devices of the node.
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
