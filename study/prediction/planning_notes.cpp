#include "study/prediction/planning_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/hardware/presets.h"
#include "sim/hardware/read_placement.h"
#include "sim/report/format.h"
#include "strategies/activation_recompute/options.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery {
namespace {

// An axis whose groups are meant to stay inside a node, or to cover whole nodes.
std::string crossing_note(const Mesh& mesh, MeshAxis axis, std::string_view words, std::string_view field,
                          const CrossingGroups& found, std::int64_t devices_per_node) {
  const MeshGroup group = mesh.group(axis);
  std::int64_t block = 1;  // ranks from the first member of a group to the first of the group behind it
  int index = 0;
  for (const Digit& digit : mesh.digits())
    if (group.contains(index++)) block = digit.stride * digit.size;
  const std::int64_t size = mesh.size(group);
  const std::string inner =
      block > size ? fmt::format("{} ranks times {} inside them", size, block / size) : fmt::format("{} ranks", size);
  std::string note = fmt::format("{} of {} {} groups lie on more than one node: ", found.crossing, found.groups, words);
  // In the default order only tensor-parallel ranks lie inside another group.
  const std::int64_t inside = axis == MeshAxis::tp ? 1 : mesh.size(mesh.group(MeshAxis::tp));
  if (block > size * inside && size * inside <= devices_per_node)
    return note + fmt::format(
                      "they would fit into one, but plan.mesh_order puts other axes between their {} ranks; an order "
                      "that begins with tp-cp keeps them off the network",
                      size);
  if (block > devices_per_node)
    return note + fmt::format(
                      "{} are more than a node's {} devices; a {} that fits into a node keeps them off the "
                      "network",
                      inner, devices_per_node, field);
  return note + fmt::format(
                    "{} do not divide a node's {} devices, and all wait for these groups; a {} that divides "
                    "them, or cluster.devices_per_node={}, keeps every group on one",
                    inner, devices_per_node, field, devices_per_node / block * block);
}

// Whether "selective" is asked of attention that is one kernel everywhere, which keeps no scores to drop.
bool selective_repeats_nothing(const Scenario& scenario, const Program& program) {
  using activation_recompute::Mode;
  const auto asks = [](const Plan& plan) {
    return plan.recompute.mode == Mode::selective && plan.framework.flash_attention &&
           plan.recompute.repeats(activation_recompute::Module::core_attention);
  };
  if (!any_plan(scenario, asks)) return false;
  for (const Piece& piece : program.pieces)
    for (const Op& op : piece.forward.ops)
      if (op.core_attention) return false;
  return true;
}

// All-gathers among tensor-parallel ranks in the weight gradients of a layer, where these run apart.
std::int64_t gathers_of_weight_gradients(const Program& program) {
  std::int64_t most = 0;
  for (const Piece& piece : program.pieces) {
    if (piece.layers == 0) continue;
    const auto& ops = piece.weight_gradient.ops;
    most = std::max<std::int64_t>(
        most, std::count_if(ops.begin(), ops.end(), [](const Op& op) {
                return op.kind == OpKind::all_gather &&
                       (op.stream == Stream::tensor_communication || op.account == Stream::tensor_communication);
              }) / piece.layers);
  }
  return most;
}

// Nodes made larger than their presets keep what devices share: NICs, PCIe switches, host memory.
std::string larger_node_note(const Node& node) {
  const std::vector<std::string> names = node_names();
  if (std::find(names.begin(), names.end(), node.name) == names.end()) return {};
  const std::int64_t devices = find_node(node.name).devices;
  if (node.devices <= devices || node.devices_per_host > 0) return {};
  return fmt::format(
      "nodes have {} devices, but {} has {}; they share its {} NIC{} and its host memory, which cluster.nics and "
      "cluster.host_memory_bytes change",
      node.devices, node.name, devices, node.nics, node.nics == 1 ? "" : "s");
}

bool is_oversubscribed(const Cluster& cluster, std::int64_t ranks) {
  const Fabric& fabric = cluster.fabric;
  return (fabric.kind == FabricKind::fat_tree || fabric.kind == FabricKind::rail_fat_tree) &&
         fabric.oversubscription > 1 && fabric.nodes_per_leaf > 0 &&
         ranks > fabric.nodes_per_leaf * cluster.node.devices;
}

// "10.1 s (+25.3 %)"
std::string against(double seconds, double step_seconds) {
  return fmt::format("{} ({})", seconds_text(seconds), signed_percent_text(seconds / step_seconds - 1));
}

}  // namespace

std::vector<std::string> planning_notes(const Scenario& scenario, const Program& program) {
  std::vector<std::string> notes;
  if (scenario.workload.sequence_length == 0 && !scenario.model.vision())
    notes.push_back(
        fmt::format("sequences have {} tokens, the model's max_positions: workload.sequence_length is not given",
                    scenario.model.max_positions));
  if (scenario.model.positions == Positions::rotary && scenario.model.max_positions > 0 &&
      scenario.workload.sequence_length > scenario.model.max_positions)
    notes.push_back(fmt::format("sequences have {} tokens, more than the model's max_positions of {}",
                                scenario.workload.sequence_length, scenario.model.max_positions));
  if (const std::int64_t ranks = program.mesh.ranks(), all = scenario.cluster.devices(); ranks < all)
    notes.push_back(
        fmt::format("the plan has {} rank{} (plan.data_parallel {}): {} of the cluster's {} devices are idle, and "
                    "rates do not count them",
                    ranks, ranks == 1 ? "" : "s", data_parallel_degree(scenario), all - ranks, all));
  if (std::string larger = larger_node_note(scenario.cluster.node); !larger.empty()) notes.push_back(std::move(larger));
  for (std::size_t i = 0; i < scenario.plan.layers.size(); ++i)
    if (!is_another_for_layers(scenario.plan.layers[i].plan, scenario.plan))
      notes.push_back(fmt::format("plan.layers.{} changes nothing: its values are those of the plan", i));
  if (selective_repeats_nothing(scenario, program))
    notes.emplace_back(
        "selective recomputation of the attention core saves no memory, because flash_attention stores no scores, and "
        "it recomputes nothing here (Megatron-Core runs the kernel once more); full or selective_op save memory");
  if (const std::int64_t gathers = gathers_of_weight_gradients(program); gathers > 0)
    notes.push_back(
        fmt::format("weight gradients run separately from the backward and gather their sequence-parallel inputs "
                    "again: {} all-gather{} per layer, with no other kernels to hide {}; where that takes longer than "
                    "the bubble it saves, pipeline_schedule 1f1b is faster (strategies/pipeline_parallel/README.md)",
                    gathers, gathers == 1 ? "" : "s", gathers == 1 ? "it" : "them"));
  for (const Strategy& strategy : all_strategies())
    if (strategy.notes != nullptr)
      for (std::string& note : strategy.notes(scenario)) notes.push_back(std::move(note));
  const Mesh& mesh = program.mesh;
  const std::int64_t devices = scenario.cluster.node.devices;
  const auto crossing = [&](MeshAxis axis) {
    return mesh.size(axis) > 1 ? crossing_groups(mesh, mesh.group(axis), devices) : CrossingGroups{};
  };
  if (const CrossingGroups tensor = crossing(MeshAxis::tp); tensor.crossing > 0)
    notes.push_back(crossing_note(mesh, MeshAxis::tp, "tensor-parallel", "plan.tensor_parallel", tensor, devices));
  // Context groups of several nodes are what long sequences are for; that some are and others are not is an accident.
  if (const CrossingGroups context = crossing(MeshAxis::cp); context.crossing > 0 && context.crossing < context.groups)
    notes.push_back(crossing_note(mesh, MeshAxis::cp, "context-parallel", "plan.context_parallel", context, devices));
  return notes;
}

std::string utilisation_note(const Report& report) {
  for (const Figure& figure : report.figures)
    if (!figure.caution.empty()) return figure.caution;
  if (const double most = std::max(report.mfu, report.hfu); most > 1)
    return fmt::format("{} of the device's peak is impossible: its peak or the efficiency of a kernel is wrong",
                       percent_text(most));
  if (report.mfu_full_attention > 1)
    return fmt::format(
        "MFU with full attention, {}, is above the device's peak: it counts the FLOPs above attention's diagonal, "
        "which causal kernels skip",
        percent_text(report.mfu_full_attention));
  return {};
}

Cluster placed(Cluster cluster, OtherPlacement other) {
  NodePlacement& placement = cluster.placement;
  switch (other) {
    case OtherPlacement::full_up_links:
      cluster.fabric.oversubscription = 1;
      break;
    case OtherPlacement::rings_by_leaf:
      placement.ring_order = RingOrder::leaf;
      if (cluster.is_scattered()) break;
      [[fallthrough]];
    case OtherPlacement::scattered:
      placement.nodes = drawn_numbers(cluster.nodes, cluster.fabric_nodes(), PlacementFields{}.seed);
      break;
    case OtherPlacement::leaf_by_leaf:
      placement.nodes.clear();
      break;
  }
  return cluster;
}

std::string placement_note(const Cluster& cluster, std::int64_t ranks, double step_seconds,
                           const std::function<double(OtherPlacement)>& step_on) {
  if (cluster.is_scattered()) {
    std::string note = fmt::format(
        "the nodes are spread over the fabric (cluster.placement): on full leaves, leaf by leaf, the step would take "
        "{}",
        against(step_on(OtherPlacement::leaf_by_leaf), step_seconds));
    if (cluster.placement.ring_order == RingOrder::rank)
      note += fmt::format("; on these nodes with rings and trees ordered leaf by leaf it would take {}",
                          against(step_on(OtherPlacement::rings_by_leaf), step_seconds));
    return note;
  }
  if (!is_oversubscribed(cluster, ranks) || step_on(OtherPlacement::full_up_links) != step_seconds) return {};
  const double scattered = step_on(OtherPlacement::scattered), by_leaf = step_on(OtherPlacement::rings_by_leaf);
  const Fabric& fabric = cluster.fabric;
  return fmt::format(
      "the fabric's oversubscription of {:g} has no effect: ranks fill one leaf of {} nodes after the other, so that a "
      "ring leaves each leaf once; with nodes in random order the step would take {}, or {} if rings and trees were "
      "ordered leaf by leaf (cluster.placement)",
      fabric.oversubscription, fabric.nodes_per_leaf, against(scattered, step_seconds), against(by_leaf, step_seconds));
}

}  // namespace orrery
