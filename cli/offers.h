// Options and arguments that several commands have, with the values that shells offer for them: scenarios, clusters,
// fields, calibrations, and those whose values are the names of an enumeration.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"
#include "sim/hardware/cluster.h"
#include "study/answers/arguments.h"

namespace orrery {

// Offers bundled scenarios, published measurements and files.
inline const Option& offer_scenarios(const Option& option) {
  return option.offers_names({"scenarios", "measurements"}).offers_files();
}

// Offers what read_cluster_argument accepts.
inline const Option& offer_clusters(const Option& option) {
  return option.offers_names({"clusters", "nodes", "scenarios"}).offers_files();
}

// Adds an option that names fields of a scenario with their values.
inline void add_fields(const Command& command, const char* name, std::vector<std::string>& values,
                       const char* description, const char* type = "KEY=VALUE") {
  command.add_several(name, values, description, type).offers_names({"fields"}, "=");
}

inline void add_calibrations(
    const Command& command, std::vector<std::string>& files,
    const char* description = "A result of `orrery calibrate` to use instead of the bundled calibration") {
  command.add_several("--calibration", files, description, "FILE");
}

inline std::vector<std::string> texts(std::span<const std::string_view> names) { return {names.begin(), names.end()}; }

// The options that choose how a program is timed: --engine, --fidelity, --routing.
struct EngineArguments : EngineChoice {
  // `both`: whether the command accepts two engines, side by side.
  void add_to(Command command, bool both);

  // become_program_with() SimGrid (cli/sibling.h), if the chosen engine needs it.
  void become_program_with_engine() const;
};

// `of`: a cluster or node preset, a bundled scenario, the file of a scenario or cluster, or "-". Throws InputError.
// `perturbed` is set if `of` is a scenario with perturbations, which the cluster does not include.
Cluster read_cluster_argument(const std::string& of, bool* perturbed = nullptr);

}  // namespace orrery
