#include "sim/des/traffic.h"

#include <numeric>

#include "sim/cost/fabric_traffic.h"
#include "sim/des/fair_flows.h"

namespace orrery {
namespace {

constexpr std::int32_t kInNoGroup = -1;

void transpose(std::vector<double>& matrix, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < i; ++j) std::swap(matrix[i * n + j], matrix[j * n + i]);
}

// Edges between the same ends count together: channels of a ring, both trees.
void merge_parallel_edges(FlowGraph& graph) {
  const auto key = [](const FlowEdge& e) {
    return std::tuple(e.phase, e.from.member, e.from.at_switch, e.from.fabric, e.to.member, e.to.at_switch, e.to.fabric,
                      e.scale_up_first);
  };
  for (FlowEdge& e : graph.edges) {
    e.bytes *= e.messages;
    e.messages = 1;
    e.lag = e.afters = 0;
  }
  std::stable_sort(graph.edges.begin(), graph.edges.end(),
                   [&](const FlowEdge& a, const FlowEdge& b) { return key(a) < key(b); });
  std::size_t kept = 0;
  for (const FlowEdge& e : graph.edges) {
    if (e.bytes <= 0) continue;
    if (kept > 0 && key(graph.edges[kept - 1]) == key(e))
      graph.edges[kept - 1].bytes += e.bytes;
    else
      graph.edges[kept++] = e;
  }
  graph.edges.resize(kept);
  graph.after.clear();
}

}  // namespace

Traffic::Traffic(const Topology& topology, const Cluster& cluster, bool exact)
    : topology_(topology), cluster_(cluster), exact_(exact), marked_(at(topology.links()), 0) {}

std::int32_t Traffic::add_job(const Mesh& mesh, const JobNodes& placement) {
  Job job;
  job.mesh = mesh;
  job.placement = placement;
  job.first_vertex = jobs_.empty() ? 0 : jobs_.back().first_vertex + jobs_.back().mesh.ranks();
  job.stages = mesh.size(MeshAxis::pp);
  job.stage_stride = mesh.stride(MeshAxis::pp);
  job.marks.assign(at(mesh.ranks()), 0);
  jobs_.push_back(std::move(job));
  return static_cast<std::int32_t>(jobs_.size() - 1);
}

std::int64_t Traffic::ranks() const { return jobs_.back().first_vertex + jobs_.back().mesh.ranks(); }

namespace {
template <class T>
std::int32_t find_or_add(std::vector<T>& all, const T& wanted) {
  const auto found = std::find(all.begin(), all.end(), wanted);
  if (found != all.end()) return static_cast<std::int32_t>(found - all.begin());
  all.push_back(wanted);
  return static_cast<std::int32_t>(all.size() - 1);
}
}  // namespace

std::int32_t Traffic::groups(std::int32_t job, MeshGroup group) {
  return find_or_add(communicators_, Communicator{.job = job, .group = group});
}
std::int32_t Traffic::of_stages(std::int32_t job, std::vector<std::int64_t> stages) {
  return find_or_add(communicators_, Communicator{.job = job, .stages = std::move(stages)});
}
std::int32_t Traffic::pattern(const PatternKind& kind) { return find_or_add(patterns_, kind); }

void Traffic::mark_rank(std::int32_t job, std::int64_t rank, std::uint64_t mark) {
  std::uint64_t& m = jobs_[at(job)].marks[at(rank)];
  m = mix_colour(m, mark);
}
void Traffic::mark_link(LinkId link, std::uint64_t mark) {
  link_marks_.emplace_back(link, mark);
  marked_[at(link)] = 1;
}
std::int32_t Traffic::add_background(LinkId link) {
  marked_[at(link)] = 1;
  background_.push_back(link);
  return static_cast<std::int32_t>(background_.size() - 1);
}

void Traffic::enumerate(const Communicator& c, Groups& groups) const {
  const Job& job = jobs_[at(c.job)];
  if (c.stages.empty()) {
    groups.members = members_of_groups(job.mesh, c.group);
    groups.size = job.mesh.size(c.group);
  } else {
    for (std::int64_t rank = 0; rank < job.mesh.ranks(); ++rank)
      if (job.stage_of(rank) == c.stages.front())
        for (const std::int64_t stage : c.stages)
          groups.members.push_back(rank + (stage - c.stages.front()) * job.stage_stride);
    groups.size = std::ssize(c.stages);
  }
  groups.count = std::ssize(groups.members) / groups.size;
  groups.group_of.assign(at(job.mesh.ranks()), kInNoGroup);
  for (std::size_t i = 0; i < groups.members.size(); ++i)
    groups.group_of[at(groups.members[i])] = static_cast<std::int32_t>(std::int64_t(i) / groups.size);
}

Traffic::Flow& Traffic::add_flow(std::int32_t pattern, std::int64_t group, Endpoint from, Endpoint to,
                                 bool scale_up_first) {
  Flow& flow = flows_.emplace_back();
  flow.pattern = pattern;
  flow.group_vertex =
      static_cast<std::uint32_t>(groups_[at(patterns_[at(pattern)].communicator)].first_vertex + at(group));
  flow.way = static_cast<std::uint32_t>(ways_.size());
  topology_.route(from, to, ways_, scale_up_first);
  flow.links = static_cast<std::uint32_t>(ways_.size()) - flow.way;
  return flow;
}

void Traffic::lay_copies(std::int32_t p) {
  const PatternKind& kind = patterns_[at(p)];
  const Groups& groups = groups_[at(kind.communicator)];
  const Job& job = job_of(kind);
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t device = device_of(job, groups.members[at(g)]);
    const auto end = [&](Place place) -> Endpoint {
      if (place == Place::device) return Endpoint::device(device);
      return {place == Place::host ? Endpoint::Kind::host_memory : Endpoint::Kind::storage, topology_.node_of(device)};
    };
    add_flow(p, g, end(kind.way.from), end(kind.way.to), false).share = 1;
  }
}

void Traffic::lay_pattern(std::int32_t p) {
  const PatternKind& kind = patterns_[at(p)];
  if (is_copy(kind.kind)) return lay_copies(p);
  const Groups& groups = groups_[at(kind.communicator)];
  const Job& job = job_of(kind);
  const std::int64_t per_node = cluster_.node.devices;
  const bool switched = cluster_.node.intra == IntraFabric::nvswitch;
  const LinkMap& map = topology_.link_map();
  FlowOptions options;
  if (kind.chunks > 0) options.chunks = kind.chunks;
  options.rail_aligned =
      kind.kind == OpKind::all_to_all && switched && cluster_.fabric.kind == FabricKind::rail_fat_tree;
  options.by_node = !exact_ && kind.rows < 0 && sends_by_node(kind.kind, groups.size);
  // Tokens that travel once return over the same edges; others by an all-to-all of their own.
  const bool by_token = kind.algorithm == CollectiveAlgorithm::by_token, turned = kind.returns && by_token;
  std::vector<double> rows;
  const Load* const load = kind.rows >= 0 ? &rows_[at(kind.rows)] : nullptr;
  const bool in_parts = load != nullptr && load->ranks > groups.size;
  if (load != nullptr && !in_parts) {
    rows = load->rows;
    if (kind.returns && !by_token) transpose(rows, at(groups.size));
  }

  // Groups that lie alike in their nodes send alike, for the same places of a load.
  std::map<std::vector<std::int64_t>, FlowGraph> graphs;
  std::vector<std::int64_t> devices(at(groups.size)), places(devices.size());
  std::vector<std::int64_t> leaves;  // of the devices, by their NICs
  for (std::int64_t g = 0; g < groups.count; ++g) {
    for (std::int64_t i = 0; i < groups.size; ++i) {
      const std::int64_t place = g * groups.size + (kind.reversed ? groups.size - 1 - i : i);
      devices[at(i)] = device_of(job, groups.members[at(place)]);
    }
    // Where switches of the fabric take part, absolute places matter.
    const bool over_switches = kind.algorithm == CollectiveAlgorithm::collnet;
    const std::int64_t first = over_switches ? 0 : topology_.node_of(devices[0]) * per_node;
    for (std::size_t i = 0; i < devices.size(); ++i) places[i] = devices[i] - first;
    if (over_switches) {
      leaves.resize(devices.size());
      std::transform(devices.begin(), devices.end(), leaves.begin(), [&](auto d) { return topology_.leaf_of(d); });
    }
    if (in_parts) {
      std::vector<std::int64_t> of_load;
      for (std::int64_t i = 0; i < groups.size; ++i)
        of_load.push_back(job.mesh.coordinate(groups.members[at(g * groups.size + i)], load->group));
      rows = load_of_places(*load, of_load).rows;
      places.resize(devices.size());
      places.insert(places.end(), of_load.begin(), of_load.end());
    }
    const auto [found, is_new] = graphs.try_emplace(places);
    FlowGraph& graph = found->second;
    if (is_new) {
      const GroupMembers members{.devices = devices,
                                 .devices_per_node = per_node,
                                 .full_mesh = cluster_.node.intra == IntraFabric::direct_mesh && map.empty(),
                                 .links = map.empty() ? nullptr : &map,
                                 .both_directions = cluster_.fabric.kind == FabricKind::torus,
                                 .order = cluster_.placement.ring_order,
                                 .leaves = leaves,
                                 .in_switch_reduction = kind.in_switch,
                                 .tokens = kind.tokens,
                                 .rows = rows};
      collective_flows(kind.kind, kind.algorithm, members, options, graph);
      if (turned)
        for (FlowEdge& e : graph.edges) std::swap(e.from, e.to);
      if (!exact_) merge_parallel_edges(graph);
    }
    const auto first_flow = static_cast<std::uint32_t>(flows_.size());
    for (const FlowEdge& e : graph.edges) {
      const auto end = [&](const FlowEnd& f) {
        const std::int64_t device = devices[at(f.member)];
        if (f.fabric != FlowEnd::Fabric::none)
          return Endpoint{f.fabric == FlowEnd::Fabric::leaf ? Endpoint::Kind::leaf_switch : Endpoint::Kind::spine,
                          device};
        return f.at_switch ? Endpoint{Endpoint::Kind::scale_up_switch, topology_.node_of(device)}
                           : Endpoint::device(device);
      };
      Flow& flow = add_flow(p, g, end(e.from), end(e.to), e.scale_up_first);
      flow.share = e.bytes;
      flow.messages = e.messages;
      flow.lag = e.lag;
      flow.phase = e.phase;
      flow.leaves_node = topology_.node_of(devices[at(e.from.member)]) != topology_.node_of(devices[at(e.to.member)]) ||
                         e.from.fabric != FlowEnd::Fabric::none || e.to.fabric != FlowEnd::Fabric::none;
      flow.first_after = static_cast<std::uint32_t>(afters_.size());
      flow.afters = static_cast<std::uint16_t>(e.afters);
      for (const std::int32_t a : graph.after_of(e)) afters_.push_back(first_flow + static_cast<std::uint32_t>(a));
    }
  }
}

void Traffic::lay_patterns() {
  groups_.resize(communicators_.size());
  std::size_t vertices = at(ranks());
  for (std::size_t c = 0; c < communicators_.size(); ++c) {
    enumerate(communicators_[c], groups_[c]);
    groups_[c].first_vertex = vertices;
    vertices += at(groups_[c].count);
  }
  for (std::size_t p = 0; p < patterns_.size(); ++p) lay_pattern(static_cast<std::int32_t>(p));
  total_flows_ = static_cast<std::int64_t>(flows_.size());
  never_binds_.assign(at(topology_.links()), 0);
}

void Traffic::free_flows() {
  flows_ = {};
  ways_ = {};
  afters_ = {};
}

std::uint32_t Traffic::rank_class(std::int32_t job, std::int64_t rank) const {
  return class_of_rank_[at(jobs_[at(job)].first_vertex + rank)];
}
bool Traffic::uses(LinkId link) const { return link_class(link) < link_classes_.size(); }
std::uint32_t Traffic::link_class(LinkId link) const { return class_of_link_[at(link)]; }
std::uint32_t Traffic::group_class(std::int32_t communicator, std::int64_t rank) const {
  const Groups& groups = groups_[at(communicator)];
  const std::int32_t g = groups.group_of[at(rank)];
  return class_of_group_[groups.first_vertex + at(g) - at(ranks())];
}
std::span<const std::uint32_t> Traffic::flows(std::int32_t pattern, std::uint32_t group_class) const {
  const auto found = flows_of_.find({pattern, group_class});
  if (found == flows_of_.end()) return {};
  return found->second;
}

Traffic::Alone Traffic::measure_alone(const std::vector<std::uint32_t>& flow_classes,
                                      std::span<const char> binds) const {
  std::vector<std::uint32_t> bound;
  std::vector<double> bytes, left, seconds, over(link_classes_.size(), 0);  // over: by link class
  for (const std::uint32_t f : flow_classes) {
    const FlowClass& flow = flow_classes_[f];
    const double of_flow = flow.share * flow.messages;
    const auto is_bound = [&](const LinkTraffic& load) { return binds[load.link_class] != 0; };
    if (!(of_flow > 0) || std::ranges::none_of(flow.loads, is_bound)) continue;
    bound.push_back(f);
    bytes.push_back(of_flow);
    for (const LinkTraffic& load : flow.loads) over[load.link_class] += load.flows * of_flow;
  }
  Alone alone;
  if (bound.empty()) return alone;
  const FairFlows flows(flow_classes_, link_classes_, binds, bound, bytes);
  flows.run(left, seconds);
  alone.fair = std::ranges::max(seconds);
  for (const std::uint32_t l : flows.links())
    alone.busiest = std::max(alone.busiest, over[l] / link_classes_[l].bytes_per_second);
  return alone;
}

void Traffic::measure_patterns() {
  std::vector<std::vector<std::uint32_t>> of_pattern(patterns_.size());
  for (std::uint32_t f = 0; f < flow_classes_.size(); ++f)
    if (flow_classes_[f].pattern != kBackground) of_pattern[at(flow_classes_[f].pattern)].push_back(f);
  alone_inside_.assign(patterns_.size(), {});
  alone_outside_ = alone_inside_;
  const auto add = [](Alone& to, const Alone& more) {
    to.fair += more.fair;
    to.busiest += more.busiest;
  };
  const std::vector<char> anywhere(link_classes_.size(), 1);
  std::vector<char> of_nodes;
  for (const LinkClass& l : link_classes_) of_nodes.push_back(l.kind == LinkKind::nic || l.kind == LinkKind::pcie);
  for (std::size_t p = 0; p < patterns_.size(); ++p) {
    for (int phase = 0; phase < phases_of(of_pattern[p]); ++phase) {
      std::vector<std::uint32_t> inside, outside;
      double out_of_nodes = 0;
      for (const std::uint32_t f : of_pattern[p]) {
        const FlowClass& flow = flow_classes_[f];
        if (flow.phase != phase) continue;
        (flow.leaves_node ? outside : inside).push_back(f);
        if (flow.leaves_node) out_of_nodes += flow.share * flow.messages * static_cast<double>(flow.flows);
      }
      add(alone_inside_[p], measure_alone(inside, anywhere));
      if (cluster_.fabric.kind == FabricKind::torus && out_of_nodes > 0) {
        // Links of a torus also carry other nodes' traffic; a node's share is what it sends.
        const std::int64_t ranks_of_job = job_of(patterns_[p]).mesh.ranks();
        const double nodes = static_cast<double>((ranks_of_job + cluster_.node.devices - 1) / cluster_.node.devices);
        const double seconds = out_of_nodes / nodes / cluster_.inter_node_bytes_per_second();
        add(alone_outside_[p], {seconds, seconds});
      } else {
        add(alone_outside_[p], measure_alone(outside, of_nodes));
      }
    }
  }
}

}  // namespace orrery
