// Everything that a prediction needs: model, cluster, workload and plan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"
#include "sim/program/load.h"
#include "strategies/plan.h"
#include "traces/workload.h"

namespace orrery {

// What a training decides about its next step; the scenario does not say it. A matrix [from * ranks + to] is over the
// ranks of the expert group; there is one for each layer of the routing's source, or one for all layers.
struct Situation {
  using Matrices = std::shared_ptr<const std::vector<std::vector<double>>>;

  // The fraction of all rows that rank `from` sends to rank `to`. Null: each expert lies on one rank, in blocks, and
  // tokens go where routers send them.
  Matrices expert_rows;
  // Load::rows of sums over copies of experts (RowsOf::gradients). Null, or all empty: no expert lies on two ranks.
  Matrices copied_gradients;
};

struct Scenario {
  Model model;
  Cluster cluster;
  Workload workload;
  Plan plan;
  std::vector<Perturbation> perturbations;  // for the discrete-event engine; not part of the Program

  Situation situation = {};  // set for each step by a training's controllers (strategies/training_controller.h)
};

// Returns the number of ranks that one replica of the model is laid over: the product over all strategies.
std::int64_t model_parallel_ranks(const Plan& plan);
// Returns the data-parallel degree: the plan's value, or the number of replicas that fit on the cluster's devices.
std::int64_t data_parallel_degree(const Scenario& scenario);
// Returns the number of ranks of all replicas together.
std::int64_t ranks(const Scenario& scenario);
// Returns how many micro-batches each pipeline runs per step: global_batch_size / (data-parallel degree x
// micro_batch_size). 0 if a replica needs more devices than the cluster has.
std::int64_t micro_batches(const Scenario& scenario);

// Returns the global batch as sequences packed from documents; null if the workload packs no documents. Throws
// InputError (pointer "/workload/..").
std::shared_ptr<const PackedSequences> packed_sequences(const Scenario& scenario);

// Throws InputError when the parts do not fit together (degrees, divisibility, mesh larger than the cluster).
void check(const Scenario& scenario);

}  // namespace orrery
