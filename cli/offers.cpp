#include "cli/offers.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "sim/base/json_reader.h"
#include "sim/hardware/read_cluster.h"
#include "strategies/read_scenario.h"

namespace orrery {

Cluster read_cluster_argument(const std::string& of, bool* perturbed) {
  const bool bundled = find_bundled(bundled_scenarios(), of) != nullptr;
  std::error_code ignored;
  if (bundled || of == "-" || of.ends_with(".json") || std::filesystem::exists(of, ignored)) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(of, {}, source);
    if (perturbed != nullptr && document.is_object()) *perturbed = document.contains("perturbations");
    if (document.is_object() && document.contains("cluster")) return ScenarioReader().read_cluster_of(document, source);
    return read_cluster(document, {source.file, ""});
  }
  try {
    return read_cluster(of, {});
  } catch (const InputError& error) {
    if (error.where().file.empty() && error.where().pointer == "/device")
      throw InputError({}, describe(of),
                       fmt::format("a node with its device, as {0} takes any: {{\"node\": \"{0}\", \"device\": "
                                   "\"L40S\"}} in a JSON file",
                                   of));
    if (!error.where().file.empty() || !error.where().pointer.empty()) throw;
    std::vector<std::string> names = cluster_names();
    for (const auto& more : {node_names(), names_of(bundled_scenarios())})
      names.insert(names.end(), more.begin(), more.end());
    throw InputError({}, describe(of), "a cluster, node or scenario, or a file with one", nearest_name(of, names));
  }
}

}  // namespace orrery
