// Values that shells offer for arguments that several commands have.
#pragma once

#include "cli/command.h"

namespace orrery {

// A bundled scenario, a published measurement or a file.
inline const Option& offer_scenarios(const Option& option) {
  return option.offers_names({"scenarios", "measurements"}).offers_files();
}

// Values of read_cluster_argument.
inline const Option& offer_clusters(const Option& option) {
  return option.offers_names({"clusters", "nodes", "scenarios"}).offers_files();
}

// KEY=VALUE, a field of a scenario.
inline const Option& offer_fields(const Option& option) { return option.offers_names({"fields"}, "="); }

}  // namespace orrery
