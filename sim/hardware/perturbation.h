// Faults and disturbances of a cluster during a step, for the discrete-event engine: slow and failing devices and
// links, background traffic, jitter. Plain data, from a scenario's "perturbations".
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/fields.h"

namespace orrery {

enum class PerturbationKind : std::uint8_t {
  slow_device,         // kernels of the device run at `factor` of their rate
  slow_link,           // the link carries `factor` of its rate
  failing_link,        // the link carries nothing from `from_seconds` on
  failing_node,        // the node's devices and links stop at `from_seconds`
  background_traffic,  // a flow of `bytes_per_second` over the link that competes like any other
  jitter,  // every kernel's time is multiplied by a random number of mean 1, drawn for each device and kernel
};
inline constexpr std::array<std::string_view, 6> kPerturbationKindNames{
    "slow_device", "slow_link", "failing_link", "failing_node", "background_traffic", "jitter"};

enum class JitterDistribution : std::uint8_t { lognormal, gamma, uniform };
inline constexpr std::array<std::string_view, 3> kJitterDistributionNames{"lognormal", "gamma", "uniform"};

struct Perturbation {
  PerturbationKind kind = PerturbationKind::slow_device;
  std::vector<std::int64_t> devices;  // of the cluster (slow_device, jitter); empty: by `count`; for jitter all
  std::vector<std::int64_t> nodes;  // for failing_node
  std::string link;                 // a name, or a pattern with '*' (Topology::find)
  std::int64_t count = 0;  // devices, links (that `link` matches) or nodes to choose at random; 0: all named
  std::int64_t seed = 0;
  double factor = 1;
  double from_seconds = 0;   // from the start of the step
  double until_seconds = 0;  // 0: to the end of the step
  double bytes_per_second = 0;
  JitterDistribution distribution = JitterDistribution::lognormal;
  double coefficient_of_variation = 0;  // standard deviation over mean

  void visit_fields(FieldVisitor& v) {
    v.field("kind", kind, kPerturbationKindNames, "kind of perturbation");
    v.field("devices", devices, at_least(0), "affected devices of the cluster (slow_device, jitter)");
    v.field("nodes", nodes, at_least(0), "affected nodes (failing_node)");
    v.field("link", link, "affected link: a name, or a pattern with * (orrery show links)");
    v.field("count", count, at_least(0),
            "number of targets drawn at random, from those named if any are; 0: all of them");
    v.field("seed", seed, at_least(0), "seed of the random choice or of the jitter");
    v.field("factor", factor, {.least = 0, .exclude_least = true}, "share of the usual rate that remains");
    v.field("from_seconds", from_seconds, {}, "start of the perturbation, from the start of the step");
    v.field("until_seconds", until_seconds, {}, "end of the perturbation; 0: the end of the step");
    v.field("bytes_per_second", bytes_per_second, {}, "rate of the background traffic");
    v.field("distribution", distribution, kJitterDistributionNames, "distribution of jitter");
    v.field("coefficient_of_variation", coefficient_of_variation, {}, "jitter: standard deviation over mean");
  }
};

// Ranks 0, 1, ... of a job on devices of the cluster, node by node.
struct JobNodes {
  std::int64_t first_node = 0;
  std::int64_t node_stride = 1;  // 2: every other node

  void visit_fields(FieldVisitor& v) {
    v.field("first_node", first_node, at_least(0), "node of the job's first rank");
    v.field("node_stride", node_stride, at_least(1), "distance between the job's nodes");
  }
  std::int64_t device(std::int64_t rank, std::int64_t devices_per_node) const {
    return (first_node + rank / devices_per_node * node_stride) * devices_per_node + rank % devices_per_node;
  }
};

}  // namespace orrery
