#include "strategies/scenario.h"

#include <string>

#include "sim/base/error.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

std::int64_t model_parallel_ranks(const Plan& plan) { return plan.tensor.degree * plan.context.degree * plan.pipeline.degree; }

// The mesh must fit the cluster; without a data-parallel degree it must fill it.
void check_mesh(const Scenario& scenario) {
  const std::int64_t inner = model_parallel_ranks(scenario.plan), devices = scenario.cluster.devices();
  const Plan& plan = scenario.plan;
  const std::string product = std::to_string(plan.tensor.degree) + " x " + std::to_string(plan.context.degree) + " x " +
                              std::to_string(plan.pipeline.degree) + " = " + std::to_string(inner) +
                              " for tensor_parallel x context_parallel x pipeline_parallel";
  const std::string available = "the cluster's " + std::to_string(devices) + " devices";
  if (inner > devices) throw InputError({"", "/plan/tensor_parallel"}, product, "at most " + available);
  if (plan.data.degree == 0) {
    if (devices % inner != 0)
      throw InputError({"", "/plan/tensor_parallel"}, product, "a divisor of " + available + " (or give data_parallel)");
  } else if (inner * plan.data.degree > devices) {
    throw InputError({"", "/plan/data_parallel"}, std::to_string(plan.data.degree),
                     "at most " + std::to_string(devices / inner) + ": more would not fit " + available);
  }
}

void check_workload(const Scenario& scenario) {
  const Model& model = scenario.model;
  const bool vision = model.kind == ModelKind::vit || model.kind == ModelKind::swin;
  if (vision) return;
  if (scenario.workload.sequence_length == 0 && model.max_positions == 0)
    throw InputError({"", "/workload/sequence_length"}, "0", "a length: the model states none of its own");
  if (model.positions == Positions::learned && model.max_positions > 0 && scenario.workload.sequence_length > model.max_positions)
    throw InputError({"", "/workload/sequence_length"}, std::to_string(scenario.workload.sequence_length),
                     "at most the model's " + std::to_string(model.max_positions) + " learned positions");
}

}  // namespace

std::int64_t data_parallel_degree(const Scenario& scenario) {
  if (scenario.plan.data.degree > 0) return scenario.plan.data.degree;
  return scenario.cluster.devices() / model_parallel_ranks(scenario.plan);
}

std::int64_t micro_batches(const Scenario& scenario) {
  return scenario.workload.global_batch_size / (data_parallel_degree(scenario) * scenario.plan.batch.micro_batch_size);
}

void check(const Scenario& scenario) {
  check_mesh(scenario);
  check_workload(scenario);
  check_ranges(scenario);
  for (const Strategy& strategy : all_strategies()) strategy.check(scenario);
}

}  // namespace orrery
