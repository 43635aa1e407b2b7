// Calibrations of collectives from JSON: results/calibration/collectives.json, compiled in, or a user's own.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/base/error.h"
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

// The calibration of a cluster. Node class: the first class that lists the device's architecture and the node's fabric;
// else the first without architectures for that fabric; else the first for that fabric. Network class: the first with a
// word in the fabric's name; else the first. `note` names each choice that was not the first of these. Never fails.
CollectiveCalibration find_collective_calibration(const Cluster& cluster);
// The same with a user's classes, in the format of the bundled file, tried before the bundled ones.
CollectiveCalibration find_collective_calibration(const Cluster& cluster, const CollectiveClasses& user);

}  // namespace orrery
