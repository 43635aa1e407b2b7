// One collective by itself, as nccl-tests times it, by either engine.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/cost/collective_calibration.h"
#include "sim/cost/collective_cost.h"
#include "sim/des/engine.h"
#include "sim/hardware/cluster.h"
#include "sim/program/op.h"
#include "study/simulation/simulation.h"

namespace orrery {

// nccl-tests' programs. send_recv: every rank sends to the next and receives from the one before.
struct CollectiveKind {
  std::string_view name;
  OpKind op;
};
inline constexpr std::array<CollectiveKind, 7> kCollectiveKinds{{{"all_reduce", OpKind::all_reduce},
                                                                 {"all_gather", OpKind::all_gather},
                                                                 {"reduce_scatter", OpKind::reduce_scatter},
                                                                 {"all_to_all", OpKind::all_to_all},
                                                                 {"broadcast", OpKind::broadcast},
                                                                 {"reduce", OpKind::reduce},
                                                                 {"send_recv", OpKind::ring_shift}}};

// Which engines are asked for, by Engine.
using Engines = std::array<bool, kEngines>;

struct CollectivePrediction {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::ring;
  CollectiveProtocol protocol = CollectiveProtocol::simple;
  std::array<double, kEngines> seconds{};  // 0: not asked for
  std::array<double, kEngines> bus_bytes_per_second{};
  std::optional<CollectiveRun> run;  // the discrete-event engine's
};

// A group on a cluster that does nothing else: the first `ranks` of the first `ranks_per_node` devices of each node.
// A node of which only a part takes part keeps the NICs nearest to those devices.
class CollectivePredictor {
 public:
  // `groups` > 1: rank r is in group r mod groups, and all groups run at once.
  // Throws InputError unless 1 <= ranks_per_node <= the node's devices, 2 <= ranks <= what that leaves, and the groups
  // are equally large and of two ranks or more.
  // `user`: tried before the bundled calibration.
  CollectivePredictor(const Cluster& cluster, std::int64_t ranks_per_node, std::int64_t ranks,
                      const DiscreteEventOptions& options, std::int64_t groups = 1, const CollectiveClasses& user = {});

  // Of each group's all-to-all, unequal parts: CollectiveRequest::rows.
  void set_rows(std::vector<double> rows) { rows_ = std::move(rows); }

  // Throws InputError when an engine refuses; run_collective and CollectiveModel::cost say when.
  CollectivePrediction predict(OpKind kind, double bytes, CollectiveAlgorithm algorithm, CollectiveProtocol protocol,
                               const Engines& engines) const;

  // What predict() has the discrete-event engine simulate: see collective_works.
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
  Mesh mesh_;  // groups of dp_shard, as many as tp
  DiscreteEventOptions options_;
  std::vector<double> rows_;
};

}  // namespace orrery
