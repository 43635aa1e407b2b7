// FSMoE's adaptive partition of gradients (Pan et al. 2025, arXiv 2501.10714, section 5): the all-reduce of gradients
// is cut so that its pieces fill what the link between nodes idles in the layers that follow backward.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "strategies/fsmoe/degree.h"

namespace orrery::fsmoe {

// A layer with experts and all that follows it backward up to the next one, in this order: the dense part, the layer's
// own.
struct GeneralisedLayer {
  LayerTimes moe;                // backward
  double dense_seconds = 0;      // in which the link between nodes idles
  double gradient_elements = 0;  // that it leaves to be all-reduced from the next layer on
};

struct GradientPartition {
  std::vector<double> in_dense, in_moe;  // elements all-reduced in each layer's dense part and in its own
  std::vector<PipelinedLayer> layers;    // with these pieces, at their best degree
  double after = 0;                      // elements left for the end
  // Of all layers and of what is left: each piece has its start-up, the rest its time by elements alone, as the last
  // layer's gradient is there to start up for in any case.
  double seconds = 0;
};

// Both take layers in the order of the backward pass, and degrees as best_degree. Throw InputError where times or
// elements are negative, or the all-reduce takes none by element.

// Step 1: each part in turn takes of the gradients that are there what fits its idle time.
GradientPartition greedy_partition(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
                                   std::span<const std::int64_t> degrees = kDegrees);

// Step 2, for which the paper takes differential evolution: the partition of least time, in which layers may take more
// than their idle time where another degree makes up for it. Found exactly, by dynamic programming over the ends of
// idle times, up to `kMostStates` partitions that are worth keeping at a layer; of more those next to each other are
// merged. Never slower than the greedy one.
inline constexpr std::size_t kMostStates = 4096;
GradientPartition best_partition(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
                                 std::span<const std::int64_t> degrees = kDegrees);

// What a partition takes, whoever made it; fills in all but in_dense and in_moe. Throws InputError where more is
// all-reduced than is there.
void evaluate(std::span<const GeneralisedLayer> layers, const LinearTime& all_reduce,
              std::span<const std::int64_t> degrees, GradientPartition& partition);

}  // namespace orrery::fsmoe
