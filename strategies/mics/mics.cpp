// MiCS (Zhang et al. 2022, arXiv 2205.00119): all states are divided over small partition groups. Gradients are reduced
// in two hops, and weights are gathered in two stages if a group spans nodes.
#include <algorithm>

#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/local_updates/local_updates.h"
#include "strategies/strategy.h"
#include "strategies/zeropp/options.h"

namespace orrery::mics {
namespace {

constexpr const char* kInNode = "dp_shard.node";

bool used(const Scenario& scenario) { return scenario.plan.mics.shard_size > 0; }

constexpr FieldRule kIdle[]{keep({"mics_hierarchical_params_gather"}, "with mics_shard_size 0",
                                 [](const AskedOf& a) { return used(a.scenario); })};
constexpr FieldRule kExcludes[]{
    keep({"mics_shard_size"}, "for a model with experts: their partition groups are not modelled",
         [](const AskedOf& a) { return a.plan.mics.shard_size > 1 && a.model.has_experts(); }),
    keep({"mics_shard_size"}, "below zero_stage 3: MiCS also shards weights",
         [](const AskedOf& a) { return a.plan.data.zero_stage != 3; }),
    keep({"zero_shard_degree"}, "with mics_shard_size: both set the size of a shard group",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep({"zero_hpz_partition_size"}, "with mics_shard_size",
         [](const AskedOf& a) { return used(a.scenario) && a.plan.zeropp.secondary > 1; })};

void check(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (!used(scenario)) return;
  if (plan.data.reduce_gradients == data_parallel::Reduction::once)
    refuse(plan, "reduce_gradients",
           "\"every_micro_batch\" or \"automatic\" with mics_shard_size: partition groups reduce in every micro-batch");
  const std::int64_t degree = local_updates::replicas(scenario);
  if (degree % plan.mics.shard_size != 0)
    refuse(plan, "mics_shard_size", "a divisor of the data-parallel degree " + std::to_string(degree));
  if (!plan.mics.hierarchical) return;
  const auto order = framework::mesh_order(plan);
  if (plan.context.degree > 1 &&
      std::find(order.begin(), order.end(), MeshAxis::cp) > std::find(order.begin(), order.end(), MeshAxis::dp_shard))
    refuse(plan, "mesh_order",
           "an order with cp before dp for mics_hierarchical_params_gather, which gathers between nodes first");
  const std::int64_t in_node = framework::data_ranks_in_node(scenario);
  if (in_node < 2 || plan.mics.shard_size <= in_node || plan.mics.shard_size % in_node != 0)
    refuse(plan, "mics_hierarchical_params_gather",
           "false: a partition group of " + std::to_string(plan.mics.shard_size) +
               " ranks does not span several nodes with several ranks each");
}

// dp_shard, cut where a node ends if weights are gathered in two stages; dp_replicate.
void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (!used(scenario)) return;
  const Options& options = scenario.plan.mics;
  const std::int64_t in_node = options.hierarchical ? framework::data_ranks_in_node(scenario) : 1;
  mesh.add(MeshAxis::dp_shard, in_node, kInNode);
  mesh.add(MeshAxis::dp_shard, options.shard_size / in_node);
  mesh.add(MeshAxis::dp_replicate, local_updates::replicas(scenario) / options.shard_size);
}

void shard(const Scenario& scenario, const Plan&, const Mesh& mesh, data_parallel::Sharding& sharding) {
  if (!used(scenario)) return;
  sharding.reduced = sharding.over.gradients = sharding.over.weights;
  sharding.keeps_parameters = false;
  if (scenario.plan.mics.hierarchical)
    sharding.gathered_first = mesh.group(MeshAxis::dp_shard).without(mesh.group(kInNode));
}

constexpr PlanWord kWords[]{{"mics", used}};

}  // namespace

Strategy describe() {
  return {.name = "mics",
          .summary = "MiCS: states sharded over partition groups, gradients reduced in two hops",
          .paper = "Zhang et al. 2022, arXiv 2205.00119",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .shard = shard,
          .add_digits = add_digits,
          .disable = reset<&Plan::mics>,
          .relax = reset<&Plan::mics>,
          .words = kWords};
}

}  // namespace orrery::mics
