// Activation offload to host memory (Megatron-Core's CPU offloading): the activations that a layer's forward keeps for
// its backward are copied to the host after the forward, and copied back one layer ahead of the backward.
#include <algorithm>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "sim/program/rewrite.h"
#include "strategies/activation_offload/to_host.h"
#include "strategies/layer_plans.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/strategy.h"

namespace orrery::activation_offload {
namespace {

void check(const Scenario& scenario) {
  const Options& options = scenario.plan.activation_offload;
  if (!options.offload && options.layers != -1)
    throw InputError({"", "/plan/activation_offload_layers"}, std::to_string(options.layers),
                     "-1 unless activation_offload is true");
  if (options.layers > 0) {
    const std::vector<std::int64_t> chunks =
        pipeline_parallel::split_layers(scenario.model.total_layers(), scenario.plan.pipeline);
    const std::int64_t most = *std::max_element(chunks.begin(), chunks.end());
    if (options.layers > most)
      throw InputError({"", "/plan/activation_offload_layers"}, std::to_string(options.layers),
                       "at most the " + std::to_string(most) + " layers of a stage's chunk (-1: all of them)");
  }
  for_each_plan(scenario, [&](const Plan& plan, const std::string& at) {
    if (options.layers >= 0 && plan.activation_offload.offload != options.offload)
      throw InputError(
          {"", at + "activation_offload"}, plan.activation_offload.offload ? "true" : "false",
          "no activation_offload for a range of layers with activation_offload_layers: both choose layers");
  });
}

void plan_layers(const Scenario& scenario, LayerPlans& plans) {
  const Options& options = scenario.plan.activation_offload;
  if (!options.offload || options.layers < 0) return;
  std::int64_t begin = 0;
  for (const std::int64_t n : pipeline_parallel::split_layers(scenario.model.total_layers(), scenario.plan.pipeline)) {
    plans.change(begin + std::min(n, options.layers), begin + n, 1,
                 [](Plan& plan) { plan.activation_offload.offload = false; });
    begin += n;
  }
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
     .turns = Turns::activations,
     .usual = false,
     .set = [](Plan& plan, std::int64_t value) { plan.activation_offload.offload = value != 0; },
     .values =
         [](const Scenario& chosen, std::vector<std::int64_t>& values) {
           append_flags(chosen.cluster.device.pcie_bytes_per_second > 0, values);
         }}};

}  // namespace

Strategy describe() {
  return {.name = "activation_offload",
          .summary = "activations kept in host memory until the backward",
          .paper = "-",
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
