// Activation offload to host memory (Megatron-Core's CPU offloading): the activations that a layer's forward keeps for
// its backward are copied to the host after the forward, and copied back one layer ahead of the backward.
#include <algorithm>
#include <string>
#include <vector>

#include "sim/program/rewrite.h"
#include "strategies/activation_offload/to_host.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::activation_offload {
namespace {

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

void disable(Plan& plan) { plan.activation_offload = {}; }

bool spares_activations(const Plan& plan) { return plan.activation_offload.offload; }

constexpr PlanWord kWords[]{{"activation-offload", [](const Scenario& s) { return any_plan(s, spares_activations); }}};

constexpr SearchAxis kAxes[]{
    {.field = "activation_offload",
     .label = "act. offload",
     .chosen_with = ChosenWith::activations,
     .set = [](Plan& plan, std::int64_t value) { plan.activation_offload.offload = value != 0; },
     .values = [](const Scenario& s) { return flags(s.cluster.device.pcie_bytes_per_second > 0); }}};

}  // namespace

Strategy describe() {
  return {.name = "activation_offload",
          .summary = "activations kept in host memory until the backward",
          .paper = "-",
          .idle = kIdle,
          .check = check,
          .rewrite_piece = rewrite_piece,
          .plan_layers = plan_layers,
          .disable = disable,
          .relax = disable,
          .spares_activations = spares_activations,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::activation_offload
