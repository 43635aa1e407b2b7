// MEMO's alpha: the share of tokens whose other activations of a layer are swapped to the host (Zhao et al. 2024, arXiv
// 2407.12117, section 4.1). Computes its two bounds, from the cost models instead of a profile, next to the best values
// by the engine.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "sim/report/memory_verdict.h"
#include "strategies/topic.h"

namespace orrery::memo {

struct StepByAlpha {
  double alpha = 0;
  double seconds = 0;                                 // of the step
  double to_host_seconds = 0, to_device_seconds = 0;  // exposed time of the copies
  double peak_bytes = 0, node_host_bytes = 0;         // of the fullest device; of the fullest node's host
  MemoryVerdict verdict = MemoryVerdict::fits;
};

struct Alpha {
  // Bytes of one layer on one rank that go to the host whatever alpha is, and that do beside at alpha 1.
  double whole_bytes = 0, other_bytes = 0;
  double layer_seconds = 0;     // forward of a layer that copies nothing
  double bytes_per_second = 0;  // to the host, per device while all devices of the node copy
  double least_host_bytes = 0, most_host_bytes = 0, host_capacity_bytes = 0;  // of a node, at alpha 0 and 1

  // hidden(): the largest alpha whose copies take no longer than the next layer's forward. room(): the largest alpha
  // for which host memory has room; 1 if its capacity is unknown. Above 1: there is slack. Below 0: not even alpha 0
  // works.
  double hidden() const;
  double room() const;
  // The smaller of the two, limited to [0, 1] and rounded down to thousandths.
  double chosen() const;

  std::vector<StepByAlpha> steps;      // by the engine: alpha in steps of 1/8, and the chosen one; ascending
  const StepByAlpha& fastest() const;  // that fits, the first of equal ones; if none fits, the fastest of all
};

// Throws InputError ("--explain") for plans without memo, or none of whose stages has a layer that swaps.
Alpha find_alpha(const Scenario& scenario, const Evaluate& evaluate);
std::string text_of(const Alpha& alpha);

// `--explain memo_alpha`.
std::span<const Topic> topics();

}  // namespace orrery::memo
