// Everything a prediction needs: what is computed, where, on which input, and how it is laid out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/perturbation.h"
#include "sim/program/document_load.h"
#include "strategies/plan.h"
#include "traces/workload.h"

namespace orrery {

struct Scenario {
  Model model;
  Cluster cluster;
  Workload workload;
  Plan plan;
  std::vector<Perturbation> perturbations;  // of the discrete-event engine; no part of the Program

  // Of each layer of the routing's source, what part of all rows goes from each rank of the expert group to each other:
  // [from * ranks + to]. A controller of a training sets it (strategies/run_controller.h). None: experts lie in blocks,
  // each on one rank, and tokens go where routers send them.
  std::shared_ptr<const std::vector<std::vector<double>>> expert_rows = {};
};

// Ranks over which one replica of the model is laid: the product over all strategies.
std::int64_t model_parallel_ranks(const Plan& plan);
// Data-parallel degree: the plan's, or what remains of the devices.
std::int64_t data_parallel_degree(const Scenario& scenario);
// Of all replicas.
std::int64_t ranks(const Scenario& scenario);
// Micro-batches each pipeline runs per step: global_batch_size / (data parallel x micro_batch_size); 0 where a replica
// takes more devices than there are.
std::int64_t micro_batches(const Scenario& scenario);

// The global batch, packed from documents; null: its sequences are no packed documents. Throws InputError (pointer
// "/workload/..").
std::shared_ptr<const PackedSequences> packed_sequences(const Scenario& scenario);

// Throws InputError when the parts do not fit together (degrees, divisibility, mesh larger than the cluster).
void check(const Scenario& scenario);

}  // namespace orrery
