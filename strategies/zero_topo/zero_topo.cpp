// Three levels of sharding for three tiers of bandwidth (arXiv 2501.04266, on Frontier): weights are divided over few
// neighbours, gradients over a node, optimizer states over all ranks of a shard group. What every micro-batch moves
// stays within the node; parts of gradients and updated weights cross nodes once a step.
#include <algorithm>

#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/local_updates/local_updates.h"
#include "strategies/strategy.h"
#include "strategies/zeropp/options.h"

namespace orrery::zero_topo {
namespace {

constexpr const char *kWeights = "dp_shard.weights", *kGradients = "dp_shard.gradients";
constexpr FieldNames kDegrees{"zero_weights_degree", "zero_gradients_degree"};

// How many data-parallel ranks divide each state. A degree that is not given is the whole shard group.
struct Degrees {
  std::int64_t weights = 1, gradients = 1, states = 1;
};
Degrees degrees_of(const Scenario& scenario) {
  const Options& asked = scenario.plan.zero_topo;
  const std::int64_t shard = scenario.plan.data.shard_degree;
  const std::int64_t states = shard > 0 ? shard : local_updates::replicas(scenario);
  return {asked.weights > 0 ? asked.weights : states, asked.gradients > 0 ? asked.gradients : states, states};
}

bool used(const Scenario& scenario) {
  return scenario.plan.zero_topo.weights > 0 || scenario.plan.zero_topo.gradients > 0;
}

constexpr FieldRule kExcludes[]{
    keep(kDegrees, "for a model with experts: their weights' degrees are not modelled",
         [](const AskedOf& a) { return used(a.scenario) && a.model.has_experts(); }),
    keep(kDegrees, "below zero_stage 3, whose weights are whole on every rank",
         [](const AskedOf& a) { return a.plan.data.zero_stage != 3; }),
    keep({"mics_shard_size"}, "with zero_weights_degree or zero_gradients_degree: all set the ranks of a shard group",
         [](const AskedOf& a) { return used(a.scenario); }),
    keep({"zero_hpz_partition_size"},
         "with zero_weights_degree or zero_gradients_degree: a second copy is for weights divided over all ranks",
         [](const AskedOf& a) { return used(a.scenario) && a.plan.zeropp.secondary > 1; })};

void check(const Scenario& scenario) {
  const Plan& plan = scenario.plan;
  if (!used(scenario)) return;
  if (plan.data.reduce_gradients == data_parallel::Reduction::once)
    refuse(plan, "reduce_gradients",
           "\"every_micro_batch\" or \"automatic\" with zero_gradients_degree, over which every micro-batch reduces");
  const Degrees by = degrees_of(scenario);
  if (by.states % by.gradients != 0)
    refuse(plan, "zero_gradients_degree", "a divisor of the " + std::to_string(by.states) + " ranks of a shard group");
  if (by.gradients % by.weights != 0)
    refuse(plan, "zero_weights_degree",
           "a divisor of the " + std::to_string(by.gradients) + " ranks that divide the gradients");
}

// The digits of dp_shard whose ranks divide the weights, and outside of them those that divide the gradients as well.
void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (!used(scenario)) return;
  const Degrees by = degrees_of(scenario);
  // Codes of gradients are exchanged within nodes first, so that a digit must not reach beyond a node.
  const std::int64_t in_node = scenario.plan.zeropp.quantised_gradients ? framework::data_ranks_in_node(scenario) : 1;
  data_parallel::add_shard_digits(by.weights, in_node, kWeights, mesh);
  data_parallel::add_shard_digits(by.gradients, in_node, kGradients, mesh);
}

void shard(const Scenario& scenario, const Plan&, const Mesh& mesh, data_parallel::Sharding& sharding) {
  if (!used(scenario)) return;
  sharding.over.weights = mesh.group(kWeights) | mesh.group(MeshAxis::cp);
  sharding.reduced = sharding.over.gradients = sharding.over.weights | mesh.group(kGradients);
  sharding.keeps_parameters = false;
}

constexpr PlanWord kWords[]{{"zero-topo", used}};

constexpr auto kActs = [](const Scenario& chosen) { return chosen.plan.data.zero_stage == 3; };

// The degrees worth trying for a tier of `devices` neighbouring devices, a node or a package: 0, which is the whole
// shard group, and the tier's data-parallel ranks if they divide a shard group.
AxisValues tiers(const Scenario& chosen, std::int64_t devices) {
  AxisValues values{0};
  const std::int64_t inner = chosen.plan.tensor.degree * chosen.plan.context.degree;
  const std::int64_t size = devices / inner, states = degrees_of(chosen).states;
  if (kActs(chosen) && size > 1 && states > size && states % size == 0) values.push_back(size);
  return values;
}

constexpr SearchAxis kAxes[]{
    {.field = "zero_gradients_degree",
     .label = "grads over",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zero_topo.gradients = value; },
     .values = [](const Scenario& chosen) { return tiers(chosen, chosen.cluster.node.devices); },
     .acts = kActs},
    {.field = "zero_weights_degree",
     .label = "weights over",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zero_topo.weights = value; },
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values = tiers(chosen, chosen.cluster.node.devices);
       // Devices behind one PCIe switch stand for those of a package.
       for (const std::int64_t package : tiers(chosen, chosen.cluster.node.devices_per_pcie_switch))
         if (std::ranges::find(values, package) == values.end()) values.push_back(package);
       return values;
     },
     .acts = kActs}};

}  // namespace

Strategy describe() {
  return {.name = "zero_topo",
          .summary = "weights, gradients and optimizer states sharded over groups of three sizes",
          .paper = "arXiv 2501.04266",
          .excludes = kExcludes,
          .check = check,
          .shard = shard,
          .add_digits = add_digits,
          .disable = reset<&Plan::zero_topo>,
          .relax = reset<&Plan::zero_topo>,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::zero_topo
