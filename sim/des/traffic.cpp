#include "sim/des/traffic.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr std::int32_t kNone = -1;
// Kinds of vertices, so that no two of different kind share a colour.
enum Salt : std::uint64_t {
  kRankSalt = 1,
  kGroupSalt,
  kFlowSalt,
  kReadySalt,
  kArrivedSalt,
  kLinkSalt,
  kBackgroundSalt
};

// Beyond this many members an all-to-all sends to nodes instead of to each of their devices (FlowOptions::by_node).
constexpr std::int64_t kMostSinglePartners = 64;

// Edges between the same ends count together: channels of a ring, both trees.
void merge_parallel_edges(FlowGraph& graph) {
  const auto key = [](const FlowEdge& e) {
    return std::tuple(e.phase, e.from.member, e.from.at_switch, e.to.member, e.to.at_switch, e.scale_up_first);
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

bool is_copy_kind(OpKind kind) { return kind == OpKind::copy_to_host || kind == OpKind::copy_to_device; }

}  // namespace

Traffic::Traffic(const Topology& topology, const Cluster& cluster, bool exact)
    : topology_(topology), cluster_(cluster), exact_(exact), marked_(static_cast<std::size_t>(topology.links()), 0) {}

std::int32_t Traffic::add_job(const Mesh& mesh, const Placement& placement) {
  Job job;
  job.mesh = mesh;
  job.placement = placement;
  job.first_vertex = jobs_.empty() ? 0 : jobs_.back().first_vertex + jobs_.back().mesh.ranks();
  job.stages = mesh.size(MeshAxis::pp);
  job.stage_stride = mesh.stride(MeshAxis::pp);
  job.marks.assign(static_cast<std::size_t>(mesh.ranks()), 0);
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

std::int32_t Traffic::groups(std::int32_t job, MeshAxes axes) {
  return find_or_add(communicators_, Communicator{.job = job, .how = 0, .axes = axes});
}
std::int32_t Traffic::pairs(std::int32_t job, std::int64_t from_stage, std::int64_t to_stage) {
  return find_or_add(communicators_,
                     Communicator{.job = job, .how = 1, .axes = {}, .from_stage = from_stage, .to_stage = to_stage});
}
std::int32_t Traffic::singles(std::int32_t job) {
  return find_or_add(communicators_, Communicator{.job = job, .how = 2, .axes = {}});
}

std::int32_t Traffic::pattern(const PatternKind& kind) {
  for (std::size_t p = 0; p < patterns_.size(); ++p)
    if (patterns_[p].kind == kind) return static_cast<std::int32_t>(p);
  patterns_.push_back({.kind = kind, .inside = {}, .outside = {}});
  return static_cast<std::int32_t>(patterns_.size() - 1);
}

void Traffic::mark_rank(std::int32_t job, std::int64_t rank, std::uint64_t mark) {
  std::uint64_t& m = jobs_[static_cast<std::size_t>(job)].marks[static_cast<std::size_t>(rank)];
  m = mix_colour(m, mark);
}
void Traffic::mark_link(LinkId link, std::uint64_t mark) {
  link_marks_.emplace_back(link, mark);
  marked_[static_cast<std::size_t>(link)] = 1;
}
std::int32_t Traffic::add_background(LinkId link) {
  marked_[static_cast<std::size_t>(link)] = 1;
  background_.push_back(link);
  return static_cast<std::int32_t>(background_.size() - 1);
}

void Traffic::enumerate(const Communicator& c, Groups& groups) const {
  const Job& job = jobs_[static_cast<std::size_t>(c.job)];
  const Mesh& mesh = job.mesh;
  const std::int64_t ranks = mesh.ranks();
  groups.group_of.assign(static_cast<std::size_t>(ranks), kNone);
  std::vector<std::int64_t> offsets{0};
  const auto is_first = [&](std::int64_t rank) {
    if (c.how == 2) return true;
    if (c.how == 1) return rank / job.stage_stride % job.stages == c.from_stage;
    std::int64_t stride = 1;
    for (const MeshAxis axis : mesh.order) {
      if (c.axes.contains(axis) && rank / stride % mesh.size(axis) != 0) return false;
      stride *= mesh.size(axis);
    }
    return true;
  };
  if (c.how == 0) {
    for (const MeshAxis axis : mesh.order) {
      if (!c.axes.contains(axis)) continue;
      const std::size_t inner = offsets.size();
      for (std::int64_t i = 1; i < mesh.size(axis); ++i)
        for (std::size_t j = 0; j < inner; ++j) offsets.push_back(offsets[j] + i * mesh.stride(axis));
    }
  } else if (c.how == 1) {
    offsets.push_back((c.to_stage - c.from_stage) * job.stage_stride);
  }
  groups.size = static_cast<std::int64_t>(offsets.size());
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    if (!is_first(rank)) continue;
    for (const std::int64_t offset : offsets) {
      groups.members.push_back(rank + offset);
      groups.group_of[static_cast<std::size_t>(rank + offset)] = static_cast<std::int32_t>(groups.count);
    }
    ++groups.count;
  }
}

void Traffic::lay_copies(std::int32_t p) {
  const PatternKind& kind = patterns_[static_cast<std::size_t>(p)].kind;
  const Groups& groups = groups_[static_cast<std::size_t>(kind.communicator)];
  const Job& job = jobs_[static_cast<std::size_t>(communicators_[static_cast<std::size_t>(kind.communicator)].job)];
  for (std::int64_t g = 0; g < groups.count; ++g) {
    const std::int64_t device =
        job.placement.device(groups.members[static_cast<std::size_t>(g)], cluster_.node.devices);
    const Endpoint far{kind.storage ? Endpoint::Kind::storage : Endpoint::Kind::host_memory, topology_.node_of(device)};
    Flow flow;
    flow.pattern = p;
    flow.group_vertex = static_cast<std::uint32_t>(groups.first_vertex + static_cast<std::size_t>(g));
    flow.way = static_cast<std::uint32_t>(ways_.size());
    if (kind.kind == OpKind::copy_to_host)
      topology_.route(Endpoint::device(device), far, ways_);
    else
      topology_.route(far, Endpoint::device(device), ways_);
    flow.links = static_cast<std::uint32_t>(ways_.size()) - flow.way;
    flow.share = 1;
    flows_.push_back(flow);
  }
}

void Traffic::lay_pattern(std::int32_t p) {
  const PatternKind kind = patterns_[static_cast<std::size_t>(p)].kind;
  if (is_copy_kind(kind.kind)) return lay_copies(p);
  const Groups& groups = groups_[static_cast<std::size_t>(kind.communicator)];
  const Job& job = jobs_[static_cast<std::size_t>(communicators_[static_cast<std::size_t>(kind.communicator)].job)];
  const std::int64_t per_node = cluster_.node.devices;
  const bool switched = cluster_.node.intra == IntraFabric::nvswitch;
  FlowOptions options;
  if (kind.chunks > 0) options.chunks = kind.chunks;
  options.rail_aligned =
      kind.kind == OpKind::all_to_all && switched && cluster_.fabric.kind == FabricKind::rail_fat_tree;
  options.by_node = !exact_ && kind.kind == OpKind::all_to_all && groups.size > kMostSinglePartners;

  // Groups that lie alike in their nodes send alike.
  std::map<std::vector<std::int64_t>, FlowGraph> graphs;
  std::vector<std::int64_t> devices(static_cast<std::size_t>(groups.size)), places(devices.size());
  for (std::int64_t g = 0; g < groups.count; ++g) {
    for (std::int64_t i = 0; i < groups.size; ++i) {
      const std::int64_t at = g * groups.size + (kind.reversed ? groups.size - 1 - i : i);
      devices[static_cast<std::size_t>(i)] =
          job.placement.device(groups.members[static_cast<std::size_t>(at)], per_node);
    }
    const std::int64_t first = topology_.node_of(devices[0]) * per_node;
    for (std::size_t i = 0; i < devices.size(); ++i) places[i] = devices[i] - first;
    const auto [found, is_new] = graphs.try_emplace(places);
    FlowGraph& graph = found->second;
    if (is_new) {
      const GroupMembers members{.devices = devices,
                                 .devices_per_node = per_node,
                                 .full_mesh = cluster_.node.intra == IntraFabric::direct_mesh,
                                 .both_directions = cluster_.fabric.kind == FabricKind::torus};
      collective_flows(kind.kind, kind.algorithm, members, options, graph);
      if (!exact_) merge_parallel_edges(graph);
    }
    const auto first_flow = static_cast<std::uint32_t>(flows_.size());
    for (const FlowEdge& e : graph.edges) {
      const auto end = [&](const FlowEnd& f) {
        const std::int64_t device = devices[static_cast<std::size_t>(f.member)];
        return f.at_switch ? Endpoint{Endpoint::Kind::scale_up_switch, topology_.node_of(device)}
                           : Endpoint::device(device);
      };
      Flow flow;
      flow.pattern = p;
      flow.group_vertex = static_cast<std::uint32_t>(groups.first_vertex + static_cast<std::size_t>(g));
      flow.way = static_cast<std::uint32_t>(ways_.size());
      topology_.route(end(e.from), end(e.to), ways_, e.scale_up_first);
      flow.links = static_cast<std::uint32_t>(ways_.size()) - flow.way;
      flow.share = e.bytes;
      flow.messages = e.messages;
      flow.lag = e.lag;
      flow.phase = e.phase;
      flow.leaves_node = topology_.node_of(devices[static_cast<std::size_t>(e.from.member)]) !=
                         topology_.node_of(devices[static_cast<std::size_t>(e.to.member)]);
      flow.first_after = static_cast<std::uint32_t>(afters_.size());
      flow.afters = static_cast<std::uint16_t>(e.afters);
      for (const std::int32_t a : graph.after_of(e)) afters_.push_back(first_flow + static_cast<std::uint32_t>(a));
      flows_.push_back(flow);
    }
  }
}

// A link cannot bound any flow if, before it or behind it, everything that passes it goes through other links that are
// together no wider: the way to the spine of a fabric that is not oversubscribed. Links left out must not vouch for
// others.
void Traffic::find_links_that_never_bind() {
  std::vector<std::uint32_t> first(static_cast<std::size_t>(topology_.links()) + 1, 0);
  for (const LinkId l : ways_) ++first[static_cast<std::size_t>(l) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::uint32_t> over(ways_.size()), next(first.begin(), first.end() - 1);
  for (std::uint32_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i)
      over[next[static_cast<std::size_t>(ways_[flows_[f].way + i])]++] = f;

  std::vector<LinkId> order;
  for (LinkId l = 0; l < topology_.links(); ++l)
    if (first[static_cast<std::size_t>(l)] < first[static_cast<std::size_t>(l) + 1]) order.push_back(l);
  std::vector<double> rate(static_cast<std::size_t>(topology_.links()), 0);
  for (const LinkId l : order) rate[static_cast<std::size_t>(l)] = topology_.bytes_per_second(l);
  // The widest first and, of equals, those far from the devices: what remains is then alike for flows that go far and
  // flows that do not.
  std::stable_sort(order.begin(), order.end(), [&](LinkId a, LinkId b) {
    const double rate_a = rate[static_cast<std::size_t>(a)], rate_b = rate[static_cast<std::size_t>(b)];
    return rate_a != rate_b ? rate_a > rate_b : topology_.kind(a) > topology_.kind(b);
  });
  std::vector<LinkId> guards;
  for (const LinkId link : order) {
    const auto l = static_cast<std::size_t>(link);
    if (marked_[l]) continue;
    for (const bool behind : {false, true}) {
      guards.clear();
      bool all = true;
      for (std::uint32_t at = first[l]; at < first[l + 1] && all; ++at) {
        const Flow& flow = flows_[over[at]];
        const LinkId* way = ways_.data() + flow.way;
        const auto here = static_cast<std::uint32_t>(std::find(way, way + flow.links, link) - way);
        LinkId narrowest = kNone;
        for (std::uint32_t i = behind ? here + 1 : 0; i < (behind ? flow.links : here); ++i) {
          if (never_binds_[static_cast<std::size_t>(way[i])]) continue;
          if (narrowest == kNone || rate[static_cast<std::size_t>(way[i])] < rate[static_cast<std::size_t>(narrowest)])
            narrowest = way[i];
        }
        all = narrowest != kNone;
        guards.push_back(narrowest);
      }
      if (!all) continue;
      std::sort(guards.begin(), guards.end());
      guards.erase(std::unique(guards.begin(), guards.end()), guards.end());
      double together = 0;
      for (const LinkId g : guards) together += rate[static_cast<std::size_t>(g)];
      constexpr double kRounding = 1e-9;
      if (together <= rate[l] * (1 + kRounding)) {
        never_binds_[l] = 1;
        break;
      }
    }
  }
}

void Traffic::fold(bool enabled) {
  groups_.resize(communicators_.size());
  std::size_t vertices = static_cast<std::size_t>(ranks());
  for (std::size_t c = 0; c < communicators_.size(); ++c) {
    enumerate(communicators_[c], groups_[c]);
    groups_[c].first_vertex = vertices;
    vertices += static_cast<std::size_t>(groups_[c].count);
  }
  for (std::size_t p = 0; p < patterns_.size(); ++p) lay_pattern(static_cast<std::int32_t>(p));
  total_flows_ = static_cast<std::int64_t>(flows_.size());
  never_binds_.assign(static_cast<std::size_t>(topology_.links()), 0);
  if (enabled) find_links_that_never_bind();
  find_classes(enabled);
  measure_patterns();
  flows_ = {};
  ways_ = {};
  afters_ = {};
}

void Traffic::find_classes(bool enabled) {
  using Colour = ColourRefinement::Colour;
  using Vertex = ColourRefinement::Vertex;
  const auto all_ranks = static_cast<std::size_t>(ranks());
  ColourRefinement graph;

  for (std::size_t j = 0; j < jobs_.size(); ++j)
    for (std::int64_t r = 0; r < jobs_[j].mesh.ranks(); ++r) {
      const std::int64_t stage = r / jobs_[j].stage_stride % jobs_[j].stages;
      Colour colour =
          mix_colour(mix_colour(kRankSalt, static_cast<std::uint64_t>(j)), static_cast<std::uint64_t>(stage));
      graph.add_vertex(mix_colour(colour, jobs_[j].marks[static_cast<std::size_t>(r)]));
    }
  for (std::size_t c = 0; c < groups_.size(); ++c)
    for (std::int64_t g = 0; g < groups_[c].count; ++g) {
      const Vertex v = graph.add_vertex(mix_colour(kGroupSalt, static_cast<std::uint64_t>(c)));
      const std::int64_t base = jobs_[static_cast<std::size_t>(communicators_[c].job)].first_vertex;
      for (std::int64_t i = 0; i < groups_[c].size; ++i)
        graph.add_edge(
            v, static_cast<Vertex>(base + groups_[c].members[static_cast<std::size_t>(g * groups_[c].size + i)]));
    }
  const std::size_t first_flow = graph.vertices();
  for (const Flow& f : flows_) {
    Colour colour = mix_colour(kFlowSalt, static_cast<std::uint64_t>(f.pattern));
    colour = mix_colour(colour, f.share);
    colour = mix_colour(colour, static_cast<std::uint64_t>(f.messages) << 32 ^ static_cast<std::uint32_t>(f.lag));
    colour = mix_colour(colour, static_cast<std::uint64_t>(f.phase) * 2 + f.leaves_node);
    graph.add_edge(graph.add_vertex(colour), f.group_vertex);
  }
  const std::size_t first_background = graph.vertices();
  for (const LinkId l : background_) {
    Colour colour = kBackgroundSalt;
    for (const auto& [link, mark] : link_marks_)
      if (link == l) colour = mix_colour(colour, mark);
    graph.add_vertex(colour);
  }
  // Links that carry anything; those that never bind take no part and are classed afterwards.
  constexpr Vertex kNoVertex = std::numeric_limits<Vertex>::max();
  std::vector<Vertex> vertex_of_link(static_cast<std::size_t>(topology_.links()), kNoVertex);
  std::vector<LinkId> used;
  const auto use = [&](LinkId l) {
    Vertex& v = vertex_of_link[static_cast<std::size_t>(l)];
    if (v != kNoVertex) return;
    v = 0;
    used.push_back(l);
  };
  for (const LinkId l : ways_) use(l);
  for (const LinkId l : background_) use(l);
  std::sort(used.begin(), used.end());
  links_used_ = static_cast<std::int64_t>(used.size());
  const auto colour_of_link = [&](LinkId l) {
    return mix_colour(mix_colour(kLinkSalt, static_cast<std::uint64_t>(topology_.kind(l))),
                      topology_.bytes_per_second(l));
  };
  std::vector<Colour> link_colour(used.size());
  std::vector<std::uint32_t> place(static_cast<std::size_t>(topology_.links()), 0);  // in `used`
  for (std::size_t u = 0; u < used.size(); ++u) {
    link_colour[u] = colour_of_link(used[u]);
    place[static_cast<std::size_t>(used[u])] = static_cast<std::uint32_t>(u);
  }
  for (const auto& [link, mark] : link_marks_)
    if (vertex_of_link[static_cast<std::size_t>(link)] != kNoVertex) {
      Colour& colour = link_colour[place[static_cast<std::size_t>(link)]];
      colour = mix_colour(colour, mark);
    }
  for (std::size_t u = 0; u < used.size(); ++u)
    if (!never_binds_[static_cast<std::size_t>(used[u])])
      vertex_of_link[static_cast<std::size_t>(used[u])] = graph.add_vertex(link_colour[u]);
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    const auto v = static_cast<Vertex>(first_flow + f);
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) {
      const LinkId l = ways_[flows_[f].way + i];
      if (!never_binds_[static_cast<std::size_t>(l)]) graph.add_edge(v, vertex_of_link[static_cast<std::size_t>(l)]);
    }
    if (flows_[f].afters == 0) continue;
    // Who waits for whom is directed: two unlike vertices between them tell the ends apart.
    const Vertex ready = graph.add_vertex(kReadySalt), arrived = graph.add_vertex(kArrivedSalt);
    graph.add_edge(ready, v);
    graph.add_edge(ready, arrived);
    for (std::uint32_t a = 0; a < flows_[f].afters; ++a)
      graph.add_edge(arrived, static_cast<Vertex>(first_flow + afters_[flows_[f].first_after + a]));
  }
  for (std::size_t b = 0; b < background_.size(); ++b)
    graph.add_edge(static_cast<Vertex>(first_background + b), vertex_of_link[static_cast<std::size_t>(background_[b])]);

  std::vector<std::uint32_t> classes;
  if (enabled) {
    classes = graph.refine();
  } else {
    classes.resize(graph.vertices());
    std::iota(classes.begin(), classes.end(), 0u);
  }

  // Number each kind's classes apart.
  constexpr std::uint32_t kUnseen = std::numeric_limits<std::uint32_t>::max();
  std::vector<std::uint32_t> number(graph.vertices(), kUnseen);
  const auto numbered = [&](std::size_t vertex, std::size_t next) -> std::pair<std::uint32_t, bool> {
    std::uint32_t& n = number[classes[vertex]];
    const bool is_new = n == kUnseen;
    if (is_new) n = static_cast<std::uint32_t>(next);
    return {n, is_new};
  };
  class_of_rank_.resize(all_ranks);
  for (std::size_t j = 0; j < jobs_.size(); ++j)
    for (std::int64_t r = 0; r < jobs_[j].mesh.ranks(); ++r) {
      const std::size_t v = static_cast<std::size_t>(jobs_[j].first_vertex + r);
      const auto [n, is_new] = numbered(v, rank_classes_.size());
      if (is_new)
        rank_classes_.push_back({static_cast<std::int32_t>(j), r / jobs_[j].stage_stride % jobs_[j].stages, r, 0});
      ++rank_classes_[n].ranks;
      class_of_rank_[v] = n;
    }
  class_of_group_.resize(first_flow - all_ranks);
  for (std::size_t c = 0; c < groups_.size(); ++c) {
    const std::int64_t base = jobs_[static_cast<std::size_t>(communicators_[c].job)].first_vertex;
    for (std::int64_t g = 0; g < groups_[c].count; ++g) {
      const std::size_t v = groups_[c].first_vertex + static_cast<std::size_t>(g);
      const auto [n, is_new] = numbered(v, group_classes_.size());
      if (is_new) {
        GroupClass group;
        group.communicator = static_cast<std::int32_t>(c);
        for (std::int64_t i = 0; i < groups_[c].size; ++i)
          group.members.push_back(class_of_rank_[static_cast<std::size_t>(
              base + groups_[c].members[static_cast<std::size_t>(g * groups_[c].size + i)])]);
        std::sort(group.members.begin(), group.members.end());
        group.members.erase(std::unique(group.members.begin(), group.members.end()), group.members.end());
        group_classes_.push_back(std::move(group));
      }
      ++group_classes_[n].groups;
      class_of_group_[v - all_ranks] = n;
    }
  }
  std::vector<std::uint32_t> class_of_flow(flows_.size());
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    const auto [n, is_new] = numbered(first_flow + f, flow_classes_.size());
    if (is_new) {
      const Flow& flow = flows_[f];
      FlowClass c;
      c.pattern = flow.pattern;
      c.share = flow.share;
      c.messages = flow.messages;
      c.lag = flow.lag;
      c.phase = flow.phase;
      c.leaves_node = flow.leaves_node;
      flow_classes_.push_back(std::move(c));
      flows_of_[{flow.pattern, class_of_group_[flow.group_vertex - all_ranks]}].push_back(n);
    }
    ++flow_classes_[n].flows;
    class_of_flow[f] = n;
  }
  {
    std::vector<char> done(flow_classes_.size(), 0);
    for (std::size_t f = 0; f < flows_.size(); ++f) {
      FlowClass& c = flow_classes_[class_of_flow[f]];
      if (done[class_of_flow[f]]) continue;
      done[class_of_flow[f]] = 1;
      for (std::uint32_t a = 0; a < flows_[f].afters; ++a)
        c.after.push_back(class_of_flow[afters_[flows_[f].first_after + a]]);
      std::sort(c.after.begin(), c.after.end());
      c.after.erase(std::unique(c.after.begin(), c.after.end()), c.after.end());
    }
  }
  for (std::size_t b = 0; b < background_.size(); ++b) {
    const auto [n, is_new] = numbered(first_background + b, flow_classes_.size());
    if (is_new) {
      flow_classes_.emplace_back();
      flow_classes_.back().pattern = kBackground;
    }
    ++flow_classes_[n].flows;
    background_class_.push_back(n);
  }

  // Links: those that never bind are alike if equally many flows of each class pass them.
  std::vector<Colour> final_colour(used.size());
  for (std::size_t u = 0; u < used.size(); ++u)
    final_colour[u] = never_binds_[static_cast<std::size_t>(used[u])] ? link_colour[u] : 0;
  for (std::size_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) {
      const LinkId l = ways_[flows_[f].way + i];
      if (never_binds_[static_cast<std::size_t>(l)])
        final_colour[place[static_cast<std::size_t>(l)]] +=
            scatter_colour(mix_colour(kFlowSalt, static_cast<std::uint64_t>(class_of_flow[f])));
    }
  for (std::size_t u = 0; u < used.size(); ++u)
    if (!never_binds_[static_cast<std::size_t>(used[u])])
      final_colour[u] =
          mix_colour(kLinkSalt, static_cast<std::uint64_t>(classes[vertex_of_link[static_cast<std::size_t>(used[u])]]));
  const std::vector<std::uint32_t> link_numbers = classes_of(final_colour);
  class_of_link_.assign(static_cast<std::size_t>(topology_.links()), kUnseen);
  for (std::size_t u = 0; u < used.size(); ++u) {
    const std::uint32_t n = link_numbers[u];
    if (n == link_classes_.size())
      link_classes_.push_back({.first = used[u],
                               .kind = topology_.kind(used[u]),
                               .links = 0,
                               .bytes_per_second = topology_.bytes_per_second(used[u]),
                               .never_binds = never_binds_[static_cast<std::size_t>(used[u])] != 0});
    ++link_classes_[n].links;
    class_of_link_[static_cast<std::size_t>(used[u])] = n;
  }

  // Loads, counted on the first link of each class.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> over;  // flow class, link class
  const auto count = [&](std::uint32_t flow_class, LinkId l) {
    const std::uint32_t c = class_of_link_[static_cast<std::size_t>(l)];
    if (link_classes_[c].first == l) over.emplace_back(flow_class, c);
  };
  for (std::size_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) count(class_of_flow[f], ways_[flows_[f].way + i]);
  for (std::size_t b = 0; b < background_.size(); ++b) count(background_class_[b], background_[b]);
  std::sort(over.begin(), over.end());
  for (std::size_t i = 0; i < over.size();) {
    std::size_t j = i;
    while (j < over.size() && over[j] == over[i]) ++j;
    flow_classes_[over[i].first].loads.push_back({over[i].second, static_cast<double>(j - i)});
    i = j;
  }
}

template <class Counts>
Traffic::Alone Traffic::measure_alone(const std::vector<std::uint32_t>& flow_classes, Counts&& counts) const {
  struct State {
    double left = 0, rate = 0;
    bool fixed = false;
    std::vector<LinkLoad> loads;  // into `links`
  };
  struct Link {
    double rate = 0, room = 0, unfixed = 0, bytes = 0;
  };
  std::vector<State> flows;
  std::vector<Link> links;
  std::map<std::uint32_t, std::uint32_t> place;
  for (const std::uint32_t f : flow_classes) {
    const FlowClass& flow = flow_classes_[f];
    State state;
    state.left = flow.share * flow.messages;
    for (const LinkLoad& load : flow.loads) {
      if (!counts(link_classes_[load.link_class])) continue;
      const auto [at, is_new] = place.try_emplace(load.link_class, static_cast<std::uint32_t>(links.size()));
      if (is_new) links.push_back({.rate = link_classes_[load.link_class].bytes_per_second});
      state.loads.push_back({at->second, load.flows});
      links[at->second].bytes += load.flows * state.left;
    }
    if (!state.loads.empty() && state.left > 0) flows.push_back(std::move(state));
  }
  Alone alone;
  for (const Link& l : links) alone.busiest = std::max(alone.busiest, l.bytes / l.rate);
  std::size_t running = flows.size();
  while (running > 0) {
    for (Link& l : links) l = {.rate = l.rate, .room = l.rate};
    for (State& f : flows) {
      f.fixed = f.left <= 0;
      if (f.fixed) continue;
      for (const LinkLoad& load : f.loads) links[load.link_class].unfixed += load.flows;
    }
    // Progressive filling (Bertsekas and Gallager, Data Networks, section 6.5.2).
    for (std::size_t fixed = 0; fixed < running;) {
      double level = std::numeric_limits<double>::infinity();
      for (const Link& l : links)
        if (l.unfixed > 0.5) level = std::min(level, l.room / l.unfixed);
      constexpr double kRounding = 1e-12;
      std::vector<State*> now_fixed;
      for (State& f : flows)
        if (!f.fixed && std::any_of(f.loads.begin(), f.loads.end(), [&](const LinkLoad& load) {
              const Link& l = links[load.link_class];
              return l.room / l.unfixed <= level * (1 + kRounding);
            }))
          now_fixed.push_back(&f);
      for (State* f : now_fixed) {
        f->fixed = true;
        f->rate = level;
        for (const LinkLoad& load : f->loads) {
          links[load.link_class].room -= level * load.flows;
          links[load.link_class].unfixed -= load.flows;
        }
      }
      fixed += now_fixed.size();
    }
    double next = std::numeric_limits<double>::infinity();
    for (const State& f : flows)
      if (f.left > 0) next = std::min(next, f.left / f.rate);
    alone.fair += next;
    for (State& f : flows) {
      if (f.left <= 0) continue;
      f.left -= next * f.rate;
      constexpr double kDone = 1e-12;
      if (f.left > kDone * next * f.rate) continue;
      f.left = 0;
      --running;
    }
  }
  return alone;
}

void Traffic::measure_patterns() {
  std::vector<std::vector<std::uint32_t>> of_pattern(patterns_.size());
  for (std::uint32_t f = 0; f < flow_classes_.size(); ++f)
    if (flow_classes_[f].pattern != kBackground)
      of_pattern[static_cast<std::size_t>(flow_classes_[f].pattern)].push_back(f);
  const auto add = [](Alone& to, const Alone& more) {
    to.fair += more.fair;
    to.busiest += more.busiest;
  };
  const auto anywhere = [](const LinkClass&) { return true; };
  const auto of_nodes = [](const LinkClass& l) { return l.kind == LinkKind::nic || l.kind == LinkKind::pcie; };
  for (std::size_t p = 0; p < patterns_.size(); ++p) {
    int phases = 0;
    for (const std::uint32_t f : of_pattern[p]) phases = std::max(phases, flow_classes_[f].phase + 1);
    for (int phase = 0; phase < phases; ++phase) {
      std::vector<std::uint32_t> inside, outside;
      double out_of_nodes = 0;
      for (const std::uint32_t f : of_pattern[p]) {
        const FlowClass& flow = flow_classes_[f];
        if (flow.phase != phase) continue;
        (flow.leaves_node ? outside : inside).push_back(f);
        if (flow.leaves_node) out_of_nodes += flow.share * flow.messages * static_cast<double>(flow.flows);
      }
      add(patterns_[p].inside, measure_alone(inside, anywhere));
      if (cluster_.fabric.kind == FabricKind::torus && out_of_nodes > 0) {
        // Links of a torus pass others' traffic too; what belongs to a node is what it sends.
        const std::int64_t ranks_of_job =
            jobs_[static_cast<std::size_t>(
                      communicators_[static_cast<std::size_t>(patterns_[p].kind.communicator)].job)]
                .mesh.ranks();
        const double nodes = static_cast<double>((ranks_of_job + cluster_.node.devices - 1) / cluster_.node.devices);
        const double seconds = out_of_nodes / nodes / cluster_.inter_node_bytes_per_second();
        add(patterns_[p].outside, {seconds, seconds});
      } else {
        add(patterns_[p].outside, measure_alone(outside, of_nodes));
      }
    }
  }
}

std::uint32_t Traffic::rank_class(std::int32_t job, std::int64_t rank) const {
  return class_of_rank_[static_cast<std::size_t>(jobs_[static_cast<std::size_t>(job)].first_vertex + rank)];
}
std::uint32_t Traffic::link_class(LinkId link) const { return class_of_link_[static_cast<std::size_t>(link)]; }
std::uint32_t Traffic::group_class(std::int32_t communicator, std::int64_t rank) const {
  const Groups& groups = groups_[static_cast<std::size_t>(communicator)];
  const std::int32_t g = groups.group_of[static_cast<std::size_t>(rank)];
  return class_of_group_[groups.first_vertex + static_cast<std::size_t>(g) - static_cast<std::size_t>(ranks())];
}
std::span<const std::uint32_t> Traffic::flows(std::int32_t pattern, std::uint32_t group_class) const {
  const auto found = flows_of_.find({pattern, group_class});
  if (found == flows_of_.end()) return {};
  return found->second;
}

}  // namespace orrery
