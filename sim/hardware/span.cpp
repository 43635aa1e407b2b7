#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "sim/hardware/stage_span.h"

namespace orrery {
namespace {

// The number of a digit's coordinates on one node; 0: nodes do not cut the digit into equal blocks.
std::int64_t on_one_node(const Digit& digit, std::int64_t devices_per_node) {
  if (digit.stride >= devices_per_node) return 1;
  if (digit.stride * digit.size <= devices_per_node) return digit.size;
  const std::int64_t within = devices_per_node / digit.stride;
  return within * digit.stride == devices_per_node && digit.size % within == 0 ? within : 0;
}

// The usual case: node boundaries fall between coordinates of one digit, in equal blocks. Every node then holds the
// same piece of the mesh, and every group has the same share of it. Returns false in other cases.
bool aligned_span(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node, GroupSpan& span) {
  span = GroupSpan{};
  std::int64_t other_groups = 1;  // other groups on a node
  int index = 0;
  for (const Digit& digit : mesh.digits()) {
    const std::int64_t within = on_one_node(digit, devices_per_node);
    if (within == 0) return false;
    if (group.contains(index++)) {
      if (span.ranks == 1) span.stride = digit.stride;
      span.ranks *= digit.size;
      span.ranks_per_node *= within;
      span.nodes *= digit.size / within;
    } else {
      other_groups *= within;
    }
  }
  if (span.nodes > 1) span.groups_sharing_nics = other_groups;  // all groups of a node leave it
  return true;
}

// The ranks of a group on one node: a range of its members.
struct PartOnNode {
  std::int64_t node = 0;
  std::size_t first = 0, ranks = 0;
};
// `members`: offsets from the group's first rank, ascending, so that those on a node follow each other.
void find_parts(std::int64_t first, const std::vector<std::int64_t>& members, std::int64_t devices_per_node,
                std::vector<PartOnNode>& parts) {
  parts.clear();
  for (std::size_t m = 0; m < members.size(); ++m) {
    const std::int64_t node = (first + members[m]) / devices_per_node;
    if (parts.empty() || parts.back().node != node) parts.push_back({node, m, 0});
    ++parts.back().ranks;
  }
}

// The span of a group that lies on one node, until others are met.
GroupSpan span_without_nodes(const Mesh& mesh, MeshGroup group) {
  GroupSpan span{.ranks = mesh.size(group)};
  if (span.ranks == 1) return span;
  span.ranks_per_node = 0;
  int digit = 0;
  while (!group.contains(digit)) ++digit;
  span.stride = mesh.digits()[static_cast<std::size_t>(digit)].stride;
  return span;
}

// Widens a span to that of another group if that one is worse.
void take(const std::vector<PartOnNode>& parts, GroupSpan& span) {
  const auto nodes = static_cast<std::int64_t>(parts.size());
  if (nodes < span.nodes) return;
  if (nodes > span.nodes) span.ranks_per_node = span.fewest_per_node = 0;
  span.nodes = nodes;
  for (const PartOnNode& part : parts) {
    const auto ranks = static_cast<std::int64_t>(part.ranks);
    span.ranks_per_node = std::max(span.ranks_per_node, ranks);
    span.fewest_per_node = span.fewest_per_node == 0 ? ranks : std::min(span.fewest_per_node, ranks);
  }
}

// For any other mesh, by counting: proportional to its ranks (0.6 ms for 16384).
GroupSpan counted_span(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node) {
  GroupSpan span = span_without_nodes(mesh, group);
  if (span.ranks == 1) return span;
  const std::vector<std::int64_t> members = mesh.offsets(group);
  // By node: number of groups.
  std::vector<std::int64_t> leaving(static_cast<std::size_t>((mesh.ranks() - 1) / devices_per_node + 1), 0);
  std::vector<PartOnNode> parts;
  for (const std::int64_t first : mesh.offsets(mesh.digits_beside(group))) {
    find_parts(first, members, devices_per_node, parts);
    take(parts, span);
    if (parts.size() > 1)
      for (const PartOnNode& part : parts) ++leaving[static_cast<std::size_t>(part.node)];
  }
  span.groups_sharing_nics = std::max<std::int64_t>(1, *std::max_element(leaving.begin(), leaving.end()));
  return span;
}

// The mean rate over all subsets of the other stages, each of which is present for its share of the time; 1: alone. It
// sums over numbers of groups, not over subsets: if many stages share a NIC, there are too many subsets, but few such
// sums.
double mean_rate(const SharedNic& nic, double most, std::span<const double> busy) {
  std::map<double, double> share{{nic.groups, 1}};  // share of the time by number of groups on the NIC
  for (const SharedNic::Others& other : nic.others) {
    const double there = busy[static_cast<std::size_t>(other.stage)];
    if (there <= 0) continue;
    std::map<double, double> with;
    for (const auto& [groups, part] : share) {
      with[groups + other.groups] += there * part;
      if (there < 1) with[groups] += (1 - there) * part;
    }
    share.swap(with);
  }
  double rate = 0;
  for (const auto& [groups, part] : share) rate += part * most / std::max(most, groups);
  return rate;
}

}  // namespace

GroupSpan span_of(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node) {
  GroupSpan span;
  return aligned_span(mesh, group, devices_per_node, span) ? span : counted_span(mesh, group, devices_per_node);
}

CrossingGroups crossing_groups(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node) {
  CrossingGroups result{.groups = mesh.ranks() / mesh.size(group)};
  if (GroupSpan span; aligned_span(mesh, group, devices_per_node, span)) {
    result.crossing = span.nodes > 1 ? result.groups : 0;
    return result;
  }
  const std::int64_t last = mesh.offsets(group).back();
  for (const std::int64_t first : mesh.offsets(mesh.digits_beside(group)))
    result.crossing += first / devices_per_node != (first + last) / devices_per_node;
  return result;
}

bool stages_lie_alike(const Mesh& mesh, const Node& node) {
  if (mesh.size(MeshAxis::pp) == 1 || mesh.stride(MeshAxis::pp) % node.devices == 0) return true;
  // Otherwise every node must hold the same piece of the mesh.
  return std::ranges::all_of(mesh.digits(), [&](const Digit& digit) { return on_one_node(digit, node.devices) > 0; });
}

std::vector<StageSpan> spans_by_stage(const Mesh& mesh, MeshGroup group, const Node& node) {
  const std::int64_t per_node = node.devices, nics = std::clamp<std::int64_t>(node.nics, 1, per_node);
  const auto stages = static_cast<std::size_t>(mesh.size(MeshAxis::pp));
  std::vector<StageSpan> result(stages);
  result.front().span = span_without_nodes(mesh, group);
  for (StageSpan& s : result) s.span = result.front().span;
  if (result.front().span.ranks == 1) return result;

  const std::vector<std::int64_t> members = mesh.offsets(group);
  std::map<std::int64_t, std::map<std::int32_t, double>> leaving;  // groups: by NIC, by stage
  std::vector<PartOnNode> parts;
  for (const std::int64_t first : mesh.offsets(mesh.digits_beside(group))) {
    const std::int64_t stage = mesh.coordinate(first, MeshAxis::pp);
    find_parts(first, members, per_node, parts);
    take(parts, result[static_cast<std::size_t>(stage)].span);
    if (parts.size() == 1) continue;
    // There are as many rings, or halves of trees, as the node with the fewest ranks has ranks.
    const std::size_t channels = std::ranges::min(parts, {}, &PartOnNode::ranks).ranks;
    const double of_channel = static_cast<double>(nics) / static_cast<double>(channels);
    for (const PartOnNode& t : parts)
      for (std::size_t channel = 0; channel < channels; ++channel) {
        const std::int64_t device = (first + members[t.first + channel]) % per_node;
        leaving[t.node * nics + device * nics / per_node][static_cast<std::int32_t>(stage)] += of_channel;
      }
  }
  constexpr double kRounding = 1e-9;
  for (const auto& [nic, by_stage] : leaving)
    for (const auto& [stage, groups] : by_stage) {
      StageSpan& s = result[static_cast<std::size_t>(stage)];
      s.span.groups_sharing_nics =
          std::max(s.span.groups_sharing_nics, static_cast<std::int64_t>(std::ceil(groups - kRounding)));
      if (by_stage.size() == 1) continue;
      SharedNic& shared = s.shared.emplace_back();
      shared.groups = groups;
      for (const auto& [other, of_other] : by_stage)
        if (other != stage) shared.others.push_back({other, of_other});
    }
  return result;
}

void StageSpans::set_mesh(const Mesh& mesh, const Node& node) {
  mesh_ = mesh;
  node_ = &node;
  known_.clear();
}

const StageSpan& StageSpans::of(MeshGroup group, std::int64_t stage) {
  auto at = std::find_if(known_.begin(), known_.end(), [&](const auto& known) { return known.first == group; });
  if (at == known_.end()) at = known_.insert(at, {group, spans_by_stage(mesh_, group, *node_)});
  return at->second[static_cast<std::size_t>(stage)];
}

double slowdown_by_others(const StageSpan& span, std::span<const double> busy) {
  double slowest = 1;
  const auto most = static_cast<double>(span.span.groups_sharing_nics);
  for (const SharedNic& nic : span.shared) slowest = std::max(slowest, 1 / mean_rate(nic, most, busy));
  return slowest;
}

}  // namespace orrery
