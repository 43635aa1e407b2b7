#include "sim/des/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "sim/base/error.h"
#include "sim/base/index.h"

namespace orrery {
namespace {

constexpr std::size_t index_of(LinkKind kind) { return static_cast<std::size_t>(kind); }
double as_double(std::int64_t n) { return static_cast<double>(n); }
std::int64_t groups_of(std::int64_t members, std::int64_t size) { return (members + size - 1) / size; }

// Outgoing and incoming links alternate: the second of a pair carries the other direction.
constexpr std::int64_t kThere = 0, kBack = 1;

// The index of an ordered pair among the pairs of n, and the pair with an index.
std::int64_t place_of_pair(std::int64_t from, std::int64_t to, std::int64_t n) {
  return from * (n - 1) + (to < from ? to : to - 1);
}
struct Pair {
  std::int64_t from = 0, to = 0;
};
Pair pair_at(std::int64_t place, std::int64_t n) {
  const std::int64_t from = place / (n - 1), rest = place % (n - 1);
  return {from, rest < from ? rest : rest + 1};
}

[[noreturn]] void lacks(const char* pointer, const char* expected) {
  throw InputError({.file = {}, .pointer = std::string("/cluster") + pointer}, "no value", expected);
}

// find() builds a million names; these functions keep that cheap.
void append(std::string& text, const char* part) { text += part; }
void append(std::string& text, std::int64_t number) {
  const fmt::format_int digits(number);
  text.append(digits.data(), digits.size());
}
template <class... Parts>
void write(std::string& text, Parts... parts) {
  (append(text, parts), ...);
}

// '*' matches any characters, also none.
bool matches(std::string_view pattern, std::string_view name) {
  std::size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The shape "node#.gpu#.pcie" and the numbers {"3", "*"} of "node3.gpu*.pcie".
struct Shape {
  std::string text;
  std::vector<std::string> numbers;
};
Shape shape_of(std::string_view name) {
  Shape shape;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = i;
    while (end < name.size() && is_digit(name[end])) ++end;
    if (end == i && name[i] == '*') ++end;
    if (end == i) {
      shape.text += name[i++];
      continue;
    }
    shape.text += '#';
    shape.numbers.emplace_back(name.substr(i, end - i));
    i = end;
  }
  return shape;
}

// The smaller of two written numbers; '*' stays.
const std::string& not_above(const std::string& a, const std::string& most) {
  if (a == "*" || a.size() < most.size()) return a;
  return a.size() == most.size() ? std::min(a, most) : most;
}

// `kind` with the user's numbers, limited to those of the `last` link.
std::string filled(std::string_view kind, const Shape& meant, const Shape& last) {
  std::string name;
  std::size_t i = 0;
  for (const char c : kind) {
    if (c != '#') {
      name += c;
      continue;
    }
    name += i < meant.numbers.size() ? not_above(meant.numbers[i], last.numbers[i]) : "0";
    ++i;
  }
  return name;
}

// Host memory has no direction: its only '.' precedes the kind.
std::string_view without_direction(std::string_view name, LinkKind kind) {
  return kind == LinkKind::host_memory ? name : name.substr(0, name.rfind('.'));
}

}  // namespace

const char* name_of(LinkKind kind) {
  constexpr std::array<const char*, kLinkKinds> names{"scale_up", "scale_up_pair", "pcie", "pcie_switch", "host_memory",
                                                      "storage",  "nic",           "leaf", "global",      "torus"};
  return names[index_of(kind)];
}

Topology::Topology(const Cluster& cluster, Routing routing)
    : nodes_(cluster.fabric_nodes()),
      per_node_(cluster.node.devices),
      intra_(cluster.node.intra),
      link_map_(cluster.node),
      fabric_(cluster.fabric.kind),
      sprayed_(routing == Routing::sprayed ||
               (routing == Routing::automatic &&
                (cluster.fabric.kind == FabricKind::dragonfly || cluster.fabric.adaptive_routing))),
      nics_(std::min(cluster.node.nics, cluster.node.devices)) {
  lay_out_node(cluster);
  if (nodes_ > 1) lay_out_network(cluster);
  number_links();
}

void Topology::lay_out_node(const Cluster& cluster) {
  const Node& node = cluster.node;
  const auto lay = [this](LinkKind kind, std::int64_t of_a_node, double rate) {
    count_[index_of(kind)] = nodes_ * of_a_node;
    rate_[index_of(kind)] = rate;
  };
  // Rates are read as in CollectiveModel and OpCostModel.
  const bool over_pcie = !joins_all_devices();
  const double own = node.pcie_bytes_per_second > 0 ? node.pcie_bytes_per_second : cluster.device.pcie_bytes_per_second;
  const double peers = over_pcie && node.intra_bytes_per_second <= 0 ? own : node.intra_bytes_per_second;
  if (per_node_ > 1) {
    if (!(peers > 0)) lacks("/intra_node_bytes_per_second", "the rate between the devices of a node");
    double pair = node.pair_bytes_per_second > 0 ? node.pair_bytes_per_second : node.intra_bytes_per_second;
    if (const double even = link_map_.even_rate(); even > 0) {
      pair = even;
      link_map_ = LinkMap(Node{});
    }
    // Devices may reach each other more slowly than NICs and host memory (across root complexes). A port of its own
    // keeps this from narrowing the other links.
    if (!over_pcie || peers < own) lay(LinkKind::scale_up, 2 * per_node_, peers);
    const std::int64_t pairs = per_node_ * (per_node_ - 1);
    if (!link_map_.empty())
      for (std::int64_t p = 0; p < pairs; ++p)
        if (const auto [a, b] = pair_at(p, per_node_); link_map_.bytes_per_second(a, b) > 0) joined_pairs_.push_back(p);
    if (intra_ == IntraFabric::direct_mesh)
      lay(LinkKind::scale_up_pair, link_map_.empty() ? pairs : std::ssize(joined_pairs_), pair);
    if (intra_ == IntraFabric::nvlink_pairs) {
      if (!(pair > 0)) lacks("/pair_bytes_per_second", "the rate between the two devices of a pair");
      lay(LinkKind::scale_up_pair, per_node_ / 2 * 2, pair);
    }
  }

  per_pcie_switch_ = std::max<std::int64_t>(1, std::min(node.devices_per_pcie_switch, per_node_));
  pcie_switches_ = groups_of(per_node_, per_pcie_switch_);
  // The devices of a PCIe tree share their switch's up-link, and so do those of a node that states its rate. In other
  // nodes, pairs joined by a bridge are assumed not to (CollectiveModel::link_of).
  const double up_link = node.pcie_switch_bytes_per_second;
  wide_up_links_ = intra_ != IntraFabric::pcie && !(up_link > 0);
  if (const double pcie = over_pcie ? std::max(own, peers) : own; pcie > 0) {
    lay(LinkKind::pcie, 2 * per_node_, pcie);
    lay(LinkKind::pcie_switch, 2 * pcie_switches_, up_link > 0 ? up_link : pcie);
  }
  if (node.host_memory_bytes_per_second > 0) lay(LinkKind::host_memory, 1, node.host_memory_bytes_per_second);
  writes_ = node.nvme_write_bytes_per_second > 0;
  reads_ = node.nvme_read_bytes_per_second > 0;
  lay(LinkKind::storage, (writes_ ? 1 : 0) + (reads_ ? 1 : 0), node.nvme_write_bytes_per_second);
  storage_read_bytes_per_second_ = node.nvme_read_bytes_per_second;
}

void Topology::lay_out_network(const Cluster& cluster) {
  const double injection = cluster.inter_node_bytes_per_second();
  if (!(injection > 0)) lacks("/inter_node_bytes_per_second", "the rate of a node's NICs");
  const auto lay = [this](LinkKind kind, std::int64_t links, double rate) {
    count_[index_of(kind)] = links;
    rate_[index_of(kind)] = rate;
  };
  if (fabric_ == FabricKind::torus) return lay_out_torus(cluster);
  lay(LinkKind::nic, 2 * nodes_ * nics_, injection / as_double(nics_));
  up_ = up_links_of(cluster, sprayed_);
  if (up_.nodes == 0) return;
  leaves_ = groups_of(nodes_, up_.nodes) * up_.rails;
  // Even under one set of rail switches, different rails meet only at the spine.
  if (leaves_ == 1) return;
  if (fabric_ == FabricKind::dragonfly && !sprayed_)
    lay(LinkKind::global, leaves_ * (leaves_ - 1), up_.bytes_per_second / as_double(leaves_ - 1));
  else
    lay(fabric_ == FabricKind::dragonfly ? LinkKind::global : LinkKind::leaf, 2 * leaves_ * up_.ways,
        up_.bytes_per_second);
}

void Topology::lay_out_torus(const Cluster& cluster) {
  const std::vector<std::int64_t>& dimensions = cluster.fabric.dimensions;
  std::int64_t stride = 1;
  for (std::size_t i = 0; i < dimensions.size(); ++i) {
    const std::int64_t length = dimensions[i];
    if (length < 1 || length > nodes_ / stride) {
      stride = 0;
      break;
    }
    if (length > 1) {
      torus_.push_back({static_cast<std::int64_t>(i), length, stride, torus_links_, length == 2 ? 1 : 2});
      torus_links_ += torus_.back().links;
    }
    stride *= length;
  }
  if (stride != nodes_)
    throw InputError({.file = {}, .pointer = "/cluster/fabric/dimensions"},
                     fmt::format("[{}]", fmt::join(dimensions, ", ")),
                     fmt::format("sizes whose product is the {} nodes", nodes_));
  count_[index_of(LinkKind::torus)] = nodes_ * torus_links_;
  // Dimensions of one node also take their share of the NICs (CollectiveModel::crossing_of).
  rate_[index_of(LinkKind::torus)] = cluster.inter_node_bytes_per_second() / as_double(2 * std::ssize(dimensions));
}

void Topology::number_links() {
  for (std::size_t k = 0; k < count_.size(); ++k) first_[k + 1] = first_[k] + count_[k];
  constexpr std::int64_t kMost = std::numeric_limits<LinkId>::max();
  if (links() > kMost)
    throw InputError({.file = {}, .pointer = "/cluster/nodes"}, fmt::format("a cluster of {} links", links()),
                     fmt::format("one of at most {}", kMost));
}

LinkKind Topology::kind(LinkId link) const {
  return static_cast<LinkKind>(std::upper_bound(first_.begin(), first_.end(), std::int64_t{link}) - first_.begin() - 1);
}

std::int64_t Topology::place(LinkId link) const { return link - first_[index_of(kind(link))]; }

const Topology::TorusDimension& Topology::torus_dimension_of(std::int64_t place) const {
  const std::int64_t of_node = place % torus_links_;
  return *std::find_if(torus_.begin(), torus_.end(),
                       [&](const TorusDimension& d) { return of_node < d.first_link + d.links; });
}

double Topology::bytes_per_second(LinkId link) const {
  const LinkKind kind = this->kind(link);
  const double rate = rate_[index_of(kind)];
  switch (kind) {
    case LinkKind::pcie_switch: {
      if (!wide_up_links_) return rate;
      const std::int64_t first_device = place(link) / 2 % pcie_switches_ * per_pcie_switch_;
      return rate * as_double(std::min(per_pcie_switch_, per_node_ - first_device));
    }
    case LinkKind::storage:
      return reads_ && (!writes_ || place(link) % 2 == kBack) ? storage_read_bytes_per_second_ : rate;
    case LinkKind::torus:
      return torus_dimension_of(place(link)).links == 1 ? 2 * rate : rate;
    case LinkKind::scale_up_pair: {
      if (link_map_.empty()) return rate;
      const auto [a, b] = pair_at(joined_pairs_[at(place(link) % std::ssize(joined_pairs_))], per_node_);
      return link_map_.bytes_per_second(a, b);
    }
    default:
      return rate;
  }
}

void Topology::append_name(LinkId link, std::string& name) const {
  const LinkKind kind = this->kind(link);
  const std::int64_t at = link - first_[index_of(kind)];
  const std::int64_t pair = at / 2;
  const char* const out_or_in = at % 2 == kThere ? ".out" : ".in";
  const char* const up_or_down = at % 2 == kThere ? ".up" : ".down";
  const auto device = [&](const char* what) {
    write(name, "node", pair / per_node_, ".gpu", pair % per_node_, what, out_or_in);
  };
  switch (kind) {
    case LinkKind::scale_up:
      return device(".scale_up");
    case LinkKind::scale_up_pair:
      if (intra_ == IntraFabric::direct_mesh) {
        const std::int64_t of_node = link_map_.empty() ? per_node_ * (per_node_ - 1) : std::ssize(joined_pairs_);
        const std::int64_t of_all = link_map_.empty() ? at % of_node : joined_pairs_[orrery::at(at % of_node)];
        const auto [a, b] = pair_at(of_all, per_node_);
        write(name, "node", at / of_node, ".gpu", std::min(a, b), "-gpu", std::max(a, b), a < b ? ".out" : ".in");
      } else {
        const std::int64_t pairs = per_node_ / 2, first = pair % pairs * 2;
        write(name, "node", pair / pairs, ".gpu", first, "-gpu", first + 1, out_or_in);
      }
      return;
    case LinkKind::pcie:
      return device(".pcie");
    case LinkKind::pcie_switch:
      return write(name, "node", pair / pcie_switches_, ".pcie_switch", pair % pcie_switches_, up_or_down);
    case LinkKind::host_memory:
      return write(name, "node", at, ".host_memory");
    case LinkKind::storage:
      if (writes_ && reads_) return write(name, "node", pair, ".storage", at % 2 == kThere ? ".write" : ".read");
      return write(name, "node", at, ".storage", writes_ ? ".write" : ".read");
    case LinkKind::nic:
      return write(name, "node", pair / nics_, ".nic", pair % nics_, out_or_in);
    case LinkKind::leaf:
      write(name, "leaf", pair / up_.ways);
      if (!sprayed_) write(name, ".spine", pair % up_.ways);
      return write(name, up_or_down);
    case LinkKind::global:
      if (sprayed_) {
        write(name, "group", pair, ".global", out_or_in);
      } else {
        const auto [a, b] = pair_at(at, leaves_);
        write(name, "group", std::min(a, b), "-group", std::max(a, b), a < b ? ".out" : ".in");
      }
      return;
    case LinkKind::torus: {
      const TorusDimension& d = torus_dimension_of(at);
      const bool forward = at % torus_links_ == d.first_link;
      return write(name, "node", at / torus_links_, ".dimension", d.dimension, forward ? ".forward" : ".backward");
    }
  }
}

std::string Topology::name(LinkId link) const {
  std::string text;
  append_name(link, text);
  return text;
}

std::vector<LinkId> Topology::find(std::string_view pattern) const {
  std::vector<LinkId> found;
  std::string name;
  for (std::int64_t i = 0; i < links(); ++i) {
    const auto link = static_cast<LinkId>(i);
    name.clear();
    append_name(link, name);
    if (matches(pattern, name) || matches(pattern, without_direction(name, kind(link)))) found.push_back(link);
  }
  return found;
}

std::string Topology::nearest_name(std::string_view pattern) const {
  // Names of a kind differ only in their numbers and directions: the first and the last link of each kind show both.
  std::vector<std::string> shapes;
  std::vector<LinkId> firsts, lasts;
  for (std::size_t k = 0; k < count_.size(); ++k) {
    if (count_[k] == 0) continue;
    const auto first = static_cast<LinkId>(first_[k]), last = static_cast<LinkId>(first_[k + 1] - 1);
    for (const LinkId link : {first, last}) {
      const std::string whole = name(link);
      for (const std::string_view text :
           {std::string_view(whole), without_direction(whole, static_cast<LinkKind>(k))}) {
        shapes.push_back(shape_of(text).text);
        firsts.push_back(first);
        lasts.push_back(last);
      }
    }
  }
  const Shape meant = shape_of(pattern);
  const std::string shape = orrery::nearest_name(meant.text, shapes);
  if (shape.empty()) return {};
  const auto i = static_cast<std::size_t>(std::find(shapes.begin(), shapes.end(), shape) - shapes.begin());
  std::string near = filled(shape, meant, shape_of(name(lasts[i])));
  return find(near).empty() ? name(firsts[i]) : near;  // two ends may have become equal
}

std::int64_t Topology::node_of(Endpoint end) const {
  using Kind = Endpoint::Kind;
  const bool device = end.kind == Kind::device || end.kind == Kind::leaf_switch || end.kind == Kind::spine;
  if (end.index < 0 || end.index >= (device ? devices() : nodes_))
    throw std::logic_error(fmt::format("no {} {} in the cluster", device ? "device" : "node", end.index));
  return device ? node_of(end.index) : end.index;
}

void Topology::route(Endpoint from, Endpoint to, std::vector<LinkId>& way, bool scale_up_first) const {
  using Kind = Endpoint::Kind;
  const std::int64_t from_node = node_of(from), to_node = node_of(to);
  if (from == to) return;
  if (from.kind == Kind::device && to.kind == Kind::device) {
    if (from_node == to_node) return route_in_node(from.index, to.index, way);
    return route_between_nodes(from.index, to.index, scale_up_first, way);
  }
  const auto of_fabric = [](Endpoint end) { return end.kind == Kind::leaf_switch || end.kind == Kind::spine; };
  if (of_fabric(from) || of_fabric(to)) return route_over_fabric_switches(from, to, way);
  if (from_node != to_node) throw std::logic_error("only devices send messages to other nodes");
  if (from.kind == Kind::scale_up_switch || to.kind == Kind::scale_up_switch)
    return route_to_or_from_switch(from, to, way);
  route_by_host(from, to, way);
}

void Topology::cross_switches(std::int64_t node, std::int64_t up, std::int64_t down, std::vector<LinkId>& way) const {
  if (up == down) return;
  way.push_back(link(LinkKind::pcie_switch, 2 * (node * pcie_switches_ + up) + kThere));
  way.push_back(link(LinkKind::pcie_switch, 2 * (node * pcie_switches_ + down) + kBack));
}

LinkId Topology::pair_link(std::int64_t node, std::int64_t from, std::int64_t to) const {
  const std::int64_t place = place_of_pair(from, to, per_node_);
  if (link_map_.empty()) return link(LinkKind::scale_up_pair, node * per_node_ * (per_node_ - 1) + place);
  const auto joined = std::lower_bound(joined_pairs_.begin(), joined_pairs_.end(), place) - joined_pairs_.begin();
  return link(LinkKind::scale_up_pair, node * std::ssize(joined_pairs_) + joined);
}

void Topology::route_in_node(std::int64_t from, std::int64_t to, std::vector<LinkId>& way) const {
  const std::int64_t node = node_of(from), a = from % per_node_, b = to % per_node_;
  if (intra_ == IntraFabric::nvlink_pairs && a / 2 == b / 2) {
    way.push_back(link(LinkKind::scale_up_pair, node * (per_node_ / 2 * 2) + a));
    return;
  }
  if (has(LinkKind::scale_up)) way.push_back(link(LinkKind::scale_up, 2 * from + kThere));
  if (!link_map_.empty()) {
    const auto passed = link_map_.way(a, b);
    for (std::size_t p = 0; p + 1 < passed.size(); ++p) way.push_back(pair_link(node, passed[p], passed[p + 1]));
  } else if (intra_ == IntraFabric::direct_mesh) {
    way.push_back(pair_link(node, a, b));
  }
  if (!joins_all_devices()) {
    way.push_back(link(LinkKind::pcie, 2 * from + kThere));
    cross_switches(node, a / per_pcie_switch_, b / per_pcie_switch_, way);
    way.push_back(link(LinkKind::pcie, 2 * to + kBack));
  }
  if (has(LinkKind::scale_up)) way.push_back(link(LinkKind::scale_up, 2 * to + kBack));
}

void Topology::route_between_nodes(std::int64_t from, std::int64_t to, bool scale_up_first,
                                   std::vector<LinkId>& way) const {
  const std::int64_t from_node = node_of(from), to_node = node_of(to), to_nic = nic_of(to);
  std::int64_t from_nic = nic_of(from);
  if (scale_up_first && from_nic != to_nic && fabric_ == FabricKind::rail_fat_tree && joins_all_devices()) {
    const std::int64_t on_rail = from_node * per_node_ + to % per_node_;
    route_in_node(from, on_rail, way);
    from = on_rail;
    from_nic = to_nic;
  }
  // A device and its NIC meet at their PCIe switch (GPUDirect); nothing passes the host. In a PCIe tree with fewer NICs
  // than switches, a NIC is behind the switch of the first device that uses it, and the way of other devices to it
  // passes both switches.
  const auto pass_switches = [&](std::int64_t device, std::int64_t nic, bool out) {
    if (!has(LinkKind::pcie_switch) || joins_all_devices()) return;
    const std::int64_t of_device = device % per_node_ / per_pcie_switch_,
                       of_nic = groups_of(nic * per_node_, nics_) / per_pcie_switch_;
    cross_switches(node_of(device), out ? of_device : of_nic, out ? of_nic : of_device, way);
  };
  if (has(LinkKind::pcie)) way.push_back(link(LinkKind::pcie, 2 * from + kThere));
  if (fabric_ == FabricKind::torus) {
    route_over_torus(from_node, to_node, way);
  } else {
    pass_switches(from, from_nic, true);
    way.push_back(link(LinkKind::nic, 2 * (from_node * nics_ + from_nic) + kThere));
    climb(from_node, from_nic, to_node, to_nic, way);
    way.push_back(link(LinkKind::nic, 2 * (to_node * nics_ + to_nic) + kBack));
    pass_switches(to, to_nic, false);
  }
  if (has(LinkKind::pcie)) way.push_back(link(LinkKind::pcie, 2 * to + kBack));
}

// From the leaf switch of one NIC to that of another.
void Topology::climb(std::int64_t from_node, std::int64_t from_nic, std::int64_t to_node, std::int64_t to_nic,
                     std::vector<LinkId>& way) const {
  if (!has(LinkKind::leaf) && !has(LinkKind::global)) return;
  const std::int64_t from_leaf = up_.leaf_of(from_node, from_nic), to_leaf = up_.leaf_of(to_node, to_nic);
  if (from_leaf == to_leaf) return;
  const LinkKind level = has(LinkKind::global) ? LinkKind::global : LinkKind::leaf;
  if (level == LinkKind::global && !sprayed_) {
    way.push_back(link(level, place_of_pair(from_leaf, to_leaf, leaves_)));
    return;
  }
  const std::int64_t spine = up_.way_to(to_node, to_nic);
  way.push_back(link(level, 2 * (from_leaf * up_.ways + spine) + kThere));
  way.push_back(link(level, 2 * (to_leaf * up_.ways + spine) + kBack));
}

// Dimension by dimension, each in the shorter direction. If both directions are equally long, even coordinates go
// forward and odd ones backward, so that all-to-all traffic loads all links equally.
void Topology::route_over_torus(std::int64_t from_node, std::int64_t to_node, std::vector<LinkId>& way) const {
  std::int64_t node = from_node;
  for (const TorusDimension& d : torus_) {
    std::int64_t here = from_node / d.stride % d.length;
    const std::int64_t there = to_node / d.stride % d.length;
    const std::int64_t ahead = (there - here + d.length) % d.length;
    const std::int64_t behind = (d.length - ahead) % d.length;
    const bool forward = d.links == 1 || (ahead == behind ? here % 2 == 0 : ahead < behind);
    for (std::int64_t hop = 0; hop < std::min(ahead, behind); ++hop) {
      way.push_back(link(LinkKind::torus, node * torus_links_ + d.first_link + (forward ? 0 : 1)));
      const std::int64_t next = (here + (forward ? 1 : d.length - 1)) % d.length;
      node += (next - here) * d.stride;
      here = next;
    }
  }
}

void Topology::route_to_or_from_switch(Endpoint from, Endpoint to, std::vector<LinkId>& way) const {
  const bool up = from.kind == Endpoint::Kind::device, down = to.kind == Endpoint::Kind::device;
  if (intra_ != IntraFabric::nvswitch || !has(LinkKind::scale_up))
    throw std::logic_error("the nodes have no scale-up switch");
  if (!up && !down) throw std::logic_error("a scale-up switch joins the devices of its node, nothing else");
  way.push_back(link(LinkKind::scale_up, up ? 2 * from.index + kThere : 2 * to.index + kBack));
}

void Topology::route_over_fabric_switches(Endpoint from, Endpoint to, std::vector<LinkId>& way) const {
  using Kind = Endpoint::Kind;
  const auto between = [&](Kind a, Kind b) { return from.kind == a && to.kind == b; };
  const std::int64_t at = from.index, nic = nics_ * node_of(at) + nic_of(at);
  if (between(Kind::device, Kind::leaf_switch) && from.index == to.index) {
    if (has(LinkKind::pcie)) way.push_back(link(LinkKind::pcie, 2 * at + kThere));
    if (has(LinkKind::nic)) way.push_back(link(LinkKind::nic, 2 * nic + kThere));
  } else if (between(Kind::leaf_switch, Kind::device) && from.index == to.index) {
    if (has(LinkKind::nic)) way.push_back(link(LinkKind::nic, 2 * nic + kBack));
    if (has(LinkKind::pcie)) way.push_back(link(LinkKind::pcie, 2 * at + kBack));
  } else if (between(Kind::leaf_switch, Kind::spine) || between(Kind::spine, Kind::leaf_switch)) {
    if (!has(LinkKind::leaf)) throw std::logic_error("one leaf reaches all nodes");
    const bool up = to.kind == Kind::spine;
    const std::int64_t leaf = leaf_of(up ? from.index : to.index), spine_to = up ? to.index : from.index;
    way.push_back(link(LinkKind::leaf, 2 * (leaf * up_.ways + up_.way_to(node_of(spine_to), nic_of(spine_to))) +
                                           (up ? kThere : kBack)));
  } else {
    throw std::logic_error("the fabric's switches are joined to each other and to their NICs' devices");
  }
}

void Topology::route_by_host(Endpoint from, Endpoint to, std::vector<LinkId>& way) const {
  using Kind = Endpoint::Kind;
  const auto pass = [&](Endpoint end, std::int64_t direction) {
    if (end.kind == Kind::host_memory) {
      if (!has(LinkKind::host_memory))
        lacks("/node/host_memory_bytes_per_second", "the rate of the host memory that a message passes");
      way.push_back(link(LinkKind::host_memory, end.index));
    } else if (end.kind == Kind::storage) {
      const bool write = direction == kBack;  // away from the host
      if (write && !writes_)
        lacks("/node/nvme_write_bytes_per_second", "the rate of the storage that a message enters");
      if (!write && !reads_) lacks("/node/nvme_read_bytes_per_second", "the rate of the storage that a message leaves");
      const std::int64_t links = (writes_ ? 1 : 0) + (reads_ ? 1 : 0);
      way.push_back(link(LinkKind::storage, end.index * links + (write ? 0 : links - 1)));
    } else {
      if (!has(LinkKind::pcie)) lacks("/device/pcie_bytes_per_second", "the rate between host and device");
      const std::int64_t pcie_switch = end.index % per_node_ / per_pcie_switch_;
      const LinkId device = link(LinkKind::pcie, 2 * end.index + direction);
      const LinkId to_host =
          link(LinkKind::pcie_switch, 2 * (node_of(end.index) * pcie_switches_ + pcie_switch) + direction);
      way.push_back(direction == kThere ? device : to_host);
      way.push_back(direction == kThere ? to_host : device);
    }
  };
  pass(from, kThere);
  pass(to, kBack);
}

}  // namespace orrery
