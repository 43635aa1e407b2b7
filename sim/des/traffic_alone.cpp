// The times of patterns that run alone.
#include <algorithm>
#include <limits>

#include "sim/des/traffic.h"

namespace orrery {

template <class Counts>
Traffic::Alone Traffic::measure_alone(const std::vector<std::uint32_t>& flow_classes, Counts&& counts) const {
  struct State {
    double left = 0, rate = 0;
    bool fixed = false;
    std::vector<LinkLoad> loads;  // indices into `links`
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
        // Links of a torus also carry other nodes' traffic; a node's share is what it sends.
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

}  // namespace orrery
