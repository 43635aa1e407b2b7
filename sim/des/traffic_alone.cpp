// The times of patterns that run alone.
#include <algorithm>

#include "sim/base/index.h"
#include "sim/des/fair_flows.h"

namespace orrery {

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
      add(patterns_[p].inside, measure_alone(inside, anywhere));
      if (cluster_.fabric.kind == FabricKind::torus && out_of_nodes > 0) {
        // Links of a torus also carry other nodes' traffic; a node's share is what it sends.
        const std::int64_t ranks_of_job = job_of(patterns_[p].kind).mesh.ranks();
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
