#include "strategies/fsmoe/degree.h"

namespace orrery::fsmoe {

LayerTimes backward(LayerTimes forward) {
  forward.experts.start_up *= 2;
  forward.experts.whole *= 2;
  return forward;
}

PipelinedLayer pipelined(const LayerTimes& times, std::int64_t degree, double all_reduce_seconds) {
  const auto r = static_cast<double>(degree);
  const double a2a = times.all_to_all.of_chunk(r), ag = times.all_gather.of_chunk(r),
               rs = times.reduce_scatter.of_chunk(r), exp = times.experts.of_chunk(r), gar = all_reduce_seconds;
  const bool q1 = a2a > ag, q2 = r * exp > 2 * (r - 1) * a2a, q3 = r * exp > (r - 1) * (ag + rs);
  // Idle time of the link between nodes: Q1 with Q2 or Q3 choose the case; Q4 to Q7 ask if the all-reduce takes longer.
  const bool experts = q1 ? q2 : q3;
  const double idle = experts ? r * exp - 2 * (r - 1) * a2a + ag + rs  // Q5, Q7
                      : q1    ? ag + rs                                // Q4
                              : r * ag + r * rs - 2 * (r - 1) * a2a;      // Q6
  PipelinedLayer layer{degree, Bottleneck::inter_node, 2 * r * a2a + gar, idle};
  if (gar > idle) return layer;
  if (experts) {
    layer.bottleneck = Bottleneck::experts;
    layer.seconds = 2 * a2a + ag + rs + r * exp;
  } else if (q1) {
    layer.bottleneck = Bottleneck::all_to_all;
    layer.seconds = 2 * r * a2a + ag + rs;
  } else {
    layer.bottleneck = Bottleneck::intra_node;
    layer.seconds = 2 * a2a + r * ag + r * rs;
  }
  return layer;
}

PipelinedLayer best_degree(const LayerTimes& times, double all_reduce_seconds, std::span<const std::int64_t> degrees) {
  PipelinedLayer best = pipelined(times, degrees.front(), all_reduce_seconds);
  for (const std::int64_t degree : degrees.subspan(1)) {
    const PipelinedLayer other = pipelined(times, degree, all_reduce_seconds);
    if (other.seconds < best.seconds) best = other;
  }
  return best;
}

}  // namespace orrery::fsmoe
