// Calibrations of collectives from JSON: results/calibration/collectives.json, compiled in, or a user's own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/base/fields.h"
#include "sim/cost/collective_cost.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Visits the parameters of a calibration by their names in JSON: visitor.number(name, value, range), .boolean(name,
// value), .integer(name, value, least), .protocols(name, values, range, whether LL128 has one) or .rates(name, values).
inline constexpr NumberRange kPositiveShare{.least = 0, .most = 1, .exclude_least = true};
template <class Visitor>
void visit_parameters(IntraCalibration& c, Visitor& p) {
  p.number("ring_share", c.ring_share, kPositiveShare);
  p.number("local_steps", c.local_steps, NumberRange{});
  p.number("all_to_all_share", c.all_to_all_share, kPositiveShare);
  p.number("send_share", c.send_share, kPositiveShare);
  p.number("host_bridge_share", c.host_bridge_share, kPositiveShare);
  p.protocols("protocol_share", c.protocol_share, kPositiveShare, true);
  p.protocols("tree_share", c.tree_share, kPositiveShare, true);
  p.boolean("ll128", c.ll128);
  p.rates("ll_bytes_per_second", c.ll_bytes_per_second);
  p.protocols("base_seconds", c.base_seconds, NumberRange{}, true);
  p.protocols("step_seconds", c.step_seconds, NumberRange{}, true);
  p.protocols("send_base_seconds", c.send_base_seconds, NumberRange{}, false);
  p.protocols("all_to_all_base_seconds", c.all_to_all_base_seconds, NumberRange{}, false);
  p.number("send_step_seconds", c.send_step_seconds, NumberRange{});
  p.number("nvls_share", c.nvls_share, kPositiveShare);
  p.number("nvls_network_share", c.nvls_network_share, kPositiveShare);
  p.number("nvls_rank_seconds", c.nvls_rank_seconds, NumberRange{});
  p.integer("nvls_least_ranks", c.nvls_least_ranks, 2);
  p.number("nvls_seconds", c.nvls_seconds, NumberRange{});
  p.number("nvls_fill_seconds", c.nvls_fill_seconds, NumberRange{});
  p.number("nvls_fill_bytes", c.nvls_fill_bytes, positive());
  p.integer("nvls_channels", c.nvls_channels, 1);
  p.number("network_base_seconds", c.network_base_seconds, NumberRange{});
}
template <class Visitor>
void visit_parameters(InterCalibration& c, Visitor& p) {
  p.number("ring_share", c.ring_share, kPositiveShare);
  p.number("tree_share", c.tree_share, kPositiveShare);
  p.number("all_to_all_share", c.all_to_all_share, kPositiveShare);
  p.boolean("ll128", c.ll128);
  p.number("ll_share", c.ll_share, kPositiveShare);
  p.protocols("base_seconds", c.base_seconds, NumberRange{}, true);
  p.protocols("ring_step_seconds", c.ring_step_seconds, NumberRange{}, true);
  p.protocols("tree_step_seconds", c.tree_step_seconds, NumberRange{}, true);
  p.protocols("send_step_seconds", c.send_step_seconds, NumberRange{}, false);
  p.number("ring_fill_seconds", c.ring_fill_seconds, NumberRange{});
  p.number("ring_fill_bytes", c.ring_fill_bytes, positive());
  p.number("tree_fill_seconds", c.tree_fill_seconds, NumberRange{});
  p.number("tree_fill_bytes", c.tree_fill_bytes, positive());
  p.number("included_latency_seconds", c.included_latency_seconds, NumberRange{});
}

// Parameters of one accelerator generation on some kinds of scale-up fabric.
struct IntraClass {
  std::string name, source;
  std::vector<std::string> architectures;  // Device::architecture; empty: any
  std::vector<std::string> fabrics;        // kIntraFabricNames
  std::int64_t least_devices = 1;          // smallest number of devices in a node
  IntraCalibration parameters;
  CollectiveResidual residual;
};

// Parameters of one kind of network.
struct InterClass {
  std::string name, source;
  std::vector<std::string> words;  // the class applies if the fabric's name contains any of them
  InterCalibration parameters;
  CollectiveResidual residual;
};

struct CollectiveClasses {
  std::vector<IntraClass> node_classes;
  std::vector<InterClass> network_classes;
};

// Strict: unknown keys, wrong types and out-of-range numbers are InputErrors at their pointer.
CollectiveClasses read_collective_classes(const nlohmann::json& json, const InputError::Where& where);
// The bundled classes, read once.
const CollectiveClasses& bundled_collective_classes();

// The calibration of a cluster. Node class: the first class that lists the device's architecture and the node's fabric;
// else the first without architectures for that fabric; else the first for that fabric. Network class: the first with a
// word in the fabric's name; else the first. `note` names each choice that was not the first of these. Never fails.
CollectiveCalibration find_collective_calibration(const Cluster& cluster);
// The same with a user's classes, in the format of the bundled file, tried before the bundled ones.
CollectiveCalibration find_collective_calibration(const Cluster& cluster, const CollectiveClasses& user);

}  // namespace orrery
