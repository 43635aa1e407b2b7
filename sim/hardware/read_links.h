// Reads the "links" of a node whose pairs of devices differ:
//   [{"bytes_per_second": 200e9, "pairs": [[0, 1], [2, 3]]}, {"bytes_per_second": 50e9, "pairs": [[0, 2], [1, 3]]}]
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/base/json_reader.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Reads "links" into the node, whose other fields have been read. Without that key, links that it has from its preset
// stay, as long as they still describe it: the object does not give all pairs one rate (pair_bytes_per_second), the
// node is a direct_mesh, and of the devices that it has now they join all. Throws InputError.
void read_links(JsonReader& reader, Node& node);

nlohmann::json links_json(const Node& node);

}  // namespace orrery
