#include "strategies/scenario.h"

#include "sim/base/error.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"
#include "traces/packing/packed_workload.h"

namespace orrery {
namespace {

// Returns "8 x 2 x 4 = 64 for tensor_parallel x context_parallel x pipeline_parallel".
std::string product_text(const Plan& plan) {
  std::string degrees, names;
  for (const Strategy& strategy : all_strategies()) {
    if (strategy.ranks == nullptr) continue;
    const char* const times = degrees.empty() ? "" : " x ";
    degrees += times + std::to_string(strategy.ranks(plan));
    names += times + std::string(strategy.name);
  }
  return degrees + " = " + std::to_string(model_parallel_ranks(plan)) + " for " + names;
}

// The mesh must fit the cluster; without a data-parallel degree it must fill it.
void check_mesh(const Scenario& scenario) {
  const std::int64_t inner = model_parallel_ranks(scenario.plan), devices = scenario.cluster.devices();
  const Plan& plan = scenario.plan;
  const std::string available = "the cluster's " + std::to_string(devices) + " devices";
  if (inner > devices) throw InputError({"", "/plan/tensor_parallel"}, product_text(plan), "at most " + available);
  if (plan.data.degree == 0) {
    if (devices % inner != 0)
      throw InputError({"", "/plan/tensor_parallel"}, product_text(plan),
                       "a divisor of " + available + " (or give data_parallel)");
  } else if (inner * plan.data.degree > devices) {
    throw InputError({"", "/plan/data_parallel"}, std::to_string(plan.data.degree),
                     "at most " + std::to_string(devices / inner) + ": more would not fit " + available);
  }
}

void check_workload(const Scenario& scenario) {
  const Model& model = scenario.model;
  if (model.vision()) return;
  if (scenario.workload.sequence_length == 0 && model.max_positions == 0)
    throw InputError({"", "/workload/sequence_length"}, "0", "a length: the model has no length of its own");
  if (model.positions == Positions::learned && model.max_positions > 0 &&
      scenario.workload.sequence_length > model.max_positions)
    throw InputError({"", "/workload/sequence_length"}, std::to_string(scenario.workload.sequence_length),
                     "at most the model's " + std::to_string(model.max_positions) + " learned positions");
}

}  // namespace

std::int64_t model_parallel_ranks(const Plan& plan) {
  std::int64_t product = 1;
  for (const Strategy& strategy : all_strategies())
    if (strategy.ranks != nullptr) product *= strategy.ranks(plan);
  return product;
}

std::int64_t ranks(const Scenario& scenario) {
  return model_parallel_ranks(scenario.plan) * data_parallel_degree(scenario);
}

std::int64_t data_parallel_degree(const Scenario& scenario) {
  if (scenario.plan.data.degree > 0) return scenario.plan.data.degree;
  return scenario.cluster.devices() / model_parallel_ranks(scenario.plan);
}

std::int64_t micro_batches(const Scenario& scenario) {
  const std::int64_t sequences = data_parallel_degree(scenario) * scenario.plan.batch.micro_batch_size;
  return sequences > 0 ? scenario.workload.global_batch_size / sequences : 0;
}

std::shared_ptr<const PackedSequences> packed_sequences(const Scenario& scenario) {
  const std::int64_t length = scenario.workload.sequence_length;
  return packed_sequences(scenario.workload, length > 0 ? length : scenario.model.max_positions);
}

void check(const Scenario& scenario) {
  check_mesh(scenario);
  check_workload(scenario);
  check_ranges(scenario);
  check_strategies(scenario);
}

}  // namespace orrery
