// Reads the "cluster" of a scenario: a cluster preset's name, a node preset and a count, or an object with all fields.
// README.md beside this file shows each form.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/presets.h"

namespace orrery {

class JsonReader;

// Accepts
//   "selene"                                     a cluster preset
//   "dgx-h100"                                   a node preset: one such node
//   {"node": "dgx-h100", "nodes": 64}            nodes of a preset (or of an object, see read_node), with their usual
//                                                fabric
//   {"device": "A100-SXM4-80GB", "nodes": 4}     the node preset that is usual for the device
//   {"base": "selene", "nodes": 96}              a cluster preset, changed
// each with optional overrides: "devices_per_node", "fabric" (a name, or an object whose missing fields are those of
// the usual fabric), "intra_node_bytes_per_second" (per device and direction), "inter_node_bytes_per_second" (all NICs
// of a node, one direction), any other rate of Node::visit_rates, and "topology_file", the output of
// `nvidia-smi topo -m` on such a node. Everything is checked: in the result, every level that exists has a positive
// rate. Throws InputError.
//
// If devices_per_node differs from the preset's, devices keep their own rate over the scale-up fabric, and the node
// keeps its NICs.
Cluster read_cluster(const nlohmann::json& json, const InputError::Where& where);

// Reads "links", the rates of a node whose pairs of devices differ (read_links.cpp):
//   [{"bytes_per_second": 200e9, "pairs": [[0, 1], [2, 3]]}, {"bytes_per_second": 50e9, "pairs": [[0, 2], [1, 3]]}]
// To be called when the node's other fields have been read. They replace the node's links; an empty list removes
// them. Throws InputError if the node is not a direct_mesh or has more than kMostLinkedDevices, if a device or rate is
// out of range, if a pair is listed twice, or if the links do not join all devices. Without the key, links of the
// node's preset stay between devices that the node still has, unless it is no direct_mesh any more or
// "pair_bytes_per_second" is given; throws InputError if they no longer join all devices.
void read_links(JsonReader& reader, Node& node);

// Returns the node's links in the form that read_links() reads.
nlohmann::json links_json(const Node& node);

// The complete object; read_cluster(to_json(c)) == c.
nlohmann::json to_json(const Cluster& cluster);
nlohmann::json to_json(const Device& device);
nlohmann::json to_json(const Node& node);
nlohmann::json to_json(const Fabric& fabric);

}  // namespace orrery
