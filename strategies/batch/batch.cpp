#include "strategies/batch/batch.h"

#include <string>

#include "sim/base/error.h"

namespace orrery::batch {

void check(const Scenario& scenario) {
  const std::int64_t per_step = data_parallel_degree(scenario) * scenario.plan.batch.micro_batch_size;
  const std::int64_t batch = scenario.workload.global_batch_size;
  if (batch % per_step != 0)
    throw InputError({"", "/workload/global_batch_size"}, std::to_string(batch),
                     "a multiple of " + std::to_string(per_step) + ", the data-parallel degree " +
                         std::to_string(data_parallel_degree(scenario)) + " times micro_batch_size " +
                         std::to_string(scenario.plan.batch.micro_batch_size));
}

void rewrite(const Scenario&, Program& program) {
  Division replicas;
  replicas.append(program.mesh.group({MeshAxis::dp_shard, MeshAxis::dp_replicate}));
  if (replicas.empty()) return;
  for (Piece& piece : program.pieces)
    for (Tensor& t : piece.tensors)
      if (const int d = t.find(Axis::batch); d >= 0) t.over[d] = replicas;
}

std::span<const SearchAxis> search_axes() {
  static constexpr SearchAxis kAxes[]{
      {.field = "micro_batch_size",
       .label = "mbs",
       .turns = Turns::micro_batch,
       .usual = true,
       .set = [](Plan& plan, std::int64_t value) { plan.batch.micro_batch_size = value; },
       .values =
           [](const Scenario& chosen, std::vector<std::int64_t>& values) {
             const std::int64_t replicas = data_parallel_degree(chosen), batch = chosen.workload.global_batch_size;
             if (replicas > 0 && batch % replicas == 0) append_divisors(batch / replicas, values);
           }}};
  return kAxes;
}

}  // namespace orrery::batch
