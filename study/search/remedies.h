// Where nothing fits: what would have to give way.
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

// Each changes one thing and is the smallest of its kind that is enough: a field that is no longer fixed or held to
// some values, all fields searched, twice as many nodes as often as it takes (16 times at most), half the sequence.
std::vector<Remedy> remedies(const Scenario& base, const SpaceOptions& space, const SearchOptions& options,
                             const UserCalibration& user = {});

}  // namespace orrery
