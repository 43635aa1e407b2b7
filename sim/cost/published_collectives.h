// The collectives of nccl-tests by name, and the systems of results/published/collectives.json.
#pragma once

#include <algorithm>
#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hardware/cluster.h"
#include "sim/program/op.h"

namespace orrery {

// The programs of nccl-tests. send_recv: every rank sends to the next rank and receives from the previous one.
struct CollectiveKind {
  std::string_view name;
  OpKind op;
};
inline constexpr std::array<CollectiveKind, 7> kCollectiveKinds{{{"all_reduce", OpKind::all_reduce},
                                                                 {"all_gather", OpKind::all_gather},
                                                                 {"reduce_scatter", OpKind::reduce_scatter},
                                                                 {"all_to_all", OpKind::all_to_all},
                                                                 {"broadcast", OpKind::broadcast},
                                                                 {"reduce", OpKind::reduce},
                                                                 {"send_recv", OpKind::ring_shift}}};
std::vector<std::string> collective_names();  // of kCollectiveKinds, in their order
// Returns nullptr if there is no such collective.
inline const CollectiveKind* find_collective(std::string_view name) {
  const auto* const found = std::ranges::find(kCollectiveKinds, name, &CollectiveKind::name);
  return found == kCollectiveKinds.end() ? nullptr : found;
}

// The cluster on which a curve was measured: `curve` is an entry of the file's "curves", `system` the one of
// its "systems" that the curve names. Distances between nodes are not stated: one switch reaches all. Throws
// nlohmann::json::exception for what is missing or has another type. REQUIRES: the kinds of fabrics are of
// kIntraFabricNames and kFabricKindNames.
Cluster cluster_of_curve(const nlohmann::json& curve, const nlohmann::json& system);
// The cluster as an entry of the file's "systems".
nlohmann::ordered_json system_json(Cluster cluster);

}  // namespace orrery
