// All traffic that several jobs may send over a cluster, folded: which ranks, groups, flows and links behave alike, and
// how the flows of one class load the links of another. Internal to sim/des.
//
// A communicator is a set of groups of one job that communicate at the same time (all tensor-parallel groups, all pairs
// of neighbouring stages). A pattern is one kind of collective with one algorithm over a communicator. Patterns are in
// shares of the op's bytes, so that each is laid over the links once for all its sizes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/index.h"
#include "sim/cost/collective_flows.h"
#include "sim/des/topology.h"
#include "sim/hardware/perturbation.h"
#include "sim/program/load.h"
#include "sim/program/mesh.h"
#include "sim/program/work.h"

namespace orrery {

// Folding: the coarsest equitable partition of a graph, by colour refinement (1-dimensional Weisfeiler-Leman; Grohe et
// al. 2014, "Dimension reduction via colour refinement"). Vertices of one class have equal colours and equally many
// neighbours of each class. A max-min fair network of flows and links that is folded this way has the rates of the
// whole network: the average of the whole network's unique solution over the classes is still feasible and still fair.
class ColourRefinement {
 public:
  using Vertex = std::uint32_t;
  using Colour = std::uint64_t;

  // Vertices are numbered 0, 1, ... in the order of these calls.
  Vertex add_vertex(Colour colour) {
    colours_.push_back(colour);
    return static_cast<Vertex>(colours_.size() - 1);
  }
  std::size_t vertices() const { return colours_.size(); }
  // Adds an undirected edge; parallel edges count.
  void add_edge(Vertex a, Vertex b) { edges_.push_back({a, b}); }

  // The class of each vertex: 0, 1, ... in the order of their first vertex. Colours that are equal at the end share a
  // class. Deterministic. Time and memory proportional to vertices and edges, times the rounds it takes (typically
  // below ten; at most as many as classes).
  std::vector<std::uint32_t> refine() { return refine(0, 0); }
  // The same, but returns an empty vector as soon as the first `watched` vertices have more than `most` colours, for
  // callers that cannot use more.
  std::vector<std::uint32_t> refine(std::size_t watched, std::size_t most);

 private:
  struct Edge {
    Vertex a, b;
  };
  std::vector<Colour> colours_;
  std::vector<Edge> edges_;
};

// Mixes values into a colour; order matters.
ColourRefinement::Colour mix_colour(ColourRefinement::Colour seed, std::uint64_t value);
ColourRefinement::Colour mix_colour(ColourRefinement::Colour seed, double value);
// The amount that a vertex of this colour adds to its neighbours' sums.
ColourRefinement::Colour scatter_colour(ColourRefinement::Colour colour);

// Numbers equal colours 0, 1, ... in the order in which they first appear.
std::vector<std::uint32_t> classes_of(std::span<const ColourRefinement::Colour> colours);

struct PatternKind {
  std::int32_t communicator = 0;
  OpKind kind = OpKind::all_reduce;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::automatic;
  Direction way{};          // for copies
  bool reversed = false;    // members in reverse order: backward through the pipeline
  std::int32_t chunks = 0;  // FlowOptions::chunks (exact only)
  bool in_switch = false;   // collnet: the scale-up switch reduces within the node
  TokenShares tokens = {};  // for by_token
  std::int32_t rows = -1;   // the number from Traffic::add_rows() of the parts of an all-to-all; -1: equal parts
  bool returns = false;     // the rows travel back from where `rows` sends them
  bool operator==(const PatternKind&) const = default;
};

// Classes, all numbered 0, 1, ...
struct RankClass {
  std::int32_t job = 0;
  std::int64_t stage = 0;
  std::int64_t first_rank = 0, ranks = 0;
};
struct LinkClass {
  LinkId first = 0;
  LinkKind kind = LinkKind::scale_up;
  std::int64_t links = 0;
  double bytes_per_second = 0;  // of each link, undisturbed
  // The class can never bind a flow, because other links on the way of everything that passes are narrower together. It
  // is not simulated.
  bool never_binds = false;
};
struct LinkTraffic {
  std::uint32_t link_class = 0;
  double flows = 0;  // flows of the flow class over each link of the link class; in lockstep: edges
};
// Traits that all flows of a class share.
struct FlowTraits {
  std::int32_t pattern = 0;  // index of a pattern, or kBackground
  double share = 0;          // share of the op's bytes: of the whole flow (steady), of each message (exact)
  std::int32_t messages = 1, lag = 0;
  std::uint8_t phase = 0;
  bool leaves_node = false;
};
struct FlowClass : FlowTraits {
  std::int64_t flows = 0;                 // number of flows; in lockstep: of edges
  std::vector<std::uint32_t> after = {};  // indices of flow classes (exact only)
  std::vector<LinkTraffic> loads = {};    // for all links on the way
};
struct GroupClass {
  std::int32_t communicator = 0;
  std::int64_t groups = 0;
  std::vector<std::uint32_t> members;  // rank classes, each once, ascending
};

// Whether steady flows use FlowOptions::by_node: with more than 64 members, an all-to-all sends to nodes instead of to
// each of their devices.
inline bool sends_by_node(OpKind kind, std::int64_t members) {
  constexpr std::int64_t kMostSinglePartners = 64;
  return kind == OpKind::all_to_all && members > kMostSinglePartners;
}

class Traffic {
 public:
  static constexpr std::int32_t kBackground = -1;

  // `exact`: keeps each edge's messages and their order apart. Keeps references.
  Traffic(const Topology& topology, const Cluster& cluster, bool exact);

  std::int32_t add_job(const Mesh& mesh, const JobNodes& placement);
  // Communicators. A repeated call returns the same one. The groups of an empty MeshGroup are single ranks, for copies
  // between their memories.
  std::int32_t groups(std::int32_t job, MeshGroup group);
  // Groups of the ranks at the same place in each of these pipeline stages, in this order.
  std::int32_t of_stages(std::int32_t job, std::vector<std::int64_t> stages);
  std::int32_t pattern(const PatternKind& kind);
  // Registers GroupMembers::rows; patterns name them by the returned number. If a pattern's groups have fewer ranks
  // than the load, each group gets its part of it (load_of_places).
  std::int32_t add_rows(Load load) {
    rows_.push_back(std::move(load));
    return static_cast<std::int32_t>(rows_.size() - 1);
  }

  // A mark that distinguishes a rank, or a link, from others.
  void mark_rank(std::int32_t job, std::int64_t rank, std::uint64_t mark);
  void mark_link(LinkId link, std::uint64_t mark);
  // A flow over one link that competes with all others. Returns its number among such flows.
  std::int32_t add_background(LinkId link);

  // Lays all patterns over the links and folds what is alike. Call once, after all of the above.
  //
  // If more than `most_exact` rank classes remain, it folds in lockstep, unless that leaves more than half of the
  // ranks. In lockstep, edges of a group that carry the same bytes in the same phase, all within nodes or all between
  // nodes, are one flow over the links of all of them, at the rate of the slowest. The distance along a ring from a
  // disturbed member then makes no difference.
  void fold(std::int64_t most_exact = std::numeric_limits<std::int64_t>::max());
  // The same, but gives every rank, group, flow and link a class of its own.
  void number_apart();

  // The following REQUIRE fold() or number_apart().
  bool in_lockstep() const { return in_lockstep_; }
  std::span<const RankClass> rank_classes() const { return rank_classes_; }
  std::span<const GroupClass> group_classes() const { return group_classes_; }
  std::span<const FlowClass> flow_classes() const { return flow_classes_; }
  std::span<const LinkClass> link_classes() const { return link_classes_; }
  std::uint32_t rank_class(std::int32_t job, std::int64_t rank) const;
  bool uses(LinkId link) const;                 // whether any flow passes the link
  std::uint32_t link_class(LinkId link) const;  // REQUIRES: uses(link)
  std::uint32_t group_class(std::int32_t communicator, std::int64_t rank) const;
  // The flow classes of a pattern in a group class.
  std::span<const std::uint32_t> flows(std::int32_t pattern, std::uint32_t group_class) const;
  int phases_of(std::span<const std::uint32_t> flow_classes) const {
    int phases = 1;
    for (const std::uint32_t f : flow_classes) phases = std::max(phases, flow_classes_[f].phase + 1);
    return phases;
  }
  std::uint32_t background_flow(std::int32_t number) const { return background_class_[at(number)]; }
  // Seconds per byte of the op if all groups of the pattern run alone and at the links' full rates, phases one after
  // the other. alone_inside(): flows within nodes, over all their links. alone_outside(): flows between nodes, over the
  // links of the nodes (NICs, PCIe; not the switches beyond).
  struct Alone {
    double fair = 0;     // all flows start at the same time and share max-min fairly
    double busiest = 0;  // a lower bound: the busiest link never idles
  };
  const Alone& alone_inside(std::int32_t pattern) const { return alone_inside_[at(pattern)]; }
  const Alone& alone_outside(std::int32_t pattern) const { return alone_outside_[at(pattern)]; }

  std::int64_t ranks() const;
  std::int64_t total_flows() const { return total_flows_; }
  std::int64_t links_used() const { return links_used_; }

 private:
  struct Job {
    Mesh mesh;
    JobNodes placement;
    std::int64_t first_vertex = 0, stages = 1, stage_stride = 1;
    std::vector<std::uint64_t> marks;

    std::int64_t stage_of(std::int64_t rank) const { return rank / stage_stride % stages; }
  };
  struct Communicator {
    std::int32_t job = 0;
    MeshGroup group = {};
    std::vector<std::int64_t> stages = {};  // empty: `group`
    bool operator==(const Communicator&) const = default;
  };
  struct Groups {  // of a communicator
    std::size_t first_vertex = 0;
    std::int64_t count = 0, size = 1;
    std::vector<std::int64_t> members;   // ranks, [group * size + i]
    std::vector<std::int32_t> group_of;  // by rank; -1: none
  };
  struct Flow : FlowTraits {
    std::uint32_t group_vertex = 0;
    std::uint32_t way = 0, links = 0;  // range in ways_
    std::int32_t edges = 1;            // number of edges that it consists of (lockstep)
    std::uint32_t first_after = 0;     // index into afters_ (exact)
    std::uint16_t afters = 0;
  };

  const Job& job_of(const PatternKind& pattern) const {
    return jobs_[at(communicators_[at(pattern.communicator)].job)];
  }
  void enumerate(const Communicator& communicator, Groups& groups) const;
  std::int64_t device_of(const Job& job, std::int64_t rank) const {
    return cluster_.fabric_device(job.placement.device(rank, cluster_.node.devices));
  }
  Flow& add_flow(std::int32_t pattern, std::int64_t group, Endpoint from, Endpoint to, bool scale_up_first);
  void lay_pattern(std::int32_t pattern);
  void lay_copies(std::int32_t pattern);
  void lay_patterns();
  void join_edges();
  void free_flows();
  void find_links_that_never_bind();
  struct Folding;
  // Returns false, with no classes, if there are more rank classes than that.
  bool find_classes(std::size_t most_rank_classes);
  void number_classes(Folding& folding);
  void connect(Folding& folding);
  void colour_ranks_and_groups(Folding& folding);
  void colour_flows(Folding& folding);
  void colour_links(Folding& folding);
  void connect_flows(Folding& folding);
  void number_ranks_and_groups(Folding& folding);
  void number_flows(Folding& folding);
  void number_links(Folding& folding);
  void count_loads(Folding& folding);
  void measure_patterns();
  // Measures these flow classes with their links to themselves. `binds`: by link class, whether it can bind.
  Alone measure_alone(const std::vector<std::uint32_t>& flow_classes, std::span<const char> binds) const;

  const Topology& topology_;
  const Cluster& cluster_;
  bool exact_ = false;
  std::vector<Job> jobs_;
  std::vector<Communicator> communicators_;
  std::vector<Groups> groups_;
  std::vector<PatternKind> patterns_;
  std::vector<Alone> alone_inside_, alone_outside_;  // by pattern
  std::vector<Load> rows_;
  std::vector<std::pair<LinkId, std::uint64_t>> link_marks_;
  std::vector<LinkId> background_;

  std::vector<Flow> flows_;
  std::vector<LinkId> ways_;
  std::vector<std::uint32_t> afters_;
  std::vector<char> never_binds_;  // by link
  std::vector<char> marked_;

  std::vector<RankClass> rank_classes_;
  std::vector<GroupClass> group_classes_;
  std::vector<FlowClass> flow_classes_;
  std::vector<LinkClass> link_classes_;
  std::vector<std::uint32_t> class_of_rank_, class_of_group_, class_of_link_;
  std::vector<std::uint32_t> background_class_;
  std::map<std::pair<std::int32_t, std::uint32_t>, std::vector<std::uint32_t>> flows_of_;
  std::int64_t total_flows_ = 0, links_used_ = 0;
  bool in_lockstep_ = false;
};

}  // namespace orrery
