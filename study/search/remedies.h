// If nothing fits: the changes with which something would.
#pragma once

#include <string>
#include <vector>

#include "study/search/search.h"

namespace orrery {

struct Remedy {
  std::string what;   // "plan.recompute free", "16 nodes instead of 8"
  Scenario scenario;  // the fastest plan that fits then
  FoundPlan plan;
};

// Each remedy changes one thing by the smallest sufficient amount: a field is no longer fixed or restricted to some
// values, all fields are searched, the number of nodes is doubled as often as necessary (16 times at most), or the
// sequence is halved.
std::vector<Remedy> remedies(const Scenario& base, const SpaceOptions& space, const SearchOptions& options,
                             const UserCalibration& user = {});

}  // namespace orrery
