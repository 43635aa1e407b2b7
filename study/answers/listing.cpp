#include "study/answers/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "models/read_model.h"
#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"
#include "sim/planning/presets.h"
#include "sim/report/format.h"
#include "sim/report/json.h"
#include "strategies/read_scenario.h"
#include "strategies/schema.h"
#include "strategies/strategy.h"
#include "study/capacity/capacity_plan.h"
#include "study/galvatron/profile.h"
#include "study/sweep/document.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

using Names = std::vector<std::string>;
using OrderedJson = nlohmann::ordered_json;

template <class All>
Names names_in(const All& all) {
  Names names;
  for (const auto& each : all) names.emplace_back(each.name);
  return names;
}

[[noreturn]] void fail_unknown(const std::string& name) { throw InputError({}, describe(name), "a known name"); }

std::string summary_of(const Model& model) {
  std::string count = rate_text(static_cast<double>(parameters(model))) + " parameters";
  if (model.has_experts())
    count += fmt::format(" ({} active)", rate_text(static_cast<double>(active_parameters(model))));
  return fmt::format("{}, {} layers, hidden {}", count, model.layers + model.decoder_layers, model.hidden);
}

OrderedJson figures_of(const Model& model) {
  OrderedJson json = to_json(model);
  json["parameters"] = parameters(model);
  if (model.has_experts()) json["active_parameters"] = active_parameters(model);
  return json;
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

std::string summary_of(const Device& device) {
  return fmt::format("{} {}: {}, {} at {:.0f} GB/s", device.vendor, device.architecture, matrix_rate_text(device),
                     bytes_text(device.memory_bytes), device.memory_bytes_per_second * 1e-9);
}

std::string summary_of(const Node& node) {
  return fmt::format(
      "{} x {}, {}, network {} x {:.0f} Gbit/s", node.devices, node.device.empty() ? "any device" : node.device,
      kIntraFabricNames[static_cast<std::size_t>(node.intra)], node.nics, node.nic_bytes_per_second * 8e-9);
}

std::string summary_of(const Fabric& fabric) {
  return fmt::format("{}, oversubscription {:g}", kFabricKindNames[static_cast<std::size_t>(fabric.kind)],
                     fabric.oversubscription);
}

std::string summary_of(const Cluster& cluster) {
  return fmt::format("{} nodes: {} x {}", cluster.nodes, cluster.devices(), cluster.device.name);
}

std::string summary_of(const Price& price) {
  return fmt::format("{:g} {} per device-hour of {}, {}, {}", price.per_device_hour, price.currency,
                     price.device.empty() ? "any device" : price.device,
                     kPriceTermNames[static_cast<std::size_t>(price.term)], price.date);
}

std::string summary_of(const Power& power) {
  return fmt::format("{:g} W for {}, {}", power.busy_watts, power.device.empty() ? "any device" : power.device,
                     power.date);
}

std::string summary_of(const SiteOverhead& site) { return fmt::format("PUE {:g}, {}", site.pue, site.date); }

std::string summary_of(const Grid& grid) { return fmt::format("{:g} g/kWh, {}", grid.grams_per_kwh, grid.date); }

std::string summary_of(const FailureRate& rate) {
  return fmt::format("{:g} per node-day, {}", rate.failures_per_node_day, rate.date);
}

std::string summary_of(const CheckpointStorage& storage) {
  return fmt::format("writes {:g} GB/s, {}", storage.write_bytes_per_second * 1e-9, storage.date);
}

std::string summary_of(const RestartOverhead& restarts) {
  return fmt::format("{:g} s after a failure, {}", restarts.detection_seconds + restarts.restart_seconds,
                     restarts.date);
}

template <class Preset>
OrderedJson figures_of(const Preset& preset) {
  return to_json(preset);
}

// A kind of presets. `find`: returns the preset of a name.
template <class Find>
constexpr Listing presets(const char* name, const char* one, Names (*names)(), Find) {
  return {name, one, names, [](const std::string& of) { return summary_of(Find()(of)); },
          [](const std::string& of) { return figures_of(Find()(of)); }};
}

// Those of one kind that training plans name.
template <class Preset>
constexpr Listing plan_presets(const char* name, const char* one) {
  return presets(name, one, PresetsOf<Preset>::names,
                 [](const std::string& of) { return PresetsOf<Preset>::find(of); });
}

const BundledDocument& bundled(std::span<const BundledDocument> documents, const std::string& name) {
  const BundledDocument* found = find_bundled(documents, name);
  if (found == nullptr) fail_unknown(name);
  return *found;
}

// A kind of bundled documents. `All`: returns them.
template <class All>
constexpr Listing documents(const char* name, const char* one, All) {
  return {name, one, [] { return names_of(All()()); },
          [](const std::string& of) { return std::string(bundled(All()(), of).path); },
          [](const std::string& of) {
            const auto& all = All()();
            const BundledDocument& document = bundled(all, of);
            OrderedJson json = document.json();
            json["path"] = document.path;
            return json;
          }};
}

const Strategy& strategy_named(const std::string& name) {
  const auto all = all_strategies();
  const auto found = std::ranges::find(all, name, &Strategy::name);
  if (found == all.end()) fail_unknown(name);
  return *found;
}

std::string summary_of_strategy(const std::string& name) {
  const Strategy& strategy = strategy_named(name);
  return std::string(strategy.summary) + (strategy.paper == "-" ? "" : fmt::format(" ({})", strategy.paper));
}

OrderedJson figures_of_strategy(const std::string& name) {
  const Strategy& strategy = strategy_named(name);
  return {{"name", name}, {"summary", strategy.summary}, {"paper", strategy.paper}};
}

Names ids(bool with_scenario) {
  Names names;
  for (const PublishedSource& source : published_sources())
    for (const PublishedPoint& point : source.points)
      if (!with_scenario || point.scenario != nullptr) names.push_back(point.id);
  return names;
}

std::string summary_of_measurement(const std::string& id) {
  const PublishedPoint& point = *find_published(id);
  return fmt::format("{} {}: {}, {}", name_of(point.quantity), value_text(point.quantity, point.value),
                     source_of(point).system, point.where);
}

OrderedJson figures_of_measurement(const std::string& id) {
  const PublishedPoint* point = find_published(id);
  if (point == nullptr) fail_unknown(id);
  const PublishedSource& source = source_of(*point);
  OrderedJson json{{"file", "results/published/steps/" + source.name + ".json"},
                   {"source", source.source},
                   {"where", point->where},
                   {"system", source.system},
                   {"quality", point->quality}};
  if (point->has_value()) json[std::string(name_of(point->quantity))] = point->value;
  if (point->steps > 1) json["mean_of_steps"] = point->steps;
  if (!point->published_metric.empty())
    json["published"] = fmt::format("{} {} {}", point->published_metric, point->published_value, point->published_unit);
  if (!point->assumptions.empty()) json["assumptions"] = point->assumptions;
  if (!point->not_fitted.empty()) json["not_fitted"] = point->not_fitted;
  if (!point->explanation.empty()) json["why_it_is_off"] = point->explanation;
  if (!point->not_predicted.empty()) json["not_predicted"] = point->not_predicted;
  if (point->scenario != nullptr) json["scenario"] = *point->scenario;
  return json;
}

const std::vector<ScenarioField>& fields() {
  static const std::vector<ScenarioField> all = scenario_fields();
  return all;
}

std::string summary_of_field(const std::string& name) {
  return std::ranges::find(fields(), name, &ScenarioField::name)->summary;
}

constexpr Listing kListings[] = {
    presets("models", "model", model_names, [](const std::string& name) { return read_model(name, {}); }),
    presets("clusters", "cluster", cluster_names, [](const std::string& name) { return find_cluster(name); }),
    presets("nodes", "node", node_names, [](const std::string& name) { return find_node(name); }),
    presets("devices", "device", device_names, [](const std::string& name) { return find_device(name); }),
    presets("fabrics", "fabric", fabric_names, [](const std::string& name) { return find_fabric(name); }),
    {"strategies", "strategy", [] { return names_in(all_strategies()); }, summary_of_strategy, figures_of_strategy},
    documents("scenarios", "scenario", [] { return bundled_scenarios(); }),
    // Published steps and parts of steps; listed are those that are predicted: scenarios.
    {"measurements", "published measurement", [] { return ids(/*with_scenario=*/true); }, summary_of_measurement,
     figures_of_measurement},
    {"fields", nullptr, [] { return names_in(fields()); }, summary_of_field, nullptr},
    documents("sweeps", nullptr, [] { return bundled_sweeps(); }),
    documents("plans", "plan", [] { return bundled_plans(); }),
    documents("profiles", "profile", [] { return galvatron::bundled_profiles(); }),
    plan_presets<Price>("prices", "price"),
    plan_presets<Power>("power", "power"),
    plan_presets<SiteOverhead>("sites", "site"),
    plan_presets<Grid>("grids", "grid"),
    plan_presets<FailureRate>("failures", "failures"),
    plan_presets<CheckpointStorage>("storage", "storage"),
    plan_presets<RestartOverhead>("restarts", "restarts")};

std::string nearest_shown(const std::string& name) {
  Names names;
  for (const Listing& listing : kListings) {
    if (listing.one == nullptr) continue;
    const Names more = listing.figures == figures_of_measurement ? ids(/*with_scenario=*/false) : listing.names();
    names.insert(names.end(), more.begin(), more.end());
  }
  return nearest_name(name, names);
}

}  // namespace

std::span<const Listing> listings() { return kListings; }

OrderedJson listing_json(const Listing& listing) {
  OrderedJson array = OrderedJson::array();
  for (const std::string& name : listing.names()) array.push_back({{"name", name}, {"summary", listing.summary(name)}});
  return array;
}

OrderedJson shown_json(const std::string& name) {
  if (name.ends_with(".json")) {
    const nlohmann::json document = parse_python_json_file(name);
    refuse_report(document, name, "a model's file; orrery compare reads reports");
    if (document.is_object() && document.contains("cluster") && document.contains("workload"))
      throw InputError({name, ""}, "a scenario", "a model's file; orrery simulate reads scenarios");
    const bool wrapped = document.is_object() && document.contains("model");  // as --json writes it
    return {{"model", figures_of(wrapped ? read_model(document.at("model"), {name, "/model"})
                                         : read_model(document, {name, ""}))}};
  }
  OrderedJson found = OrderedJson::object();
  for (const Listing& listing : kListings) {
    if (listing.one == nullptr) continue;
    try {
      found[listing.one] = listing.figures(name);
    } catch (const InputError& error) {
      if (!error.where().file.empty()) throw;  // a fault inside a preset; not: no such name
    }
  }
  if (found.empty())
    throw InputError({}, describe(name),
                     "a name that `orrery list` prints, or an id that `orrery validate --points` prints",
                     nearest_shown(name));
  return found;
}

}  // namespace orrery
