// Values that shells offer for arguments that several commands have. Each function adds the offer
// to an option and returns the option.
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

// Offers the fields of a scenario, as KEY=VALUE.
inline const Option& offer_fields(const Option& option) { return option.offers_names({"fields"}, "="); }

}  // namespace orrery
