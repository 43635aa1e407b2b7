#include "study/answers/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"
#include "sim/planning/presets.h"
#include "sim/report/format.h"
#include "strategies/read_scenario.h"
#include "strategies/schema.h"
#include "strategies/strategy.h"
#include "study/capacity/capacity_plan.h"
#include "study/sweep/document.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

std::vector<ListRow> models() {
  std::vector<ListRow> rows;
  for (const std::string& name : model_names()) {
    const Model model = read_model(name, {});
    std::string count = rate_text(static_cast<double>(parameters(model))) + " parameters";
    if (model.has_experts())
      count += fmt::format(" ({} active)", rate_text(static_cast<double>(active_parameters(model))));
    rows.push_back(
        {name, fmt::format("{}, {} layers, hidden {}", count, model.layers + model.decoder_layers, model.hidden)});
  }
  return rows;
}

// In the 16 bits that its matrix units take, or in fp32.
std::string matrix_rate_text(const Device& device) {
  Dtype dtype = Dtype::fp32;
  for (const Dtype narrow : {Dtype::fp16, Dtype::bf16})
    if (device.peak_flops_per_second[static_cast<std::size_t>(narrow)] > 0) dtype = narrow;
  const double teraflops = device.peak(dtype) * 1e-12;
  return fmt::format("{} TFLOP/s {}",
                     teraflops < 1 ? fmt::format("{:.2g}", teraflops) : fmt::format("{:.0f}", teraflops),
                     name_of(dtype));
}

std::vector<ListRow> devices() {
  std::vector<ListRow> rows;
  for (const std::string& name : device_names()) {
    const Device device = find_device(name);
    rows.push_back(
        {name, fmt::format("{} {}: {}, {} at {:.0f} GB/s", device.vendor, device.architecture, matrix_rate_text(device),
                           bytes_text(device.memory_bytes), device.memory_bytes_per_second * 1e-9)});
  }
  return rows;
}

std::vector<ListRow> nodes() {
  std::vector<ListRow> rows;
  for (const std::string& name : node_names()) {
    const Node node = find_node(name);
    rows.push_back({name, fmt::format("{} x {}, {}, network {} x {:.0f} Gbit/s", node.devices,
                                      node.device.empty() ? "any device" : node.device,
                                      kIntraFabricNames[static_cast<std::size_t>(node.intra)], node.nics,
                                      node.nic_bytes_per_second * 8e-9)});
  }
  return rows;
}

std::vector<ListRow> fabrics() {
  std::vector<ListRow> rows;
  for (const std::string& name : fabric_names()) {
    const Fabric fabric = find_fabric(name);
    rows.push_back(
        {name, fmt::format("{}, oversubscription {:g}", kFabricKindNames[static_cast<std::size_t>(fabric.kind)],
                           fabric.oversubscription)});
  }
  return rows;
}

std::vector<ListRow> clusters() {
  std::vector<ListRow> rows;
  for (const std::string& name : cluster_names()) {
    const Cluster cluster = find_cluster(name);
    rows.push_back({name, fmt::format("{} nodes: {} x {}", cluster.nodes, cluster.devices(), cluster.device.name)});
  }
  return rows;
}

std::vector<ListRow> strategies() {
  std::vector<ListRow> rows;
  for (const Strategy& strategy : all_strategies())
    rows.push_back(
        {std::string(strategy.name),
         std::string(strategy.summary) + (strategy.paper == "-" ? "" : fmt::format(" ({})", strategy.paper))});
  return rows;
}

std::vector<ListRow> scenarios() {
  std::vector<ListRow> rows;
  for (const BundledScenario& scenario : bundled_scenarios())
    rows.push_back({scenario.name, std::string(scenario.path)});
  return rows;
}

// Published steps and parts of steps; of those that are predicted, scenarios.
std::vector<ListRow> measurements() {
  std::vector<ListRow> rows;
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points)
      if (point.scenario != nullptr)
        rows.push_back({point.id, fmt::format("{} {}: {}, {}", name_of(point.quantity),
                                              value_text(point.quantity, point.value), source.system, point.where)});
  return rows;
}

std::vector<ListRow> plans() {
  std::vector<ListRow> rows;
  for (const BundledPlan& plan : bundled_plans()) rows.push_back({plan.name, std::string(plan.path)});
  return rows;
}

std::vector<ListRow> prices() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<Price>::names()) {
    const Price price = PresetsOf<Price>::find(name);
    rows.push_back({name, fmt::format("{:g} {} per device-hour of {}, {}, {}", price.per_device_hour, price.currency,
                                      price.device.empty() ? "any device" : price.device,
                                      kPriceTermNames[static_cast<std::size_t>(price.term)], price.date)});
  }
  return rows;
}

std::vector<ListRow> power() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<Power>::names()) {
    const Power found = PresetsOf<Power>::find(name);
    rows.push_back({name, fmt::format("{:g} W for {}, {}", found.busy_watts,
                                      found.device.empty() ? "any device" : found.device, found.date)});
  }
  return rows;
}

std::vector<ListRow> sites() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<SiteOverhead>::names())
    rows.push_back({name, fmt::format("PUE {:g}, {}", PresetsOf<SiteOverhead>::find(name).pue,
                                      PresetsOf<SiteOverhead>::find(name).date)});
  return rows;
}

std::vector<ListRow> grids() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<Grid>::names())
    rows.push_back({name, fmt::format("{:g} g/kWh, {}", PresetsOf<Grid>::find(name).grams_per_kwh,
                                      PresetsOf<Grid>::find(name).date)});
  return rows;
}

std::vector<ListRow> failure_rates() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<FailureRate>::names()) {
    const FailureRate rate = PresetsOf<FailureRate>::find(name);
    rows.push_back({name, fmt::format("{:g} per node-day, {}", rate.failures_per_node_day, rate.date)});
  }
  return rows;
}

std::vector<ListRow> storage() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<CheckpointStorage>::names()) {
    const CheckpointStorage found = PresetsOf<CheckpointStorage>::find(name);
    rows.push_back({name, fmt::format("writes {:g} GB/s, {}", found.write_bytes_per_second * 1e-9, found.date)});
  }
  return rows;
}

std::vector<ListRow> restarts() {
  std::vector<ListRow> rows;
  for (const std::string& name : PresetsOf<RestartOverhead>::names()) {
    const RestartOverhead found = PresetsOf<RestartOverhead>::find(name);
    rows.push_back(
        {name, fmt::format("{:g} s after a failure, {}", found.detection_seconds + found.restart_seconds, found.date)});
  }
  return rows;
}

std::vector<ListRow> fields() {
  std::vector<ListRow> rows;
  for (ScenarioField& field : scenario_fields()) rows.push_back({std::move(field.name), std::move(field.summary)});
  return rows;
}

std::vector<ListRow> sweeps() {
  std::vector<ListRow> rows;
  for (const BundledSweep& sweep : bundled_sweeps()) rows.push_back({sweep.name, std::string(sweep.path)});
  return rows;
}

template <class Named>
std::vector<std::string> names_in(const Named& all) {
  std::vector<std::string> names;
  for (const auto& each : all) names.emplace_back(each.name);
  return names;
}

constexpr Listing kListings[] = {{"models", models, [] { return model_names(); }},
                                 {"clusters", clusters, [] { return cluster_names(); }},
                                 {"nodes", nodes, [] { return node_names(); }},
                                 {"devices", devices, [] { return device_names(); }},
                                 {"fabrics", fabrics, [] { return fabric_names(); }},
                                 {"strategies", strategies, [] { return names_in(all_strategies()); }},
                                 {"scenarios", scenarios, [] { return names_in(bundled_scenarios()); }},
                                 {"measurements", measurements, nullptr},
                                 {"fields", fields, nullptr},
                                 {"sweeps", sweeps, [] { return names_in(bundled_sweeps()); }},
                                 {"plans", plans, [] { return names_in(bundled_plans()); }},
                                 {"prices", prices, [] { return PresetsOf<Price>::names(); }},
                                 {"power", power, [] { return PresetsOf<Power>::names(); }},
                                 {"sites", sites, [] { return PresetsOf<SiteOverhead>::names(); }},
                                 {"grids", grids, [] { return PresetsOf<Grid>::names(); }},
                                 {"failures", failure_rates, [] { return PresetsOf<FailureRate>::names(); }},
                                 {"storage", storage, [] { return PresetsOf<CheckpointStorage>::names(); }},
                                 {"restarts", restarts, [] { return PresetsOf<RestartOverhead>::names(); }}};

}  // namespace

std::span<const Listing> listings() { return kListings; }

std::vector<std::string> names_of(const Listing& listing) {
  if (listing.names != nullptr) return listing.names();
  std::vector<std::string> names;
  for (const ListRow& row : listing.rows()) names.push_back(row.name);
  return names;
}

nlohmann::ordered_json listing_json(const Listing& listing) {
  auto array = nlohmann::ordered_json::array();
  for (const ListRow& row : listing.rows()) array.push_back({{"name", row.name}, {"summary", row.summary}});
  return array;
}

}  // namespace orrery
