// FSMoE's pipeline degree (Pan et al. 2025, arXiv 2501.10714, section 4): in how many chunks a layer with experts
// overlaps its all-to-alls between nodes, its all-gathers and reduce-scatters within nodes, its experts and a piece of
// a gradient all-reduce. Chosen for the forward and for the backward pass.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace orrery::fsmoe {

// What an operation takes on `work`, by profiling: t = start_up + work per_unit (seconds).
struct LinearTime {
  double start_up = 0, per_unit = 0;

  double seconds(double work) const { return start_up + work * per_unit; }
};

// An operation of a layer, which takes start_up + whole / r on one of r chunks.
struct ChunkedTime {
  double start_up = 0, whole = 0;

  double of_chunk(double degree) const { return start_up + whole / degree; }
};

// The operations that are pipelined: dispatch and combine take an all-to-all each. Seconds.
struct LayerTimes {
  ChunkedTime all_to_all, all_gather, reduce_scatter, experts;
};
// Of the backward pass: experts take twice as long, the start-up included as in the authors' code.
LayerTimes backward(LayerTimes forward);

// The four cases of section 4.2, by their numbers there: what the pipeline waits for.
enum class Bottleneck : std::uint8_t { inter_node = 1, experts = 2, all_to_all = 3, intra_node = 4 };

struct PipelinedLayer {
  std::int64_t degree = 1;
  Bottleneck bottleneck = Bottleneck::experts;
  double seconds = 0;
  // Of the link between nodes: the longest gradient all-reduce that costs no time (t_olp,moe of section 5).
  double idle_seconds = 0;
};

// The degrees that the authors' code tries (tools/optim.py). So few that all are evaluated, where the paper takes
// SLSQP.
inline constexpr std::array<std::int64_t, 4> kDegrees{1, 2, 4, 8};

// With an all-reduce of this many seconds behind the last dispatch. REQUIRES: degree >= 1.
PipelinedLayer pipelined(const LayerTimes& times, std::int64_t degree, double all_reduce_seconds);
// The fastest of `degrees`, of equal ones the smallest. REQUIRES: there is one.
PipelinedLayer best_degree(const LayerTimes& times, double all_reduce_seconds,
                           std::span<const std::int64_t> degrees = kDegrees);

}  // namespace orrery::fsmoe
