// FSMoE's adaptive partition of gradients (Pan et al. 2025, arXiv 2501.10714, section 5): the gradient all-reduce is
// cut into pieces that fill the idle times of the link between nodes in the layers that follow in the backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategies/fsmoe/degree.h"

namespace orrery::fsmoe {

// A layer with experts and the dense part between two such layers, in the order of the backward: the dense part, then
// the layer itself.
struct GeneralisedLayer {
  LayerTimes moe;                // backward
  double dense_seconds = 0;      // idle time of the link between nodes
  double gradient_elements = 0;  // its gradients, all-reduced from the next layer on
};

struct GradientPartition {
  std::vector<double> in_dense, in_moe;  // elements all-reduced in each layer's dense part, and in its experts' part
  std::vector<PipelinedLayer> layers;    // with these pieces, at their best degree
  double after = 0;                      // elements all-reduced after the last layer
  // Time of all layers and of the remaining all-reduce. Each piece pays its start-up. The remainder pays by elements
  // only, since the last layer's gradient needs a start-up there anyway.
  double seconds = 0;
};

// greedy_partition and best_partition take layers in the order of the backward pass, and degrees as best_degree does.
// They throw InputError if times or elements are negative, or if the all-reduce takes no time per element.

// Step 1: each part in turn all-reduces as many of the available gradients as fit into its idle time.
GradientPartition greedy_partition(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
                                   std::span<const std::int64_t> degrees = kDegrees);

// Step 2: the partition of least time. A layer may exceed its idle time if another degree makes up for it. The paper
// uses differential evolution; here dynamic programming over the ends of idle times finds the exact optimum as long as
// no layer has more than `kMostStates` partitions worth keeping. Beyond that, neighbouring ones are merged. Never
// slower than the greedy partition.
inline constexpr std::size_t kMostStates = 4096;
GradientPartition best_partition(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
                                 std::span<const std::int64_t> degrees = kDegrees);

// Computes all but in_dense and in_moe from these two. Throws InputError if more is all-reduced than exists.
void evaluate(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
              std::span<const std::int64_t> degrees, GradientPartition& partition);

}  // namespace orrery::fsmoe
