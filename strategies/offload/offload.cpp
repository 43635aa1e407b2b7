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

TensorId root_of(const Piece& piece, TensorId id) {
  while (piece.tensors[id].alias_of != kNoTensor) id = piece.tensors[id].alias_of;
  return id;
}

// Dynamic loss scaling's division, which only the optimizer waits for: the CPU divides what it has received.
bool is_unscale(const Piece& piece, const Op& op) {
  return op.kind == OpKind::cast && op.reads[0] == op.writes[0] &&
         piece.tensors[op.writes[0]].category == Category::gradient;
}

// Before the optimizer, does anything but the global norm still change the gradients? A packed buffer stands for those
// that it was packed from, so every collective counts that does not carry the norm.
bool changed_in_update(const Piece& piece, std::size_t optimizer) {
  std::vector<TensorId> of_norm;
  for (std::size_t i = 0; i < optimizer; ++i) {
    const Op& op = piece.update.ops[i];
    const bool norm = op.kind == OpKind::gradient_norm ||
                      (is_communication(op.kind) &&
                       std::find(of_norm.begin(), of_norm.end(), root_of(piece, op.reads[0])) != of_norm.end());
    if (!norm && !is_unscale(piece, op)) return true;
    if (norm) of_norm.push_back(root_of(piece, op.writes[0]));
  }
  return false;
}

// `summed_between_stages`: the gradients are, after the last backward (a tied table's).
void move_to_host(Piece& piece, bool summed_between_stages) {
  std::vector<Op>& ops = piece.update.ops;
  const auto at = static_cast<std::size_t>(
      std::find_if(ops.begin(), ops.end(), [](const Op& op) { return is_optimizer(op.kind); }) - ops.begin());
  if (at == ops.size()) return;
  const bool copied_in_update = summed_between_stages || changed_in_update(piece, at);

  for (TensorId id : ops[at].writes)
    if (id != kNoTensor && piece.tensors[id].category == Category::optimizer_state) piece.tensors[id].category = Category::host_copy;
  const TensorId gradients = ops[at].reads[0], parameters = ops[at].writes[0];
  const TensorId host_gradients = host_twin(piece, gradients, "host_gradients");
  const TensorId host_parameters = host_twin(piece, parameters, "host_parameters");
  const auto on_host = [&](Op op) {
    op.stream = Stream::host;
    op.every = 1;  // layer by layer, so that copies and the CPU work side by side
    replace_reads(op, gradients, host_gradients);
    std::replace(op.writes.begin(), op.writes.end(), gradients, host_gradients);
    return op;
  };

  std::vector<Op> before, on_cpu;
  for (std::size_t i = 0; i < at; ++i) {
    if (is_unscale(piece, ops[i])) {
      on_cpu.push_back(on_host(ops[i]));
    } else {
      before.push_back(ops[i]);
    }
  }
  Op step = on_host(ops[at]);
  step.name = "cpu_adam";
  replace_reads(step, parameters, host_parameters);
  step.writes[0] = host_parameters;
  on_cpu.push_back(step);
  on_cpu.push_back(
      copy(OpKind::copy_to_device, "parameters.to_device", Stream::host_to_device, host_parameters, parameters));

  Op down = copy(OpKind::copy_to_host, "gradients.to_host", Stream::device_to_host, gradients, host_gradients);
  if (copied_in_update) {
    before.push_back(down);
  } else {
    // Behind the reduction in the last backward, if there is one, and bucket by bucket as it is: copies then hide under
    // the rest of the backward.
    Block& last = piece.weight_gradient.ops.empty() ? piece.backward : piece.weight_gradient;
    down.phase = Phase::weight_gradient;
    down.when = When::last_micro_batch;
    for (const Op& op : last.ops)
      if (op.stream == Stream::data_communication) down.every = std::max(down.every, op.every);
    last.ops.push_back(down);
  }
  before.insert(before.end(), on_cpu.begin(), on_cpu.end());
  before.insert(before.end(), ops.begin() + static_cast<std::ptrdiff_t>(at) + 1, ops.end());
  ops.swap(before);
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
  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    const bool end = p == program.line.front().piece || p == program.line.back().piece;
    move_to_host(program.pieces[p], end && program.tied_embedding_bytes > 0);
  }
}

}  // namespace orrery::offload
