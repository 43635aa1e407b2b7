#include "sim/cost/fabric_traffic.h"

#include <algorithm>
#include <utility>

#include "sim/base/index.h"
#include "sim/cost/exchange_patterns.h"

namespace orrery {
namespace {

struct Port {  // the place where a rank meets the network
  std::int64_t node = 0, nic = 0;
};

// Bytes over each up-link and each down-link.
class Loads {
 public:
  explicit Loads(const UpLinks& up, std::int64_t nodes)
      : up_(up), bytes_(at(2 * ((nodes + up.nodes - 1) / up.nodes) * up.rails * up.ways), 0) {}

  void send(Port from, Port to, double bytes) {
    const std::int64_t a = up_.leaf_of(from.node, from.nic), b = up_.leaf_of(to.node, to.nic);
    if (a == b) return;
    const std::int64_t way = up_.way_to(to.node, to.nic);
    add_up(a, way, bytes);
    add_down(b, way, bytes);
  }
  void add_up(std::int64_t leaf, std::int64_t way, double bytes) { bytes_[at(2 * (leaf * up_.ways + way))] += bytes; }
  void add_down(std::int64_t leaf, std::int64_t way, double bytes) {
    bytes_[at(2 * (leaf * up_.ways + way) + 1)] += bytes;
  }

  // The seconds of the busiest link; clears all bytes.
  double take_seconds() {
    const double most = *std::max_element(bytes_.begin(), bytes_.end());
    std::fill(bytes_.begin(), bytes_.end(), 0);
    return most / up_.bytes_per_second;
  }

 private:
  const UpLinks& up_;
  std::vector<double> bytes_;
};

// A group's members by node, with the nodes in the order in which rings and trees join them.
struct NodeMembers {
  std::int64_t node = 0;
  std::int32_t first = 0, count = 0;  // range of the group's members
};

class Communicator {
 public:
  Communicator(const Cluster& cluster, std::span<const std::int64_t> members, std::int64_t size)
      : cluster_(cluster),
        up_(up_links_of(cluster, cluster.fabric.adaptive_routing)),
        members_(members),
        size_(size),
        loads_(up_, cluster.fabric_nodes()),
        pxn_(cluster.node.intra == IntraFabric::nvswitch && cluster.fabric.kind == FabricKind::rail_fat_tree) {
    ports_.resize(at(size));
  }

  FabricTraffic measure() {
    FabricTraffic load;
    for_each_group([&] { note_levels(load); });
    if (size_ == 1) return load;
    load.ring_seconds = seconds([&] { ring(); });
    load.tree_seconds = seconds([&] { trees(); });
    load.all_to_all_seconds = seconds([&] { all_to_all(); });
    load.shift_seconds = seconds([&] { shift(); });
    load.send_seconds = (seconds([&] { send(0, 1); }) + seconds([&] { send(1, 0); })) / 2;
    load.reduction_seconds = seconds([&] { reduction(); });
    const HalvingDoubling exchange(OpKind::all_gather, size_);
    for (int bit = 0; bit < exchange.bits(); ++bit)
      load.exchange_seconds.push_back(seconds([&] {
        for (std::int64_t v = 0; v < exchange.participants(); ++v)
          send(exchange.rank_of(v), exchange.rank_of(v ^ (std::int64_t{1} << bit)));
      }));
    return load;
  }

 private:
  // Of the busiest link, if all groups send at the same time.
  template <class SendOfGroup>
  double seconds(SendOfGroup&& send_of_group) {
    for_each_group(send_of_group);
    return loads_.take_seconds();
  }
  template <class Visit>
  void for_each_group(Visit&& visit) {
    const std::int64_t devices = cluster_.node.devices;
    for (std::size_t first = 0; first < members_.size(); first += at(size_)) {
      nodes_.clear();
      for (std::int64_t i = 0; i < size_; ++i) {
        const std::int64_t device = members_[first + at(i)], node = cluster_.fabric_node(device / devices);
        ports_[at(i)] = {node, up_.nic_of(device % devices, devices)};
        if (nodes_.empty() || nodes_.back().node != node) nodes_.push_back({node, static_cast<std::int32_t>(i), 0});
        ++nodes_.back().count;
      }
      if (cluster_.placement.ring_order == RingOrder::leaf)
        std::sort(nodes_.begin(), nodes_.end(),
                  [](const NodeMembers& a, const NodeMembers& b) { return a.node < b.node; });
      channels_ = std::min_element(nodes_.begin(), nodes_.end(), [](const NodeMembers& a, const NodeMembers& b) {
                    return a.count < b.count;
                  })->count;
      visit();
    }
  }

  // The rank over which a channel enters and leaves a node: the same place on each node, so that it stays on one rail.
  Port entry(std::size_t node, std::int32_t channel) const { return ports_[at(nodes_[node].first + channel)]; }
  void send(std::int64_t from, std::int64_t to) {
    const Port a = ports_[at(from)], b = ports_[at(to)];
    if (a.node != b.node) loads_.send(a, b, 1);
  }

  void note_levels(FabricTraffic& load) const {
    const std::int64_t per_switch = cluster_.fabric.nodes_per_leaf;
    for (const NodeMembers& n : nodes_) {
      load.leaves_leaf |= n.node / up_.nodes != nodes_.front().node / up_.nodes;
      if (cluster_.fabric.kind == FabricKind::dragonfly && per_switch > 0)
        load.leaves_switch |= n.node / per_switch != nodes_.front().node / per_switch;
    }
  }

  void ring() {
    if (nodes_.size() == 1) return;
    for (std::size_t i = 0; i < nodes_.size(); ++i)
      for (std::int32_t c = 0; c < channels_; ++c)
        loads_.send(entry(i, c), entry((i + 1) % nodes_.size(), c), 1.0 / channels_);
  }

  // Up to the parents and down again, in both trees.
  void trees() {
    const int count = static_cast<int>(nodes_.size());
    const double bytes = 0.5 / channels_;
    for (int i = 0; i < count && count > 1; ++i)
      for (const int parent : {tree_parent(count, i), twin_parent(count, i)})
        for (std::int32_t c = 0; c < channels_ && parent != kTreeRoot; ++c) {
          const Port below = entry(at(i), c), above = entry(at(parent), c);
          loads_.send(below, above, bytes);
          loads_.send(above, below, bytes);
        }
  }

  // To each member, from all senders of a leaf at a time.
  void all_to_all() {
    senders_.clear();
    const auto sender = [&](std::int64_t leaf) -> std::int64_t& {
      for (auto& [of, count] : senders_)
        if (of == leaf) return count;
      return senders_.emplace_back(leaf, 0).second;
    };
    // With PXN, all ranks of a node send over the NIC of the destination's rail.
    const auto leaf_of = [&](Port from, Port to) { return up_.leaf_of(from.node, pxn_ ? to.nic : from.nic); };
    const auto key_of = [&](Port p) { return pxn_ ? p.node / up_.nodes : up_.leaf_of(p.node, p.nic); };
    for (const Port& p : ports_) ++sender(key_of(p));
    const double part = 1 / static_cast<double>(size_);
    for (const NodeMembers& n : nodes_) {
      for (std::int32_t i = 0; i < n.count; ++i) --sender(key_of(ports_[at(n.first + i)]));  // within the node
      for (std::int32_t i = 0; i < n.count; ++i) {
        const Port to = ports_[at(n.first + i)];
        const std::int64_t leaf = up_.leaf_of(to.node, to.nic), way = up_.way_to(to.node, to.nic);
        double outside = 0;
        for (const auto& [key, count] : senders_) {
          const std::int64_t from = pxn_ ? leaf_of({key * up_.nodes, 0}, to) : key;
          if (from == leaf || count == 0) continue;
          loads_.add_up(from, way, part * static_cast<double>(count));
          outside += static_cast<double>(count);
        }
        loads_.add_down(leaf, way, part * outside);
      }
      for (std::int32_t i = 0; i < n.count; ++i) ++sender(key_of(ports_[at(n.first + i)]));
    }
  }

  void shift() {
    for (std::int64_t i = 0; i < size_; ++i) send(i, (i + 1) % size_);
  }

  // Each leaf that a group touches sends the sum of its nodes up to one spine, which serves the group's first node, and
  // receives the result from there.
  void reduction() {
    for (std::int32_t c = 0; c < channels_; ++c) {
      touched_.clear();
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const Port p = entry(i, c);
        touched_.push_back(up_.leaf_of(p.node, p.nic));
      }
      std::sort(touched_.begin(), touched_.end());
      touched_.erase(std::unique(touched_.begin(), touched_.end()), touched_.end());
      if (touched_.size() == 1) continue;
      const std::int64_t way = up_.way_to(entry(0, c).node, entry(0, c).nic);
      for (const std::int64_t leaf : touched_) {
        loads_.add_up(leaf, way, 1.0 / channels_);
        loads_.add_down(leaf, way, 1.0 / channels_);
      }
    }
  }

  const Cluster& cluster_;
  const UpLinks up_;
  const std::span<const std::int64_t> members_;
  const std::int64_t size_;
  Loads loads_;
  const bool pxn_;
  // The group that is being visited.
  std::vector<Port> ports_;
  std::vector<NodeMembers> nodes_;
  std::int32_t channels_ = 1;
  std::vector<std::pair<std::int64_t, std::int64_t>> senders_;  // (leaf, ranks); working storage
  std::vector<std::int64_t> touched_;
};

}  // namespace

FabricTraffic fabric_load(const Cluster& cluster, std::span<const std::int64_t> members, std::int64_t size) {
  if (up_links_of(cluster, true).nodes == 0 || members.empty()) return {};
  return Communicator(cluster, members, size).measure();
}

std::vector<std::int64_t> members_of_groups(const Mesh& mesh, MeshGroup group) {
  const std::vector<std::int64_t> inside = mesh.offsets(group);
  std::vector<std::int64_t> members;
  members.reserve(at(mesh.ranks()));
  for (const std::int64_t first : mesh.offsets(mesh.digits_beside(group)))
    for (const std::int64_t offset : inside) members.push_back(first + offset);
  return members;
}

GroupSpan span_of(const Mesh& mesh, MeshGroup group, const Cluster& cluster) {
  GroupSpan span = span_of(mesh, group, cluster.node.devices);
  if (!cluster.is_scattered() || span.nodes == 1) return span;
  span.load = std::make_shared<FabricTraffic>(fabric_load(cluster, members_of_groups(mesh, group), span.ranks));
  return span;
}

}  // namespace orrery
