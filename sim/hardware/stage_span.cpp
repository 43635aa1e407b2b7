#include "sim/hardware/stage_span.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace orrery {
namespace {

// Offsets of ranks over the digits for which `wanted` holds, ascending for ascending strides.
template <class Wanted>
std::vector<std::int64_t> offsets(const Mesh& mesh, Wanted&& wanted) {
  std::vector<std::int64_t> result{0};
  int index = 0;
  for (const Digit& digit : mesh.digits()) {
    if (!wanted(index++)) continue;
    const std::size_t inner = result.size();
    for (std::int64_t c = 1; c < digit.size; ++c)
      for (std::size_t i = 0; i < inner; ++i) result.push_back(result[i] + c * digit.stride);
  }
  return result;
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

bool stages_lie_alike(const Mesh& mesh, const Node& node) {
  const std::int64_t devices_per_node = node.devices;
  const std::int64_t stages = mesh.size(MeshAxis::pp);
  if (stages == 1 || mesh.stride(MeshAxis::pp) % devices_per_node == 0) return true;
  // Node boundaries fall between coordinates of one digit, in equal blocks: every node holds the same piece of the
  // mesh.
  return std::all_of(mesh.digits().begin(), mesh.digits().end(), [&](const Digit& digit) {
    if (digit.stride >= devices_per_node || digit.stride * digit.size <= devices_per_node) return true;
    const std::int64_t within = devices_per_node / digit.stride;
    return within * digit.stride == devices_per_node && digit.size % within == 0;
  });
}

std::vector<StageSpan> spans_by_stage(const Mesh& mesh, MeshGroup group, const Node& node) {
  const std::int64_t per_node = node.devices, nics = std::clamp<std::int64_t>(node.nics, 1, per_node);
  const auto stages = static_cast<std::size_t>(mesh.size(MeshAxis::pp));
  std::vector<StageSpan> result(stages);
  std::int64_t stride = 0;
  for (int d = 0; d < static_cast<int>(mesh.digits().size()) && stride == 0; ++d)
    if (group.contains(d)) stride = mesh.digits()[static_cast<std::size_t>(d)].stride;
  for (StageSpan& s : result) {
    s.span.ranks = mesh.size(group);
    s.span.stride = std::max<std::int64_t>(stride, 1);
  }
  if (stride == 0) return result;

  const std::vector<std::int64_t> members = offsets(mesh, [&](int d) { return group.contains(d); });
  std::map<std::int64_t, std::map<std::int32_t, double>> leaving;  // groups: by NIC, by stage
  for (StageSpan& s : result) s.span.ranks_per_node = 0;
  struct Touched {
    std::int64_t node = 0;
    std::size_t first = 0, ranks = 0;  // range of `members`
  };
  std::vector<Touched> touched;
  for (const std::int64_t first : offsets(mesh, [&](int d) { return !group.contains(d); })) {
    const std::int64_t stage = mesh.coordinate(first, MeshAxis::pp);
    GroupSpan& span = result[static_cast<std::size_t>(stage)].span;
    touched.clear();
    for (std::size_t m = 0; m < members.size(); ++m) {  // ascending: the members on a node follow each other
      const std::int64_t at = (first + members[m]) / per_node;
      if (touched.empty() || touched.back().node != at) touched.push_back({at, m, 0});
      ++touched.back().ranks;
    }
    const auto by_ranks = [](const Touched& a, const Touched& b) { return a.ranks < b.ranks; };
    const auto [fewest, widest] = std::minmax_element(touched.begin(), touched.end(), by_ranks);
    const auto most = static_cast<std::int64_t>(widest->ranks);
    const auto nodes = static_cast<std::int64_t>(touched.size());
    if (nodes > span.nodes) span.ranks_per_node = 0;
    if (nodes >= span.nodes) span.ranks_per_node = std::max(span.ranks_per_node, most);
    span.nodes = std::max(span.nodes, nodes);
    if (nodes == 1) continue;
    // There are as many rings, or halves of trees, as the node with the fewest ranks has ranks.
    const double of_channel = static_cast<double>(nics) / static_cast<double>(fewest->ranks);
    for (const Touched& t : touched)
      for (std::size_t channel = 0; channel < fewest->ranks; ++channel) {
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
