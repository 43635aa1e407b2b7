// Options and arguments that several commands have, with the values that shells offer for them.
#pragma once

#include "cli/command.h"

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

}  // namespace orrery
