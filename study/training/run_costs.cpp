#include "study/training/run_costs.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "sim/analytical/op_cost.h"
#include "sim/cost/collective_cost.h"

namespace orrery {
namespace {

// Places of a group as ranks `stride` apart, in a cluster's nodes.
struct Places {
  CollectiveModel model;
  std::int64_t stride = 1, per_node = 1;

  std::int64_t node_of(std::int64_t place) const { return place * stride / per_node; }
};

double send_seconds(const Places& places, double bytes, std::int64_t from, std::int64_t to) {
  if (from == to) return 0;
  // A message leaves the node by its distance: within one, however far apart, it does not.
  const bool inside = places.node_of(from) == places.node_of(to);
  return places.model.transfer_seconds(bytes,
                                       inside ? std::min<std::int64_t>(places.stride, places.per_node - 1)
                                              : places.per_node * std::abs(places.node_of(to) - places.node_of(from)),
                                       1);
}

double all_reduce_seconds(const Places& places, double bytes, std::span<const std::int64_t> ranks) {
  if (ranks.size() < 2) return 0;
  std::vector<std::int64_t> nodes;
  for (const std::int64_t rank : ranks) nodes.push_back(places.node_of(rank));
  std::ranges::sort(nodes);
  GroupSpan span;
  span.ranks = static_cast<std::int64_t>(ranks.size());
  span.nodes = span.ranks_per_node = 0;
  for (auto at = nodes.begin(); at != nodes.end(); ++span.nodes) {
    const auto end = std::upper_bound(at, nodes.end(), *at);
    span.ranks_per_node = std::max<std::int64_t>(span.ranks_per_node, end - at);
    at = end;
  }
  span.stride = places.stride;
  return places.model.cost(OpKind::all_reduce, bytes, span).seconds;
}

// A layer's experts: the ranks that they are divided over, and rows a second through their products.
struct Experts {
  MeshGroup ranks;
  double tokens_per_second = 0;
};
Experts experts_of(const Prepared& prepared) {
  const Program& program = *prepared.program;
  OpCostModel costs(prepared.scenario.cluster, *prepared.kernels, *prepared.collectives);
  costs.set_program(program);
  for (const Piece& piece : program.pieces) {
    Experts experts;
    double seconds = 0, rows = 0;
    for (const Op& op : piece.forward.ops) {
      if (!is_matmul(op.kind) || op.group_dims == 0) continue;
      const Tensor& x = piece.tensors[op.reads[0]];
      rows = static_cast<double>(x.sizes[0] * x.sizes[1]);
      seconds += costs.cost(op, piece.tensors, 1).seconds;
      experts.ranks = x.over[0].group();
    }
    experts.tokens_per_second = seconds > 0 ? rows / seconds : 0;
    if (seconds > 0) return experts;
  }
  return {};
}

}  // namespace

StepMoveCosts run_costs(const Prepared& prepared) {
  const Cluster& cluster = prepared.scenario.cluster;
  const Mesh& mesh = prepared.program->mesh;
  const Experts experts = experts_of(prepared);
  const GroupSpan span = span_of(mesh, experts.ranks, cluster.node.devices);
  const auto places = std::make_shared<const Places>(
      Places{CollectiveModel(cluster, *prepared.collectives), span.stride, cluster.node.devices});
  return {.send_seconds = [places](double bytes, std::int64_t from,
                                   std::int64_t to) { return send_seconds(*places, bytes, from, to); },
          .all_reduce_seconds =
              [places](double bytes, std::span<const std::int64_t> ranks) {
                return all_reduce_seconds(*places, bytes, ranks);
              },
          .group_seconds = [places, span](OpKind kind,
                                          double bytes) { return places->model.cost(kind, bytes, span).seconds; },
          .expert_tokens_per_second = experts.tokens_per_second};
}

}  // namespace orrery
