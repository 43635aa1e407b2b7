// What products, attention and copies between host and device cost each other: `orrery calibrate` runs both at once, on
// backends whose streams do (BackendFacts::asynchronous_streams).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "realrun/calibrate/measure.h"
#include "realrun/calibrate/sweep.h"
#include "sim/cost/copy_overlap.h"

namespace orrery {

struct OverlapPair {
  KernelPoint compute, copy;  // a product or an attention
  // Under which the journal has each: alone, and while the other runs.
  std::string compute_alone, copy_alone, compute_beside, copy_beside;
};

// Large products of the first dtype, beside copies of both directions; attention beside the one that a step hides
// behind it: the forward beside copies to the host, the backward beside those back.
std::vector<OverlapPair> overlap_pairs(const SweepOptions& options);

// Of the pairs with products that were measured, the geometric mean of each direction; their scatter is the residual.
// Nothing where a direction has no pair. Those with attention one by one.
std::optional<CopyOverlaps> fit_overlaps(const std::vector<OverlapPair>& pairs,
                                         const std::map<std::string, Measurement>& measured);

}  // namespace orrery
