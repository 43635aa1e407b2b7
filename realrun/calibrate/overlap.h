// How much products, attention and copies between host and device slow each other down: `orrery calibrate` runs pairs
// at the same time, on backends with BackendFacts::asynchronous_streams.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/sweep.h"
#include "sim/cost/calibration.h"

namespace orrery {

struct OverlapPair {
  KernelPoint compute, copy;  // compute: a product or an attention
  // Ids in the journal: each alone, and each beside the other.
  std::string compute_alone, copy_alone, compute_beside, copy_beside;
};

// Returns large products of the first dtype beside copies of both directions, and attention beside the copy that a step
// hides behind it: the forward beside copies to the host, the backward beside copies back.
std::vector<OverlapPair> overlap_pairs(const SweepOptions& options);

// For pairs with products, returns the geometric mean of each direction; their scatter is the residual. Pairs with
// attention are returned one by one. Returns nothing if a direction has no measured pair.
std::optional<CopyOverlaps> fit_overlaps(const std::vector<OverlapPair>& pairs,
                                         const std::map<std::string, Measurement>& measured);

}  // namespace orrery
