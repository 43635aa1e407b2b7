#include "strategies/fsmoe/workload.h"

namespace orrery::fsmoe {
namespace {

// Doubles: counts of products beyond 2^53 need not be exact.
struct Sizes {
  explicit Sizes(const LayerSize& s)
      : b(static_cast<double>(s.sequences)),
        l(static_cast<double>(s.length)),
        m(static_cast<double>(s.hidden)),
        h(static_cast<double>(s.ffn)),
        assignments(static_cast<double>(s.top_k) * s.capacity_factor * b * l),
        node(static_cast<double>(s.node_ranks)) {}
  double b, l, m, h, assignments, node;
};

ChunkedTime chunked(const LinearTime& time, double work) { return {time.start_up, work * time.per_unit}; }

}  // namespace

double all_to_all_elements(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m / s.node;
}
double gather_elements(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m;
}
double expert_products(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m * s.h * static_cast<double>(size.expert_products) / s.node;
}
double attention_products(const LayerSize& size) {
  const Sizes s(size);
  const auto heads = static_cast<double>(size.heads);
  return s.b * s.l * s.m * s.m * 3 / s.node + 2 * s.b * (heads / s.node) * s.l * s.l * (s.m / heads) +
         s.b * s.l * s.m * s.m / s.node;
}
double attention_gradients(const LayerSize& size) {
  const Sizes s(size);
  if (size.grouped_query) return (1.5 * s.m * s.m + s.m * s.m) / s.node;
  return (3 * s.m * s.m + 3 * s.m + s.m * s.m) / s.node + s.m;
}

LayerTimes forward_times(const LayerSize& size, const ClusterTimes& cluster) {
  return {chunked(cluster.all_to_all, all_to_all_elements(size)), chunked(cluster.all_gather, gather_elements(size)),
          chunked(cluster.reduce_scatter, gather_elements(size)), chunked(cluster.product, expert_products(size))};
}

double dense_backward_seconds(const LayerSize& size, const ClusterTimes& cluster) {
  const Sizes s(size);
  const double tokens = s.b * s.l * s.m;
  return 2 * cluster.attention.seconds(attention_products(size)) + cluster.all_gather.seconds(tokens) +
         cluster.reduce_scatter.seconds(tokens);
}

}  // namespace orrery::fsmoe
