// The global batch is replicas x micro-batches x micro-batch size. The number of micro-batches follows from the rest.
#include <algorithm>
#include <string>

#include "sim/base/error.h"
#include "strategies/strategy.h"

namespace orrery::batch {
namespace {

// Writes "96 or 120". One of the two may be 0 and is then omitted.
std::string either(std::int64_t below, std::int64_t above) {
  if (below == 0 || above == 0) return std::to_string(std::max(below, above));
  return std::to_string(below) + " or " + std::to_string(above);
}

// Finds the nearest numbers of devices, whole nodes or parts of a single one, that divide the batch with the same
// degrees.
std::string nearest_devices(const Scenario& scenario) {
  const std::int64_t size = scenario.plan.batch.micro_batch_size, batch = scenario.workload.global_batch_size;
  if (scenario.plan.data.degree > 0 || batch % size != 0) return "";
  const std::int64_t inner = model_parallel_ranks(scenario.plan), here = scenario.cluster.devices();
  const std::int64_t of_node = scenario.cluster.node.devices, sequences = batch / size;
  std::int64_t below = 0, above = 0;
  const auto consider = [&](std::int64_t replicas) {
    const std::int64_t devices = inner * replicas;
    if (devices % of_node != 0 && (devices > of_node || scenario.cluster.nodes > 1)) return;
    if (devices < here) below = std::max(below, devices);
    if (devices > here && (above == 0 || devices < above)) above = devices;
  };
  for (std::int64_t replicas = 1; replicas <= sequences / replicas; ++replicas) {
    if (sequences % replicas != 0) continue;
    consider(replicas);
    consider(sequences / replicas);
  }
  return below == 0 && above == 0 ? "" : "; or " + either(below, above) + " devices";
}

void check(const Scenario& scenario) {
  const std::int64_t replicas = data_parallel_degree(scenario), size = scenario.plan.batch.micro_batch_size;
  const std::int64_t per_step = replicas * size, batch = scenario.workload.global_batch_size;
  if (batch % per_step == 0) return;
  const std::string multiple = "a multiple of " + std::to_string(per_step) + ", the data-parallel degree " +
                               std::to_string(replicas) + " times micro_batch_size " + std::to_string(size);
  if (!scenario.workload.gives_batch)
    throw InputError({"", "/workload/global_batch_size"}, "nothing", "sequences a step, " + multiple);
  const std::int64_t below = batch / per_step * per_step;
  throw InputError({"", "/workload/global_batch_size"}, std::to_string(batch),
                   multiple + ": " + either(below, below + per_step) + nearest_devices(scenario));
}

// Every dimension along the batch is divided over the data-parallel digits.
void rewrite(const Scenario&, Program& program) {
  const Division replicas{program.mesh.replicas()};
  if (replicas.empty()) return;
  for (Piece& piece : program.pieces)
    for (Tensor& t : piece.tensors)
      if (const int d = t.find(Axis::batch); d >= 0) t.over[d] = replicas;
}

constexpr SearchAxis kAxes[]{{.field = "micro_batch_size",
                              .label = "mbs",
                              .chosen_with = ChosenWith::micro_batch,
                              .usual = true,
                              .set = [](Plan& plan, std::int64_t value) { plan.batch.micro_batch_size = value; },
                              .values = [](const Scenario& chosen) -> AxisValues {
                                const std::int64_t replicas = data_parallel_degree(chosen),
                                                   batch = chosen.workload.global_batch_size;
                                const bool even = replicas > 0 && batch % replicas == 0;
                                return even ? divisors_of(batch / replicas) : AxisValues();
                              }}};

}  // namespace

Strategy describe() {
  return {.name = "batch",
          .summary = "the global batch as replicas x micro-batches, with gradient accumulation",
          .paper = "-",
          .check = check,
          .rewrite = rewrite,
          .search_axes = kAxes};
}

}  // namespace orrery::batch
