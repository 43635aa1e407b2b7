#include "study/simulation/collective_prediction.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/base/error.h"
#include "sim/cost/exchange_skew.h"
#include "sim/cost/fabric_traffic.h"

namespace orrery {
namespace {

// The cluster as those devices see it.
Cluster part_of(Cluster cluster, std::int64_t ranks_per_node) {
  Node& node = cluster.node;
  if (ranks_per_node < 1 || ranks_per_node > node.devices)
    throw InputError({"--ranks-per-node", ""}, fmt::format("{}", ranks_per_node),
                     fmt::format("1 to {}, the devices of a node", node.devices));
  if (ranks_per_node == node.devices || cluster.nodes == 1) return cluster;
  if (node.nics > node.devices) {  // a device's NICs count as one
    node.nic_bytes_per_second *= static_cast<double>(node.nics) / static_cast<double>(node.devices);
    node.nics = ranks_per_node;
  }
  node.nics = std::min(node.nics, ranks_per_node);
  node.devices = ranks_per_node;
  return cluster;
}

}  // namespace

CollectivePredictor::CollectivePredictor(const Cluster& cluster, std::int64_t ranks_per_node, std::int64_t ranks,
                                         const DiscreteEventOptions& options, std::int64_t groups,
                                         const CollectiveClasses& user)
    : cluster_(part_of(cluster, ranks_per_node)),
      calibration_(find_collective_calibration(cluster, user)),
      model_(cluster_, calibration_),
      options_(options) {
  const std::int64_t most = cluster.nodes * ranks_per_node;
  if (ranks < 2 || ranks > most)
    throw InputError({"--ranks", ""}, fmt::format("{}", ranks),
                     most < 2 ? fmt::format("a cluster of at least 2 devices, not of {}", most)
                              : fmt::format("2 to {}, the devices that can take part", most));
  if (groups < 1 || ranks % groups != 0 || ranks / groups < 2)
    throw InputError({"--groups", ""}, fmt::format("{}", groups),
                     fmt::format("a number that divides the {} ranks into groups of 2 or more", ranks));
  mesh_.add(MeshAxis::tp, groups);
  mesh_.add(MeshAxis::dp_shard, ranks / groups);
}

CollectivePrediction CollectivePredictor::predict(OpKind kind, double bytes, CollectiveAlgorithm algorithm,
                                                  CollectiveProtocol protocol, const Engines& engines) const {
  CollectivePrediction prediction;
  const GroupSpan span = span_of(mesh_, mesh_.group(MeshAxis::dp_shard), cluster_);
  CollectiveCost cost = model_.cost(kind, bytes, span, algorithm, protocol);
  if (!rows_.empty())
    skew(exchange_skew({.ranks = span.ranks, .rows = rows_}, span.ranks_per_node, cost.algorithm, cost.token_shares),
         cost);
  prediction.algorithm = cost.algorithm;
  prediction.protocol = cost.protocol;
  if (has_des(engines))
    prediction.run = run_collective(cluster_, calibration_, request(kind, bytes, algorithm, protocol), {}, options_);
  for (const std::size_t e : engines) {
    prediction.seconds[e] = e == kDes ? prediction.run->seconds : cost.seconds;
    prediction.bus_bytes_per_second[e] = e == kDes ? prediction.run->bus_bytes_per_second : cost.bus_bytes_per_second;
  }
  return prediction;
}

}  // namespace orrery
