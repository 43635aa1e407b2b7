// Predicts one collective by itself, as nccl-tests times it, with either engine.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "sim/cost/collective_calibration.h"
#include "sim/cost/collective_cost.h"
#include "sim/cost/published_collectives.h"
#include "sim/des/engine.h"
#include "sim/hardware/cluster.h"
#include "sim/program/op.h"
#include "study/simulation/simulation.h"

namespace orrery {

// The engines that are requested, by their indices, in the order of Engine.
using Engines = std::vector<std::size_t>;
inline constexpr auto kDes = static_cast<std::size_t>(Engine::des);
inline bool has_des(const Engines& engines) { return !engines.empty() && engines.back() == kDes; }

struct CollectivePrediction {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  CollectiveProtocol protocol = CollectiveProtocol::simple;
  std::array<double, kEngines> seconds{};  // 0: not requested
  std::array<double, kEngines> bus_bytes_per_second{};
  std::optional<CollectiveRun> run;  // the discrete-event engine's
};

// A group on a cluster that does nothing else: the first `ranks` of the first `ranks_per_node` devices of each node. If
// only some devices of a node take part, the node keeps the NICs nearest to them.
class CollectivePredictor {
 public:
  // `groups` > 1: rank r is in group r mod groups, and all groups run at the same time. `user`: calibration classes
  // that are tried before the bundled ones. Throws InputError unless 1 <= ranks_per_node <= the node's devices, 2 <=
  // ranks <= the devices that this leaves, and all groups have the same size of at least two ranks.
  CollectivePredictor(const Cluster& cluster, std::int64_t ranks_per_node, std::int64_t ranks,
                      const DiscreteEventOptions& options, std::int64_t groups = 1, const CollectiveClasses& user = {});

  // Unequal parts of each group's all-to-all: CollectiveRequest::rows.
  void set_rows(std::vector<double> rows) { rows_ = std::move(rows); }

  // Throws InputError if an engine refuses: see run_collective() and CollectiveModel::cost().
  CollectivePrediction predict(OpKind kind, double bytes, CollectiveAlgorithm algorithm, CollectiveProtocol protocol,
                               const Engines& engines) const;

  // Size of the discrete-event simulation that predict() would run: see collective_works().
  double works(OpKind kind, double bytes, CollectiveAlgorithm algorithm, CollectiveProtocol protocol) const {
    return collective_works(cluster_, calibration_, request(kind, bytes, algorithm, protocol), options_);
  }

  const CollectiveCalibration& calibration() const { return calibration_; }

 private:
  CollectiveRequest request(OpKind kind, double bytes, CollectiveAlgorithm algorithm,
                            CollectiveProtocol protocol) const {
    return {.kind = kind,
            .bytes = bytes,
            .mesh = mesh_,
            .group = mesh_.group(MeshAxis::dp_shard),
            .algorithm = algorithm,
            .protocol = protocol,
            .rows = rows_};
  }

  Cluster cluster_;
  CollectiveCalibration calibration_;
  CollectiveModel model_;
  Mesh mesh_;  // groups of dp_shard; their number is tp
  DiscreteEventOptions options_;
  std::vector<double> rows_;
};

}  // namespace orrery
