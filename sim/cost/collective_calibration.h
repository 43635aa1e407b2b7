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

// The calibration of a cluster. The node class is the first that lists the device's architecture and the node's fabric,
// and whose least_devices the node has. The device's own calibration file is searched first, then the bundled classes.
// Without such a class it is the first bundled one that has no architectures and lists the fabric, then the first
// bundled one. The network class is the first with a word in the fabric's name, else the first. `note` names a node
// class without measurements, and a class that matches nothing (a network class only for several nodes). Never fails.
CollectiveCalibration find_collective_calibration(const Cluster& cluster);
// The same. The user's classes, in the format of the bundled file, are tried first, those without architectures too.
CollectiveCalibration find_collective_calibration(const Cluster& cluster, const CollectiveClasses& user);

// The parameters of the classes of collectives, by the names that their file gives them: one table for reading, writing
// and fitting.
//
// `fields` has number(name, value, range), integer(name, value, least), boolean(name, value), rates(name, values),
// protocols(name, values, range, with_ll128), and protocols_or(name, values, usual, range): without LL128; a file that
// lacks them has the usual ones.
inline constexpr NumberRange kPositiveShare{.least = 0, .most = 1, .exclude_least = true};

template <class Fields>
void visit_parameters(IntraCalibration& c, Fields& fields) {
  constexpr NumberRange kAny;
  fields.number("ring_share", c.ring_share, kPositiveShare);
  fields.number("local_steps", c.local_steps, kAny);
  fields.number("all_to_all_share", c.all_to_all_share, kPositiveShare);
  fields.number("send_share", c.send_share, kPositiveShare);
  fields.number("host_bridge_share", c.host_bridge_share, kPositiveShare);
  fields.protocols("protocol_share", c.protocol_share, kPositiveShare, true);
  fields.protocols("tree_share", c.tree_share, kPositiveShare, true);
  fields.boolean("ll128", c.ll128);
  fields.rates("ll_bytes_per_second", c.ll_bytes_per_second);
  fields.protocols("base_seconds", c.base_seconds, kAny, true);
  fields.protocols("step_seconds", c.step_seconds, kAny, true);
  fields.protocols("send_base_seconds", c.send_base_seconds, kAny, false);
  fields.protocols("all_to_all_base_seconds", c.all_to_all_base_seconds, kAny, false);
  fields.number("send_step_seconds", c.send_step_seconds, kAny);
  fields.number("nvls_share", c.nvls_share, kPositiveShare);
  fields.number("nvls_network_share", c.nvls_network_share, kPositiveShare);
  fields.number("nvls_rank_seconds", c.nvls_rank_seconds, kAny);
  fields.integer("nvls_least_ranks", c.nvls_least_ranks, 2);
  fields.number("nvls_seconds", c.nvls_seconds, kAny);
  fields.number("nvls_fill_seconds", c.nvls_fill_seconds, kAny);
  fields.number("nvls_fill_bytes", c.nvls_fill_bytes, positive());
  fields.integer("nvls_channels", c.nvls_channels, 1);
  fields.number("network_base_seconds", c.network_base_seconds, kAny);
}

template <class Fields>
void visit_parameters(InterCalibration& c, Fields& fields) {
  constexpr NumberRange kAny;
  fields.number("ring_share", c.ring_share, kPositiveShare);
  fields.number("tree_share", c.tree_share, kPositiveShare);
  fields.number("all_to_all_share", c.all_to_all_share, kPositiveShare);
  fields.boolean("ll128", c.ll128);
  fields.number("ll_share", c.ll_share, kPositiveShare);
  fields.protocols("base_seconds", c.base_seconds, kAny, true);
  fields.protocols_or("send_base_seconds", c.send_base_seconds, c.base_seconds, kAny);
  fields.protocols("ring_step_seconds", c.ring_step_seconds, kAny, true);
  fields.protocols("tree_step_seconds", c.tree_step_seconds, kAny, true);
  fields.protocols("send_step_seconds", c.send_step_seconds, kAny, false);
  fields.number("ring_fill_seconds", c.ring_fill_seconds, kAny);
  fields.number("ring_fill_bytes", c.ring_fill_bytes, positive());
  fields.number("tree_fill_seconds", c.tree_fill_seconds, kAny);
  fields.number("tree_fill_bytes", c.tree_fill_bytes, positive());
  fields.number("included_latency_seconds", c.included_latency_seconds, kAny);
}

}  // namespace orrery
