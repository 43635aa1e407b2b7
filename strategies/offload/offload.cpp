#include "strategies/offload/offload.h"

#include "sim/base/error.h"
#include "sim/program/rewrite.h"

namespace orrery::offload {
namespace {

TensorId host_twin(Piece& piece, TensorId id, const char* name) {
  const TensorId twin = clone_tensor(piece, id);
  Tensor& t = piece.tensors[twin];
  t.category = Category::host_copy;
  t.resident = true;
  t.name = name;
  return twin;
}

Op copy(OpKind kind, const char* name, Stream stream, TensorId from, TensorId to) {
  Op op = communication(kind, name, stream, {}, from, to);
  op.phase = Phase::update;
  return op;
}

void move_to_host(Piece& piece) {
  const auto update = std::find_if(piece.update.ops.begin(), piece.update.ops.end(), [](const Op& op) { return is_optimizer(op.kind); });
  if (update == piece.update.ops.end()) return;
  const auto at = static_cast<std::size_t>(update - piece.update.ops.begin());
  Op step = *update;

  for (TensorId id : step.writes)
    if (id != kNoTensor && piece.tensors[id].category == Category::optimizer_state) piece.tensors[id].category = Category::host_copy;
  const TensorId gradients = step.reads[0], parameters = step.writes[0];
  const TensorId host_gradients = host_twin(piece, gradients, "host_gradients");
  const TensorId host_parameters = host_twin(piece, parameters, "host_parameters");

  // Behind the reduction in the last backward, if there is one: copies then hide under the rest of the backward.
  Op down = copy(OpKind::copy_to_host, "gradients.to_host", Stream::device_to_host, gradients, host_gradients);
  down.phase = Phase::weight_gradient;
  down.when = When::last_micro_batch;
  Block& last = piece.weight_gradient.ops.empty() ? piece.backward : piece.weight_gradient;
  const bool reduced_in_update = std::any_of(piece.update.ops.begin(), piece.update.ops.end(), [](const Op& op) {
    return op.stream == Stream::data_communication;
  });
  if (reduced_in_update) {  // gradients are reduced after the backward: copy then
    down.phase = Phase::update;
    down.when = When::every_micro_batch;
  }

  step.stream = Stream::host;
  step.name = "cpu_adam";
  step.every = 1;  // layer by layer, so that copies and the CPU work side by side
  step.reads[0] = host_gradients;
  replace_reads(step, parameters, host_parameters);
  step.writes[0] = host_parameters;
  Op up = copy(OpKind::copy_to_device, "parameters.to_device", Stream::host_to_device, host_parameters, parameters);

  piece.update.ops[at] = step;
  piece.update.ops.insert(piece.update.ops.begin() + static_cast<std::ptrdiff_t>(at) + 1, up);
  if (reduced_in_update) {
    piece.update.ops.insert(piece.update.ops.begin() + static_cast<std::ptrdiff_t>(at), down);
  } else {
    last.ops.push_back(down);
  }
}

}  // namespace

void check(const Scenario& scenario) {
  if (!scenario.plan.offload.optimizer) return;
  const auto& optimizer = scenario.plan.optimizer;
  if (optimizer.rule != optimizer::Rule::adam && optimizer.rule != optimizer::Rule::adamw)
    throw InputError({"", "/plan/optimizer_offload"}, "true with another optimizer", "\"adam\" or \"adamw\": the CPU update is Adam's");
  if (scenario.cluster.node.host_memory_bytes_per_second <= 0)
    throw InputError({"", "/plan/optimizer_offload"}, "true", "a node whose host memory bandwidth is known");
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!scenario.plan.offload.optimizer) return;
  for (Piece& piece : program.pieces) move_to_host(piece);
}

}  // namespace orrery::offload
