#include "cli/cluster_argument.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/hardware/read_cluster.h"
#include "strategies/read_scenario.h"

namespace orrery {

Cluster read_cluster_argument(const std::string& of, bool* perturbed) {
  const auto scenarios = bundled_scenarios();
  const bool bundled =
      std::any_of(scenarios.begin(), scenarios.end(), [&](const BundledScenario& s) { return s.name == of; });
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
    for (const std::string& node : node_names()) names.push_back(node);
    for (const BundledScenario& scenario : scenarios) names.emplace_back(scenario.name);
    throw InputError({}, describe(of), "a cluster, node or scenario, or a file with one", nearest_name(of, names));
  }
}

}  // namespace orrery
