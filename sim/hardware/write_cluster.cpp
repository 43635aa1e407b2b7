#include <nlohmann/json.hpp>

#include "sim/base/fields_json.h"
#include "sim/hardware/read_cluster.h"
#include "sim/hardware/read_placement.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

template <class Struct>
Json written(Struct value) {  // a copy, because tables of fields take references
  Json json;
  auto writer = fields_json(json);
  value.visit_fields(writer);
  return json;
}

}  // namespace

Json to_json(const Device& device) {
  Json json = written(device);
  json["usual_nodes"] = device.usual_nodes;
  return json;
}

Json to_json(const Node& node) { return written(node); }

Json to_json(const Fabric& fabric) { return written(fabric); }

Json to_json(const Cluster& cluster) {
  Json json{{"name", cluster.name},
            {"nodes", cluster.nodes},
            {"device", to_json(cluster.device)},
            {"node", to_json(cluster.node)},
            {"fabric", to_json(cluster.fabric)}};
  if (!cluster.source.empty()) json["source"] = cluster.source;
  if (cluster.production) json["production"] = true;
  if (cluster.is_scattered() || cluster.placement.of > 0) json["placement"] = to_json(cluster.placement);
  return json;
}

}  // namespace orrery
