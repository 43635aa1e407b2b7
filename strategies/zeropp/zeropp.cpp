// ZeRO++ (Wang et al. 2023, arXiv 2306.10209). hpZ, section 3.2: after the forward has gathered weights over the whole
// shard group, it keeps a second copy divided over neighbouring ranks only. The backward gathers that copy. qwZ,
// section 3.1: gathers move INT8 codes. qgZ, section 3.3: reductions move INT4 codes by two all-to-alls, within nodes
// and between them; LoCo (Xie et al. 2024, arXiv 2407.04480) adds what these codes lose to the next gradients.
#include <algorithm>

#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/local_updates/local_updates.h"
#include "strategies/strategy.h"

namespace orrery::zeropp {
namespace {

constexpr FieldNames kQuantised{"zero_quantized_weights", "zero_quantized_secondary_weights",
                                "zero_quantized_gradients"};
constexpr FieldNames kAll{"zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_secondary_weights",
                          "zero_quantized_gradients"};

bool has_second_copy(const Scenario& scenario) { return scenario.plan.zeropp.secondary > 1; }
bool quantises(const Scenario& scenario) {
  const Options& options = scenario.plan.zeropp;
  return options.quantised_weights || options.quantised_secondary || options.quantised_gradients;
}
bool used(const Scenario& scenario) { return has_second_copy(scenario) || quantises(scenario); }

std::int64_t shard_ranks(const Scenario& scenario) {
  const data_parallel::Options& data = scenario.plan.data;
  return data.shard_degree > 0 ? data.shard_degree : local_updates::replicas(scenario);
}
constexpr FieldRule kExcludes[]{
    keep(kAll, "for a model with experts: their secondary copies and codes are not modelled",
         [](const AskedOf& a) { return used(a.scenario) && a.model.has_experts(); }),
    keep({"zero_hpz_partition_size"}, "below zero_stage 3, whose weights are whole on every rank",
         [](const AskedOf& a) { return has_second_copy(a.scenario) && a.plan.data.zero_stage != 3; }),
    keep(kQuantised, "below zero_stage 3, whose collectives move whole buckets",
         [](const AskedOf& a) { return a.plan.data.zero_stage != 3; }),
    keep({"reshard_after_forward"},
         "with zero_hpz_partition_size: the backward gathers only what the forward has freed",
         [](const AskedOf& a) { return has_second_copy(a.scenario); }),
    keep({"enable_fsdp_float8_all_gather"}, "with ZeRO++'s codes of weights, which are gathered in one kind of codes",
         [](const AskedOf& a) { return a.plan.zeropp.quantised_weights || a.plan.zeropp.quantised_secondary; }),
    keep({"mics_shard_size"}, "with ZeRO++'s codes: both lay out the collectives of a shard group",
         [](const AskedOf& a) { return quantises(a.scenario); })};
constexpr FieldRule kIdle[]{
    keep({"zero_quantized_secondary_weights"}, "without zero_hpz_partition_size, which makes the second copy",
         [](const AskedOf& a) { return has_second_copy(a.scenario); }),
    keep({"zeropp_loco"}, "without zero_quantized_gradients, whose losses it makes up for",
         [](const AskedOf& a) { return a.plan.zeropp.quantised_gradients; }),
    keep({"zero_quantization_group_size"}, "without any of ZeRO++'s codes",
         [](const AskedOf& a) { return quantises(a.scenario); })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.zeropp;
  const std::int64_t shards = shard_ranks(scenario), secondary = options.secondary;
  if (has_second_copy(scenario) && shards % secondary != 0)
    refuse(scenario.plan, "zero_hpz_partition_size",
           "a divisor of the " + std::to_string(shards) + " ranks of a shard group");
  if (options.quantised_gradients && !data_parallel::reduces_in_every_micro_batch(scenario, micro_batches(scenario)))
    refuse(scenario.plan, "reduce_gradients",
           "\"every_micro_batch\" with zero_quantized_gradients, which every micro-batch exchanges: the framework would "
           "reduce once");
}

// Returns those of a group's digits whose ranks share nodes of `devices` devices.
MeshGroup within_node(const Mesh& mesh, MeshGroup group, std::int64_t devices) {
  MeshGroup within;
  for (std::size_t d = 0; d < mesh.digits().size(); ++d) {
    const MeshGroup digit = MeshGroup::of_digit(static_cast<int>(d));
    const Digit& is = mesh.digits()[d];
    if (group.contains(digit) && devices % (is.stride * is.size) == 0) within = within | digit;
  }
  return within;
}

// Cuts dp_shard where the ranks of the second copy end, and where those of a node end.
void add_digits(const Scenario& scenario, Mesh& mesh) {
  constexpr const char* kName = "dp_shard.inner";
  if (scenario.plan.data.zero_stage != 3) return;
  const std::int64_t in_node = scenario.plan.zeropp.quantised_gradients ? framework::data_ranks_in_node(scenario) : 1;
  if (has_second_copy(scenario)) data_parallel::add_shard_digits(scenario.plan.zeropp.secondary, in_node, kName, mesh);
  if (in_node > 1 && shard_ranks(scenario) % in_node == 0) data_parallel::add_shard_digits(in_node, 1, kName, mesh);
}

void shard(const Scenario& scenario, const Plan&, const Mesh& mesh, data_parallel::Sharding& sharding) {
  const Options& options = scenario.plan.zeropp;
  if (!used(scenario) || scenario.plan.data.zero_stage != 3) return;
  if (has_second_copy(scenario))
    sharding.over.secondary =
        mesh.innermost(mesh.group(MeshAxis::dp_shard), options.secondary) | mesh.group(MeshAxis::cp);
  // DeepSpeed's quantiser aims at groups of 8000 weights (CUDAQuantizer.target_group_size in
  // deepspeed/runtime/zero/partition_parameters.py). It cuts a matrix of gradients into as many groups as its longer
  // side is long (all_to_all_quant_reduce in deepspeed/runtime/comm/coalesced_collectives.py). A group is then as long
  // as the shorter side, usually the model's width.
  constexpr std::int64_t kWeights = 8000;
  const data_parallel::Wire weights{Dtype::int8, options.group > 0 ? options.group : kWeights};
  if (options.quantised_weights) sharding.weights_wire = weights;
  if (options.quantised_secondary) sharding.secondary_wire = weights;
  if (!options.quantised_gradients) return;
  sharding.gradients_wire = {Dtype::int4, options.group > 0 ? options.group : scenario.model.hidden, options.feedback};
  sharding.first_hop = within_node(mesh, sharding.over.gradients, scenario.cluster.node.devices);
}

constexpr PlanWord kWords[]{{"hpz", has_second_copy},
                            {"qwz", [](const Scenario& s) { return s.plan.zeropp.quantised_weights; }},
                            {"int8-copy", [](const Scenario& s) { return s.plan.zeropp.quantised_secondary; }},
                            {"qgz", [](const Scenario& s) { return s.plan.zeropp.quantised_gradients; }}};

constexpr auto kActs = [](const Scenario& chosen) { return chosen.plan.data.zero_stage == 3; };
constexpr auto kWithAndWithout = [](const Scenario& chosen) {
  return kActs(chosen) ? AxisValues{0, 1} : AxisValues{0};
};

constexpr SearchAxis kAxes[]{
    {.field = "zero_hpz_partition_size",
     .label = "hpz",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zeropp.secondary = value; },
     // No second copy, or one over the data-parallel ranks of a node.
     .values = [](const Scenario& chosen) -> AxisValues {
       AxisValues values{0};
       const data_parallel::Options& data = chosen.plan.data;
       const std::int64_t size = framework::data_ranks_in_node(chosen), shards = shard_ranks(chosen);
       if (data.zero_stage == 3 && data.reshard_after_forward && size > 1 && shards > size && shards % size == 0)
         values.push_back(size);
       return values;
     },
     .acts =
         [](const Scenario& chosen) {
           return chosen.plan.data.zero_stage == 3 && chosen.plan.data.reshard_after_forward;
         }},
    {.field = "zero_quantized_weights",
     .label = "qwz",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zeropp.quantised_weights = value != 0; },
     .values = kWithAndWithout,
     .acts = kActs},
    {.field = "zero_quantized_gradients",
     .label = "qgz",
     .chosen_with = ChosenWith::shards,
     .set = [](Plan& plan, std::int64_t value) { plan.zeropp.quantised_gradients = value != 0; },
     .values = kWithAndWithout,
     .acts = kActs}};

}  // namespace

Strategy describe() {
  return {.name = "zeropp",
          .summary = "ZeRO++: a second copy of the weights in a smaller group (hpZ), weights and gradients in codes",
          .paper = "Wang et al. 2023, arXiv 2306.10209",
          .excludes = kExcludes,
          .idle = kIdle,
          .check = check,
          .shard = shard,
          .add_digits = add_digits,
          .disable = reset<&Plan::zeropp>,
          .relax = reset<&Plan::zeropp>,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::zeropp
