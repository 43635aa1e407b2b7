// Finds the ranks, groups, flows and links that behave alike.
#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "sim/base/digest.h"
#include "sim/des/traffic.h"

namespace orrery {
namespace {

using Colour = ColourRefinement::Colour;

constexpr std::uint64_t scramble(std::uint64_t x) { return mixed(x + kSplitMixStep); }

// Open addressing: colour -> class.
class ColourTable {
 public:
  explicit ColourTable(std::size_t most) {
    const std::size_t size = std::bit_ceil(2 * most + 1);
    mask_ = size - 1;
    entries_.assign(size, {0, kEmpty});
  }
  std::uint32_t class_of(Colour colour) {
    for (std::size_t at = scramble(colour) & mask_;; at = (at + 1) & mask_) {
      Entry& entry = entries_[at];
      if (entry.number == kEmpty) entry = {colour, count_++};
      if (entry.colour == colour) return entry.number;
    }
  }
  std::uint32_t count() const { return count_; }

 private:
  static constexpr std::uint32_t kEmpty = ~std::uint32_t{0};
  struct Entry {
    Colour colour;
    std::uint32_t number;
  };
  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
  std::uint32_t count_ = 0;
};

std::size_t count_colours(std::span<const Colour> colours) {
  ColourTable table(colours.size());
  for (const Colour c : colours) table.class_of(c);
  return table.count();
}

}  // namespace

Colour mix_colour(Colour seed, std::uint64_t value) { return scramble(seed ^ scramble(value)); }
Colour mix_colour(Colour seed, double value) { return mix_colour(seed, std::bit_cast<std::uint64_t>(value)); }
Colour scatter_colour(Colour colour) { return scramble(colour ^ 0x5851f42d4c957f2dull); }

std::vector<std::uint32_t> classes_of(std::span<const Colour> colours) {
  ColourTable table(colours.size());
  std::vector<std::uint32_t> classes(colours.size());
  for (std::size_t i = 0; i < colours.size(); ++i) classes[i] = table.class_of(colours[i]);
  return classes;
}

std::vector<std::uint32_t> ColourRefinement::refine(std::size_t watched, std::size_t most) {
  std::size_t classes = count_colours(colours_);
  const auto too_many = [&] { return watched > 0 && count_colours(std::span(colours_).first(watched)) > most; };
  if (too_many()) return {};
  std::vector<Colour> sums(colours_.size());
  while (classes < colours_.size()) {
    sums.assign(colours_.size(), 0);
    // A sum does not depend on the order of neighbours.
    for (const Edge& e : edges_) {
      sums[e.a] += scatter_colour(colours_[e.b]);
      sums[e.b] += scatter_colour(colours_[e.a]);
    }
    for (std::size_t v = 0; v < colours_.size(); ++v) colours_[v] = mix_colour(colours_[v], sums[v]);
    const std::size_t refined = count_colours(colours_);
    if (refined == classes) break;  // the neighbours of each class are alike
    classes = refined;
    if (too_many()) return {};
  }
  return classes_of(colours_);
}

namespace {

using Colour = ColourRefinement::Colour;
using Vertex = ColourRefinement::Vertex;

constexpr Vertex kNoVertex = std::numeric_limits<Vertex>::max();
constexpr LinkId kNoLink = -1;
constexpr std::uint32_t kUnseen = std::numeric_limits<std::uint32_t>::max();
// Kinds of vertices: two vertices of different kinds never share a colour.
enum Salt : std::uint64_t {
  kRankSalt = 1,
  kGroupSalt,
  kFlowSalt,
  kReadySalt,
  kArrivedSalt,
  kLinkSalt,
  kBackgroundSalt
};

}  // namespace

// Vertices: ranks, groups, flows, background flows, links that can bind.
struct Traffic::Folding {
  ColourRefinement graph;
  std::size_t first_flow = 0, first_background = 0;
  std::vector<LinkId> used;            // links that carry anything, ascending
  std::vector<std::uint32_t> place;    // by link: its index in `used`
  std::vector<Vertex> vertex_of_link;  // kNoVertex: the link carries nothing
  std::vector<Colour> link_colour;     // by index in `used`: colour before refinement
  std::vector<std::uint32_t> classes;  // by vertex
  std::vector<std::uint32_t> number;   // by class: its number among the classes of its kind
  std::vector<std::uint32_t> class_of_flow;

  // The number of the vertex's class among the classes of its kind, of which there are `next` so far, and whether it is
  // new.
  std::pair<std::uint32_t, bool> numbered(std::size_t vertex, std::size_t next) {
    std::uint32_t& n = number[classes[vertex]];
    const bool is_new = n == kUnseen;
    if (is_new) n = static_cast<std::uint32_t>(next);
    return {n, is_new};
  }
};

// A link cannot limit any flow if, before it or after it, everything that passes it goes through other links that are
// together no wider: for example the links to the spine of a fabric without oversubscription. A link that is left out
// must not be the reason for leaving out another.
void Traffic::find_links_that_never_bind() {
  std::vector<std::uint32_t> first(at(topology_.links()) + 1, 0);
  for (const LinkId l : ways_) ++first[at(l) + 1];
  std::partial_sum(first.begin(), first.end(), first.begin());
  std::vector<std::uint32_t> over(ways_.size()), next(first.begin(), first.end() - 1);
  for (std::uint32_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) over[next[at(ways_[flows_[f].way + i])]++] = f;

  std::vector<LinkId> order;
  for (LinkId l = 0; l < topology_.links(); ++l)
    if (first[at(l)] < first[at(l) + 1]) order.push_back(l);
  std::vector<double> rate(at(topology_.links()), 0);
  for (const LinkId l : order) rate[at(l)] = topology_.bytes_per_second(l);
  // The widest first; among equal ones, those far from the devices. The remaining links are then alike for flows that
  // go far and flows that do not.
  std::stable_sort(order.begin(), order.end(), [&](LinkId a, LinkId b) {
    const double rate_a = rate[at(a)], rate_b = rate[at(b)];
    return rate_a != rate_b ? rate_a > rate_b : topology_.kind(a) > topology_.kind(b);
  });
  std::vector<LinkId> guards;
  for (const LinkId link : order) {
    const auto l = at(link);
    if (marked_[l]) continue;
    for (const bool behind : {false, true}) {
      guards.clear();
      bool all = true;
      for (std::uint32_t use = first[l]; use < first[l + 1] && all; ++use) {
        const Flow& flow = flows_[over[use]];
        const LinkId* way = ways_.data() + flow.way;
        const auto here = static_cast<std::uint32_t>(std::find(way, way + flow.links, link) - way);
        LinkId narrowest = kNoLink;
        for (std::uint32_t i = behind ? here + 1 : 0; i < (behind ? flow.links : here); ++i) {
          if (never_binds_[at(way[i])]) continue;
          if (narrowest == kNoLink || rate[at(way[i])] < rate[at(narrowest)]) narrowest = way[i];
        }
        all = narrowest != kNoLink;
        guards.push_back(narrowest);
      }
      if (!all) continue;
      std::sort(guards.begin(), guards.end());
      guards.erase(std::unique(guards.begin(), guards.end()), guards.end());
      double together = 0;
      for (const LinkId g : guards) together += rate[at(g)];
      constexpr double kRounding = 1e-9;
      if (together <= rate[l] * (1 + kRounding)) {
        never_binds_[l] = 1;
        break;
      }
    }
  }
}

void Traffic::colour_ranks_and_groups(Folding& folding) {
  for (std::size_t j = 0; j < jobs_.size(); ++j)
    for (std::int64_t r = 0; r < jobs_[j].mesh.ranks(); ++r) {
      const std::int64_t stage = jobs_[j].stage_of(r);
      Colour colour =
          mix_colour(mix_colour(kRankSalt, static_cast<std::uint64_t>(j)), static_cast<std::uint64_t>(stage));
      folding.graph.add_vertex(mix_colour(colour, jobs_[j].marks[at(r)]));
    }
  for (std::size_t c = 0; c < groups_.size(); ++c)
    for (std::int64_t g = 0; g < groups_[c].count; ++g) {
      const Vertex v = folding.graph.add_vertex(mix_colour(kGroupSalt, static_cast<std::uint64_t>(c)));
      const std::int64_t base = jobs_[at(communicators_[c].job)].first_vertex;
      for (std::int64_t i = 0; i < groups_[c].size; ++i)
        folding.graph.add_edge(v, static_cast<Vertex>(base + groups_[c].members[at(g * groups_[c].size + i)]));
    }
}

void Traffic::colour_flows(Folding& folding) {
  folding.first_flow = folding.graph.vertices();
  for (const Flow& f : flows_) {
    Colour colour = mix_colour(kFlowSalt, static_cast<std::uint64_t>(f.pattern));
    colour = mix_colour(colour, f.share);
    colour = mix_colour(colour, static_cast<std::uint64_t>(f.messages) << 32 ^ static_cast<std::uint32_t>(f.lag));
    colour = mix_colour(colour, static_cast<std::uint64_t>(f.phase) * 2 + f.leaves_node);
    folding.graph.add_edge(folding.graph.add_vertex(colour), f.group_vertex);
  }
  folding.first_background = folding.graph.vertices();
  for (const LinkId l : background_) {
    Colour colour = kBackgroundSalt;
    for (const auto& [link, mark] : link_marks_)
      if (link == l) colour = mix_colour(colour, mark);
    folding.graph.add_vertex(colour);
  }
}

void Traffic::colour_links(Folding& folding) {
  // Links that carry anything. Those that never bind take no part in the refinement and are classed afterwards.
  folding.vertex_of_link.assign(at(topology_.links()), kNoVertex);
  const auto use = [&](LinkId l) {
    Vertex& v = folding.vertex_of_link[at(l)];
    if (v != kNoVertex) return;
    v = 0;
    folding.used.push_back(l);
  };
  for (const LinkId l : ways_) use(l);
  for (const LinkId l : background_) use(l);
  std::sort(folding.used.begin(), folding.used.end());
  links_used_ = static_cast<std::int64_t>(folding.used.size());
  folding.link_colour.resize(folding.used.size());
  folding.place.assign(at(topology_.links()), 0);
  for (std::size_t u = 0; u < folding.used.size(); ++u) {
    const LinkId l = folding.used[u];
    folding.link_colour[u] =
        mix_colour(mix_colour(kLinkSalt, static_cast<std::uint64_t>(topology_.kind(l))), topology_.bytes_per_second(l));
    folding.place[at(folding.used[u])] = static_cast<std::uint32_t>(u);
  }
  for (const auto& [link, mark] : link_marks_)
    if (folding.vertex_of_link[at(link)] != kNoVertex) {
      Colour& colour = folding.link_colour[folding.place[at(link)]];
      colour = mix_colour(colour, mark);
    }
  for (std::size_t u = 0; u < folding.used.size(); ++u)
    if (!never_binds_[at(folding.used[u])])
      folding.vertex_of_link[at(folding.used[u])] = folding.graph.add_vertex(folding.link_colour[u]);
}

void Traffic::connect_flows(Folding& folding) {
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    const auto v = static_cast<Vertex>(folding.first_flow + f);
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) {
      const LinkId l = ways_[flows_[f].way + i];
      if (!never_binds_[at(l)]) folding.graph.add_edge(v, folding.vertex_of_link[at(l)]);
    }
    if (flows_[f].afters == 0) continue;
    // Waiting is directed: two different vertices between the waiting flow and the other tell the ends apart.
    const Vertex ready = folding.graph.add_vertex(kReadySalt), arrived = folding.graph.add_vertex(kArrivedSalt);
    folding.graph.add_edge(ready, v);
    folding.graph.add_edge(ready, arrived);
    for (std::uint32_t a = 0; a < flows_[f].afters; ++a)
      folding.graph.add_edge(arrived, static_cast<Vertex>(folding.first_flow + afters_[flows_[f].first_after + a]));
  }
  for (std::size_t b = 0; b < background_.size(); ++b)
    folding.graph.add_edge(static_cast<Vertex>(folding.first_background + b),
                           folding.vertex_of_link[at(background_[b])]);
}

void Traffic::number_ranks_and_groups(Folding& folding) {
  const auto all_ranks = at(ranks());
  class_of_rank_.resize(all_ranks);
  for (std::size_t j = 0; j < jobs_.size(); ++j)
    for (std::int64_t r = 0; r < jobs_[j].mesh.ranks(); ++r) {
      const std::size_t v = at(jobs_[j].first_vertex + r);
      const auto [n, is_new] = folding.numbered(v, rank_classes_.size());
      if (is_new) rank_classes_.push_back({static_cast<std::int32_t>(j), jobs_[j].stage_of(r), r, 0});
      ++rank_classes_[n].ranks;
      class_of_rank_[v] = n;
    }
  class_of_group_.resize(folding.first_flow - all_ranks);
  for (std::size_t c = 0; c < groups_.size(); ++c) {
    const std::int64_t base = jobs_[at(communicators_[c].job)].first_vertex;
    for (std::int64_t g = 0; g < groups_[c].count; ++g) {
      const std::size_t v = groups_[c].first_vertex + at(g);
      const auto [n, is_new] = folding.numbered(v, group_classes_.size());
      if (is_new) {
        GroupClass group;
        group.communicator = static_cast<std::int32_t>(c);
        for (std::int64_t i = 0; i < groups_[c].size; ++i)
          group.members.push_back(class_of_rank_[at(base + groups_[c].members[at(g * groups_[c].size + i)])]);
        std::sort(group.members.begin(), group.members.end());
        group.members.erase(std::unique(group.members.begin(), group.members.end()), group.members.end());
        group_classes_.push_back(std::move(group));
      }
      ++group_classes_[n].groups;
      class_of_group_[v - all_ranks] = n;
    }
  }
}

void Traffic::number_flows(Folding& folding) {
  const auto all_ranks = at(ranks());
  folding.class_of_flow.resize(flows_.size());
  std::vector<std::size_t> first_of_class;
  for (std::size_t f = 0; f < flows_.size(); ++f) {
    const auto [n, is_new] = folding.numbered(folding.first_flow + f, flow_classes_.size());
    if (is_new) {
      first_of_class.push_back(f);
      const Flow& flow = flows_[f];
      flow_classes_.push_back({flow});
      flows_of_[{flow.pattern, class_of_group_[flow.group_vertex - all_ranks]}].push_back(n);
    }
    flow_classes_[n].flows += flows_[f].edges;
    folding.class_of_flow[f] = n;
  }
  for (std::size_t c = 0; c < first_of_class.size(); ++c) {
    const Flow& flow = flows_[first_of_class[c]];
    std::vector<std::uint32_t>& after = flow_classes_[c].after;
    for (std::uint32_t a = 0; a < flow.afters; ++a)
      after.push_back(folding.class_of_flow[afters_[flow.first_after + a]]);
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
  }
  for (std::size_t b = 0; b < background_.size(); ++b) {
    const auto [n, is_new] = folding.numbered(folding.first_background + b, flow_classes_.size());
    if (is_new) flow_classes_.push_back({{.pattern = kBackground}});
    ++flow_classes_[n].flows;
    background_class_.push_back(n);
  }
}

void Traffic::number_links(Folding& folding) {
  // Links that never bind are alike if equally many flows of each class pass them.
  std::vector<Colour> final_colour(folding.used.size());
  for (std::size_t u = 0; u < folding.used.size(); ++u)
    final_colour[u] = never_binds_[at(folding.used[u])] ? folding.link_colour[u] : 0;
  for (std::size_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) {
      const LinkId l = ways_[flows_[f].way + i];
      if (never_binds_[at(l)])
        final_colour[folding.place[at(l)]] +=
            scatter_colour(mix_colour(kFlowSalt, static_cast<std::uint64_t>(folding.class_of_flow[f])));
    }
  for (std::size_t u = 0; u < folding.used.size(); ++u)
    if (!never_binds_[at(folding.used[u])])
      final_colour[u] = mix_colour(
          kLinkSalt, static_cast<std::uint64_t>(folding.classes[folding.vertex_of_link[at(folding.used[u])]]));
  const std::vector<std::uint32_t> link_numbers = classes_of(final_colour);
  class_of_link_.assign(at(topology_.links()), kUnseen);
  for (std::size_t u = 0; u < folding.used.size(); ++u) {
    const std::uint32_t n = link_numbers[u];
    if (n == link_classes_.size())
      link_classes_.push_back({.first = folding.used[u],
                               .kind = topology_.kind(folding.used[u]),
                               .links = 0,
                               .bytes_per_second = topology_.bytes_per_second(folding.used[u]),
                               .never_binds = never_binds_[at(folding.used[u])] != 0});
    ++link_classes_[n].links;
    class_of_link_[at(folding.used[u])] = n;
  }
}

void Traffic::count_loads(Folding& folding) {
  // Loads are counted on the first link of each class.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> over;  // flow class, link class
  const auto count = [&](std::uint32_t flow_class, LinkId l) {
    const std::uint32_t c = class_of_link_[at(l)];
    if (link_classes_[c].first == l) over.emplace_back(flow_class, c);
  };
  for (std::size_t f = 0; f < flows_.size(); ++f)
    for (std::uint32_t i = 0; i < flows_[f].links; ++i) count(folding.class_of_flow[f], ways_[flows_[f].way + i]);
  for (std::size_t b = 0; b < background_.size(); ++b) count(background_class_[b], background_[b]);
  std::sort(over.begin(), over.end());
  for (std::size_t i = 0; i < over.size();) {
    std::size_t j = i;
    while (j < over.size() && over[j] == over[i]) ++j;
    flow_classes_[over[i].first].loads.push_back({over[i].second, static_cast<double>(j - i)});
    i = j;
  }
}

void Traffic::connect(Folding& folding) {
  colour_ranks_and_groups(folding);
  colour_flows(folding);
  colour_links(folding);
  connect_flows(folding);
}

void Traffic::number_classes(Folding& folding) {
  folding.number.assign(folding.graph.vertices(), kUnseen);
  number_ranks_and_groups(folding);
  number_flows(folding);
  number_links(folding);
  count_loads(folding);
}

bool Traffic::find_classes(std::size_t most_rank_classes) {
  Folding folding;
  connect(folding);
  folding.classes = folding.graph.refine(at(ranks()), most_rank_classes);
  if (folding.classes.empty()) return false;
  number_classes(folding);
  return true;
}

void Traffic::number_apart() {
  lay_patterns();
  Folding folding;
  connect(folding);
  folding.classes.resize(folding.graph.vertices());
  std::iota(folding.classes.begin(), folding.classes.end(), 0u);
  number_classes(folding);
  measure_patterns();
  free_flows();
}

void Traffic::fold(std::int64_t most_exact) {
  lay_patterns();
  find_links_that_never_bind();
  // Step-exact runs never fold in lockstep, because the order of messages must be exact.
  const auto all = at(ranks());
  const std::size_t most = exact_ ? all : at(std::min<std::int64_t>(most_exact, ranks()));
  if (!find_classes(most)) {
    const std::vector<Flow> edges = flows_;
    const std::vector<LinkId> ways = ways_;
    join_edges();
    in_lockstep_ = find_classes(all / 2);
    if (!in_lockstep_) {
      flows_ = edges;
      ways_ = ways;
      find_classes(all);
    }
  }
  measure_patterns();
  free_flows();
}

// If links never bind each of several flows, they do not bind them together either: whatever the rates of the flows,
// each edge has the same rates.
void Traffic::join_edges() {
  const auto key = [](const Flow& f) { return std::tuple(f.pattern, f.group_vertex, f.phase, f.leaves_node, f.share); };
  std::stable_sort(flows_.begin(), flows_.end(), [&](const Flow& a, const Flow& b) { return key(a) < key(b); });
  std::vector<Flow> joined;
  std::vector<LinkId> ways;
  ways.reserve(ways_.size());
  for (const Flow& edge : flows_) {
    if (joined.empty() || key(joined.back()) != key(edge)) {
      joined.push_back(edge);
      joined.back().way = static_cast<std::uint32_t>(ways.size());
      joined.back().links = 0;
      joined.back().edges = 0;
    }
    ways.insert(ways.end(), ways_.begin() + edge.way, ways_.begin() + edge.way + edge.links);
    joined.back().links += edge.links;
    ++joined.back().edges;
  }
  flows_ = std::move(joined);
  ways_ = std::move(ways);
}

}  // namespace orrery
