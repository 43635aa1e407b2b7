// Activation offload to host memory (Megatron-Core's CPU offloading): the activations that a layer's forward keeps for
// its backward are copied to the host after the forward, and copied back one layer ahead of the backward.
#include "strategies/activation_offload/activation_offload.h"

#include <algorithm>
#include <string>

#include "sim/program/liveness.h"
#include "sim/program/rewrite.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::activation_offload {
namespace {

constexpr std::uint16_t kLayersAhead = 1;  // Megatron-Core loads one layer ahead, and so does MEMO

constexpr FieldRule kIdle[]{keep({"activation_offload_layers"}, "unless activation_offload is true",
                                 [](const AskedOf& a) { return a.plan.activation_offload.offload; })};

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.activation_offload;
  pipeline_parallel::check_layers_of_chunks(scenario, "activation_offload_layers", options.layers);
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (options.layers >= 0 && plan.activation_offload.offload != options.offload)
      refuse(plan, "activation_offload",
             "no activation_offload for a range of layers with activation_offload_layers: both choose layers", at);
  });
}

void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  const Options& options = scenario.plan.activation_offload;
  if (!options.offload || options.layers < 0) return;
  pipeline_parallel::for_each_chunk(scenario, [&](std::int64_t begin, std::int64_t end) {
    plans.change(std::min(begin + options.layers, end), end, 1,
                 [](Plan& plan) { plan.activation_offload.offload = false; });
  });
}

void rewrite_piece(const Scenario&, const Plan& plan, const Program&, Piece& piece) {
  if (!plan.activation_offload.offload || !is_layer(piece) || is_joint(piece) || piece.backward.ops.empty()) return;
  ToHost to_host(piece);
  for (const TensorId id : kept_activations(piece)) to_host.move(id);
  to_host.finish();
}

bool spares_activations(const Plan& plan) { return plan.activation_offload.offload; }

constexpr PlanWord kWords[]{{"activation-offload", [](const Scenario& s) { return any_plan(s, spares_activations); }}};

constexpr SearchAxis kAxes[]{
    {.field = "activation_offload",
     .label = "act. offload",
     .chosen_with = ChosenWith::activations,
     .set = [](Plan& plan, std::int64_t value) { plan.activation_offload.offload = value != 0; },
     .values = [](const Scenario& s) { return flags(s.cluster.device.pcie_bytes_per_second > 0); }}};

}  // namespace

std::vector<TensorId> kept_activations(const Piece& piece) {
  Liveness lives;
  lives.find(piece);
  std::vector<TensorId> kept;
  for (const TensorId id : lives.storages()) {
    const Tensor& t = piece.tensors[id];
    const Life& life = lives.of(id);
    if (life.keeper == Keeper::blocks && (life.kept & bit_of_block(kForwardBlock)) != 0 &&
        t.category == Category::activation && t.place == Place::device && t.input == Input::none && !t.lent)
      kept.push_back(id);
  }
  return kept;
}

TensorId view_of_tokens(Piece& piece, TensorId id, std::int64_t begin, std::int64_t count) {
  Tensor view = piece.tensors[id];
  const int d = view.find(Axis::sequence);
  if (begin == 0 && count == view.sizes[d]) return id;
  view.sizes[d] = count;
  view.alias_of = id;
  view.alias_begin = begin;
  return piece.add(view);
}

void ToHost::move(TensorId id) {
  returned_[id] = clone_tensor(piece_, id);
  copy_both_ways(id, returned_[id]);
}

void ToHost::move(TensorId id, std::int64_t tokens) {
  returned_[id] = clone_tensor(piece_, id);
  if (tokens > 0)
    copy_both_ways(view_of_tokens(piece_, id, 0, tokens), view_of_tokens(piece_, returned_[id], 0, tokens));
}

void ToHost::copy_both_ways(TensorId from, TensorId to) {
  const TensorId host = clone_tensor(piece_, from);
  piece_.tensors[host].alias_begin = 0;
  piece_.tensors[host].place = Place::host;
  Op down = communication(OpKind::copy, "activation.to_host", Phase::forward, Stream::device_to_host, {}, from, host);
  down.buffers = buffers_;
  piece_.forward.ops.push_back(down);
  Op back =
      communication(OpKind::copy, "activation.to_device", Phase::input_gradient, Stream::host_to_device, {}, host, to);
  back.free_running = true;
  back.prefetch = kLayersAhead;
  back_.push_back(back);
}

void ToHost::finish() {
  // Makes views of what comes back for the views of what has gone. A view of a view comes after what it views.
  for (std::size_t id = 0; id < returned_.size(); ++id) {
    const TensorId base = piece_.tensors[id].alias_of;
    if (base == kNoTensor || base >= returned_.size() || returned_[base] == kNoTensor) continue;
    Tensor view = piece_.tensors[id];
    view.alias_of = returned_[base];
    returned_[id] = piece_.add(view);
  }
  for (Block* block : {&piece_.backward, &piece_.weight_gradient})
    for (Op& op : block->ops)
      for (TensorId& id : op.reads)
        if (id != kNoTensor && id < returned_.size() && returned_[id] != kNoTensor) id = returned_[id];
  piece_.backward.ops.insert(piece_.backward.ops.begin(), back_.begin(), back_.end());
}

Strategy describe() {
  return {.name = "activation_offload",
          .summary = "activations kept in host memory until the backward",
          .paper = "-",
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .plan_layers = plan_layers,
          .disable = reset<&Plan::activation_offload>,
          .relax = reset<&Plan::activation_offload>,
          .spares_activations = spares_activations,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::activation_offload
