// ZeRO++'s hierarchical partitioning (hpZ: Wang et al. 2023, arXiv 2306.10209, section 3.2): after the forward has
// gathered weights over the whole shard group, it keeps a second copy divided over neighbouring ranks only. The
// backward gathers that copy.
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/strategy.h"

namespace orrery::zeropp {
namespace {

constexpr const char* kDigit = "dp_shard.secondary";

bool used(const Scenario& scenario) { return scenario.plan.zeropp.secondary > 1; }

constexpr FieldRule kExcludes[]{
    keep({"zero_hpz_partition_size"}, "for a model with experts: their secondary copies are not modelled",
         [](const AskedOf& a) { return used(a.scenario) && a.model.has_experts(); }),
    keep({"zero_hpz_partition_size"}, "below zero_stage 3, whose weights are whole on every rank",
         [](const AskedOf& a) { return used(a.scenario) && a.plan.data.zero_stage != 3; }),
    keep({"reshard_after_forward"},
         "with zero_hpz_partition_size: the backward gathers only what the forward has freed",
         [](const AskedOf& a) { return used(a.scenario); })};

void check(const Scenario& scenario) {
  const data_parallel::Options& data = scenario.plan.data;
  const std::int64_t shards = data.shard_degree > 0 ? data.shard_degree : data_parallel_degree(scenario);
  if (used(scenario) && shards % scenario.plan.zeropp.secondary != 0)
    refuse(scenario.plan, "zero_hpz_partition_size",
           "a divisor of the " + std::to_string(shards) + " ranks of a shard group");
}

// The digit of dp_shard whose ranks divide the second copy.
void add_digits(const Scenario& scenario, Mesh& mesh) {
  if (used(scenario)) mesh.add(MeshAxis::dp_shard, scenario.plan.zeropp.secondary, kDigit);
}

void shard(const Scenario& scenario, const Plan&, const Mesh& mesh, data_parallel::Sharding& sharding) {
  if (used(scenario)) sharding.over.secondary = mesh.group(kDigit) | mesh.group(MeshAxis::cp);
}

constexpr PlanWord kWords[]{{"hpz", used}};

constexpr SearchAxis kAxes[]{
    {.field = "zero_hpz_partition_size",
     .label = "hpz",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zeropp.secondary = value; },
     // Replicas that share a node.
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values{0};
       const data_parallel::Options& data = chosen.plan.data;
       const std::int64_t shards = data.shard_degree > 0 ? data.shard_degree : data_parallel_degree(chosen);
       const std::int64_t inner = chosen.plan.tensor.degree * chosen.plan.context.degree;
       const std::int64_t size = chosen.cluster.node.devices / inner;
       if (data.zero_stage == 3 && data.reshard_after_forward && size > 1 && shards > size && shards % size == 0)
         values.push_back(size);
       return values;
     },
     .acts =
         [](const Scenario& chosen) {
           return chosen.plan.data.zero_stage == 3 && chosen.plan.data.reshard_after_forward;
         }}};

}  // namespace

Strategy describe() {
  return {.name = "zeropp",
          .summary = "ZeRO++: a second copy of the weights in a smaller group (hpZ)",
          .paper = "Wang et al. 2023, arXiv 2306.10209",
          .excludes = kExcludes,
          .check = check,
          .shard = shard,
          .add_digits = add_digits,
          .disable = reset<&Plan::zeropp>,
          .relax = reset<&Plan::zeropp>,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::zeropp
