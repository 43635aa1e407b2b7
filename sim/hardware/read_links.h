// Reads the "links" of a node whose pairs of devices differ:
//   [{"bytes_per_second": 200e9, "pairs": [[0, 1], [2, 3]]}, {"bytes_per_second": 50e9, "pairs": [[0, 2], [1, 3]]}]
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/json_reader.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Reads "links" into a node whose other fields have been read. They replace the node's links; an empty list removes
// them. Throws InputError if the node is not a direct_mesh or has more than kMostLinkedDevices, if a device or rate is
// out of range, if a pair is listed twice, or if the links do not join all devices. Without the key, links of the
// node's preset stay between devices that the node still has, unless it is no direct_mesh any more or
// "pair_bytes_per_second" is given; throws InputError if they no longer join all devices.
void read_links(JsonReader& reader, Node& node);

// Returns the node's links in the form that read_links() reads.
nlohmann::json links_json(const Node& node);

}  // namespace orrery
