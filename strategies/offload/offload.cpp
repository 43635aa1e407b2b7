// CPU optimizer offload (ZeRO-Offload: Ren et al. 2021, arXiv 2101.06840): optimizer states live in host memory.
// Reduced gradients are copied to the host as the backward produces them, the CPU updates, and parameters are copied
// back.
#include <algorithm>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/strategy.h"

namespace orrery::offload {
namespace {

TensorId host_twin(Piece& piece, TensorId id, const char* name) {
  const TensorId twin = clone_tensor(piece, id);
  Tensor& t = piece.tensors[twin];
  t.place = Place::host;
  t.resident = true;
  t.name = name;
  return twin;
}

Op copy(const char* name, Stream stream, TensorId from, TensorId to) {
  return communication(OpKind::copy, name, Phase::update, stream, {}, from, to);
}

// Whether anything before the optimizer, besides the global norm and what scales by it, still changes the gradients. A
// packed buffer stands for those that it was packed from, so every collective counts unless it carries the norm.
bool changed_in_update(const Piece& piece, std::size_t optimizer, TensorId gradients) {
  std::vector<TensorId> of_norm;
  for (std::size_t i = 0; i < optimizer; ++i) {
    const Op& op = piece.update.ops[i];
    const bool norm = op.kind == OpKind::gradient_norm ||
                      (is_communication(op.kind) &&
                       std::find(of_norm.begin(), of_norm.end(), storage_of(piece, op.reads[0])) != of_norm.end());
    // A packed buffer lies apart from what it was packed from.
    const bool of_another_set = is_communication(op.kind) ? op.stages.has_value() && storage_of(piece, op.writes[0]) !=
                                                                                         storage_of(piece, gradients)
                                                          : op.writes[0] != gradients;
    if (!norm && !of_another_set && op.kind != OpKind::scale) return true;
    if (norm) of_norm.push_back(storage_of(piece, op.writes[0]));
  }
  return false;
}

// Whether shards are reduced between replicas of shard groups, once a step: they stay on the device until then.
bool reduces_shards(const Block& block) {
  return std::any_of(block.ops.begin(), block.ops.end(), [](const Op& op) {
    return op.kind == OpKind::all_reduce &&
           (op.stream == Stream::data_communication || op.account == Stream::data_communication);
  });
}

class ToHost {
 public:
  // `accumulates`: several micro-batches add to the gradients.
  ToHost(Piece& piece, ParameterSet& set, bool accumulates)
      : piece_(piece), set_(set), ops_(piece.update.ops), accumulates_(accumulates) {}

  // `leave`: gradients of each micro-batch need not stay on the device.
  void run(bool leave) {
    const auto at = static_cast<std::size_t>(
        std::find_if(ops_.begin(), ops_.end(),
                     [&](const Op& op) { return is_optimizer(op.kind) && op.reads[0] == set_.own_gradients; }) -
        ops_.begin());
    if (at == ops_.size()) return;
    const bool copied_in_update = changed_in_update(piece_, at, set_.own_gradients);

    for (TensorId id : ops_[at].writes)
      if (id != kNoTensor && piece_.tensors[id].category == Category::optimizer_state)
        piece_.tensors[id].place = Place::host;
    gradients_ = ops_[at].reads[0], parameters_ = ops_[at].writes[0];
    host_gradients_ = host_twin(piece_, gradients_, "host_gradients");
    host_parameters_ = host_twin(piece_, parameters_, "host_parameters");

    // Gradients are unscaled and clipped when the norm is known, in host memory: the CPU does both at once.
    std::vector<Op> before, on_cpu;
    for (std::size_t i = 0; i < at; ++i) {
      const bool scales = ops_[i].kind == OpKind::scale && ops_[i].writes[0] == gradients_;
      (scales && !copied_in_update ? on_cpu : before).push_back(ops_[i]);
    }
    for (std::size_t i = 1; i < on_cpu.size(); ++i) on_cpu[i].scale *= on_cpu[i - 1].scale;
    if (on_cpu.size() > 1) on_cpu.erase(on_cpu.begin(), on_cpu.end() - 1);
    on_cpu.push_back(ops_[at]);
    for (Op& op : on_cpu) op = on_host(op);
    Op& step = on_cpu.back();
    step.name = "cpu_adam";
    replace_reads(step, parameters_, host_parameters_);
    step.writes[0] = host_parameters_;
    for (Op& op : on_cpu) {
      TensorId& norm = op.reads[static_cast<std::size_t>(norm_operand(op.kind))];
      if (norm == kNoTensor) continue;
      const TensorId twin = host_twin(piece_, norm, "host_gradient_norm");
      Op down = copy("gradient_norm.to_host", Stream::device_to_host, norm, twin);
      down.every = kAllInstances;
      before.push_back(down);
      norm = twin;
    }
    on_cpu.push_back(copy("parameters.to_device", Stream::host_to_device, host_parameters_, parameters_));
    std::vector<Op> behind(ops_.begin() + static_cast<std::ptrdiff_t>(at) + 1, ops_.end());

    Block& last = piece_.weight_gradient.ops.empty() ? piece_.backward : piece_.weight_gradient;
    Op down = copy("gradients.to_host", Stream::device_to_host, gradients_, host_gradients_);
    if (copied_in_update) {
      before.push_back(down);
    } else {
      // After the reduction in the last backward, if there is one, and bucket by bucket like it: copies then overlap
      // the rest of the backward.
      down.phase = Phase::weight_gradient;
      down.when = When::last_micro_batch;
      for (const Op& op : last.ops)
        if (op.stream == Stream::data_communication) down.every = std::max(down.every, op.every);
      if (leave && !reduces_shards(last)) {
        leave_the_device(down, before, last.ops);
        std::erase_if(behind, [&](const Op& op) { return op.kind == OpKind::zero_fill && op.writes[0] == gradients_; });
      }
      last.ops.push_back(down);
    }
    before.insert(before.end(), on_cpu.begin(), on_cpu.end());
    before.insert(before.end(), behind.begin(), behind.end());
    ops_.swap(before);
  }

 private:
  Op on_host(Op op) const {
    op.stream = Stream::host;
    op.every = 1;  // layer by layer, so that copies and the CPU work concurrently
    replace_reads(op, gradients_, host_gradients_);
    std::replace(op.writes.begin(), op.writes.end(), gradients_, host_gradients_);
    return op;
  }

  // ZeRO-Offload keeps no gradients on the device: the gradients of each micro-batch are copied to the host as soon as
  // they are reduced. What the host has of earlier micro-batches is copied back first and added to on the device (as in
  // DeepSpeed: the CPU would be too slow).
  void leave_the_device(Op& down, std::vector<Op>& update, std::vector<Op>& last) {
    piece_.tensors[gradients_].resident = false;
    set_.gradients = set_.own_gradients = host_gradients_;
    Stream stream = Stream::compute;  // or the stream that reduces, on which gradients are changed then
    for (Op& op : last) {
      if (op.kind != OpKind::reduce_scatter || op.writes[0] != gradients_) continue;
      stream = op.stream;
      op.accumulate = false;
    }
    down.when = When::every_micro_batch;
    if (accumulates_) {
      const TensorId sum = clone_tensor(piece_, gradients_, "accumulated_gradients", Category::workspace,
                                        piece_.tensors[gradients_].dtype);
      Op up = copy("gradients.to_device", Stream::host_to_device, host_gradients_, sum);
      up.free_running = true;
      Op clear = computation(OpKind::zero_fill, "clear_accumulated_gradients", Phase::weight_gradient, {}, {sum});
      clear.when = When::first_micro_batch;
      Op add = computation(OpKind::add, "accumulate_gradients", Phase::weight_gradient, {gradients_, sum}, {sum});
      clear.stream = add.stream = stream;
      up.phase = Phase::weight_gradient;
      last.insert(last.end(), {up, clear, add});
      down.reads[0] = sum;
    }
    // The norm is computed on the device, from the gradients about to be copied; the update adds up the layers' parts.
    const auto norm = std::find_if(update.begin(), update.end(), [&](const Op& op) {
      return op.kind == OpKind::gradient_norm && op.reads[0] == gradients_;
    });
    if (norm == update.end()) return;
    Op part = *norm;
    part.name = "gradient_norm.part";
    part.phase = Phase::weight_gradient;
    part.stream = stream;
    part.when = When::last_micro_batch;
    part.every = 1;
    part.reads[0] = down.reads[0];
    part.writes[0] = clone_tensor(piece_, norm->writes[0]);
    last.push_back(part);
    norm->name = "gradient_norm.sum";
    norm->reads[0] = part.writes[0];
  }

  Piece& piece_;
  ParameterSet& set_;
  std::vector<Op>& ops_;
  const bool accumulates_;
  TensorId gradients_ = kNoTensor, parameters_ = kNoTensor, host_gradients_ = kNoTensor, host_parameters_ = kNoTensor;
};

void check(const Scenario& scenario) {
  if (!scenario.plan.offload.optimizer) return;
  const auto& optimizer = scenario.plan.optimizer;
  if (optimizer.rule != optimizer::Rule::adam && optimizer.rule != optimizer::Rule::adamw)
    throw InputError({"", "/plan/optimizer_offload"}, "true with another optimizer",
                     "\"adam\" or \"adamw\": the CPU update is Adam's");
  if (scenario.cluster.node.host_memory_bytes_per_second <= 0)
    refuse(scenario.plan, "optimizer_offload", "a node whose host memory bandwidth is known");
}

void rewrite(const Scenario& scenario, Program& program) {
  if (!scenario.plan.offload.optimizer) return;
  const bool leave = data_parallel::keeps_parts_of_gradients(scenario, program.schedule.micro_batches);
  for (Piece& piece : program.pieces)
    for (ParameterSet& set : piece.sets)
      ToHost(piece, set, program.schedule.micro_batches > 1)
          .run((leave || !set.over.gradients.empty()) && set.gradients == set.own_gradients);
}

constexpr PlanWord kWords[]{{"offload", [](const Scenario& s) { return s.plan.offload.optimizer; }}};

constexpr SearchAxis kAxes[]{
    {.field = "optimizer_offload",
     .label = "opt. offload",
     .chosen_with = ChosenWith::replicas,
     .set = [](Plan& plan, std::int64_t value) { plan.offload.optimizer = value != 0; },
     .values = [](const Scenario& s) { return flags(s.cluster.node.host_memory_bytes_per_second > 0); }}};

}  // namespace

Strategy describe() {
  return {.name = "offload",
          .summary = "optimizer states in host memory and updates on the CPU",
          .paper = "Ren et al. 2021, arXiv 2101.06840",
          .check = check,
          .rewrite = rewrite,
          .disable = reset<&Plan::offload>,
          .relax = reset<&Plan::offload>,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::offload
