// FSMoE's own formulas (Pan et al. 2025, arXiv 2501.10714). The pipeline degree (section 4): the number of chunks in
// which a layer with experts overlaps its all-to-alls between nodes, its all-gathers and reduce-scatters within nodes,
// its experts and a piece of a gradient all-reduce. The forward and the backward have a degree each. The adaptive
// partition of gradients (section 5): the gradient all-reduce is cut into pieces that fill the idle times of the link
// between nodes in the layers that follow in the backward.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery::fsmoe {

// Time of an operation on `work` units, fitted to measurements: t = start_up + work per_unit (seconds).
struct LinearTime {
  double start_up = 0, per_unit = 0;

  double seconds(double work) const { return start_up + work * per_unit; }
};

// Time of an operation of a layer: start_up + whole / r on one of r chunks (seconds).
struct ChunkedTime {
  double start_up = 0, whole = 0;

  double of_chunk(double degree) const { return start_up + whole / degree; }
};

// The pipelined operations of a layer (seconds). Dispatch and combine each take one all_to_all.
struct LayerTimes {
  ChunkedTime all_to_all, all_gather, reduce_scatter, experts;
};
// Returns the times of the backward pass: experts take twice as long, including the start-up, as in the authors' code.
LayerTimes backward(LayerTimes forward);

// What limits the pipeline: the four cases of section 4.2, with their numbers there.
enum class Bottleneck : std::uint8_t { inter_node = 1, experts = 2, all_to_all = 3, intra_node = 4 };

struct PipelinedLayer {
  std::int64_t degree = 1;
  Bottleneck bottleneck = Bottleneck::experts;
  double seconds = 0;
  // Idle time of the link between nodes: the longest gradient all-reduce that adds no time (t_olp,moe of section 5).
  double idle_seconds = 0;
};

// The degrees that the authors' code tries (tools/optim.py). All are evaluated; the paper uses SLSQP instead.
inline constexpr std::array<std::int64_t, 4> kDegrees{1, 2, 4, 8};

// Returns the time of a layer with an all-reduce of all_reduce_seconds after the last dispatch. REQUIRES: degree >= 1.
PipelinedLayer pipelined(const LayerTimes& times, std::int64_t degree, double all_reduce_seconds);
// Returns the fastest of `degrees`, and the smallest of equally fast ones. REQUIRES: `degrees` is not empty.
PipelinedLayer best_degree(const LayerTimes& times, double all_reduce_seconds,
                           std::span<const std::int64_t> degrees = kDegrees);

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
