// MEMO's alpha (Zhao et al. 2024, arXiv 2407.12117, section 4.1). MEMO swaps a layer's input and attention's output to
// the host for all tokens, and its other activations for the share alpha of the tokens. This computes the paper's two
// bounds on alpha, from the cost models instead of a profile, and the step that the engine predicts for various alphas.
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
  // Bytes of one layer on one rank: those that go to the host at any alpha, and those of the other activations, all of
  // which go there at alpha 1.
  double whole_bytes = 0, other_bytes = 0;
  double layer_seconds = 0;     // forward of a layer that copies nothing
  double bytes_per_second = 0;  // to the host, per device while all devices of the node copy
  double least_host_bytes = 0, most_host_bytes = 0, host_capacity_bytes = 0;  // of a node, at alpha 0 and 1

  // hidden() returns the largest alpha whose copies take no longer than the next layer's forward. room() returns the
  // largest alpha for which host memory has room; 1 if its capacity is unknown. Above 1: there is slack. Below 0: not
  // even alpha 0 works.
  double hidden() const;
  double room() const;
  // Returns the smaller of the two, limited to [0, 1] and rounded down to thousandths.
  double chosen() const;

  std::vector<StepByAlpha> steps;  // by the engine: alpha in steps of 1/8, and the chosen one; ascending
  // Returns the fastest step that fits into memory, or the fastest of all if none fits; the first of equally fast ones.
  const StepByAlpha& fastest() const;
};

// Throws InputError ("--explain") for plans without memo, or none of whose stages has a layer that swaps.
Alpha find_alpha(const Scenario& scenario, const Evaluate& evaluate);
std::string text_of(const Alpha& alpha);

// Returns the topic of `--explain memo_alpha`.
std::span<const Topic> topics();

}  // namespace orrery::memo
