#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "cli/output.h"
#include "models/layers.h"
#include "sim/base/json_writer.h"
#include "strategies/data_parallel/data_parallel.h"
#include "strategies/framework/framework.h"
#include "strategies/scenario.h"

namespace orrery {
namespace {

struct FieldText {
  std::string text, value;  // "name value"
  Scope scope;
};

std::string value_text(const nlohmann::json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const nlohmann::json& each : value) text += (text.empty() ? "" : "+") + value_text(each);
  return text;
}

std::vector<FieldText> texts_of(const Plan& plan) {
  std::vector<FieldText> texts;
  for_each_field(plan, [&](const VisitedField& field, const auto& its) {
    const nlohmann::json json = field_json(field, its);
    const std::string value = value_text(json);
    const std::string text = json.is_boolean() ? (json.get<bool>() ? "" : "no ") + std::string(field.name)
                                               : fmt::format("{} {}", field.name, value);
    texts.push_back({text, value, field.scope});
  });
  return texts;
}

// Returns what the stack's own choice means, if it matters and the plan leaves it open.
std::string when_reduced(const Scenario& scenario) {
  const data_parallel::Options& data = scenario.plan.data;
  const bool open = data.reduce_gradients == data_parallel::Reduction::automatic && data.zero_stage >= 2;
  if (!open || data_parallel_degree(scenario) == 1 || micro_batches(scenario) == 1) return "";
  return data_parallel::reduces_in_every_micro_batch(scenario, micro_batches(scenario))
             ? "reduce_gradients every_micro_batch (the framework's choice)"
             : "reduce_gradients once (the framework's choice)";
}

std::string narrow_gradients(const Plan& plan) {
  const Dtype dtype = framework::gradient_dtype(plan);
  if (plan.precision.gradients != precision::GradientDtype::automatic || dtype == Dtype::fp32) return "";
  return fmt::format("gradient_dtype {} (the framework's choice)", name_of(dtype));
}

}  // namespace

std::vector<std::string> title_of(const Scenario& scenario) {
  const Cluster& cluster = scenario.cluster;
  const auto named = [](const std::string& name, const char* otherwise) {
    return name.empty() ? otherwise : name.c_str();
  };
  std::vector<std::string> lines;
  lines.push_back(fmt::format("{} on {} x {} ({} x {})", named(scenario.model.name, "an unnamed model"), cluster.nodes,
                              named(cluster.node.name, "an unnamed node"), cluster.devices(),
                              named(cluster.device.name, "an unnamed device")));
  const Model& model = scenario.model;
  const std::int64_t length = sequence_length(model, scenario.workload);
  lines.push_back(fmt::format("{} {} per step, data_parallel {}, micro-batches per pipeline: {}",
                              scenario.workload.global_batch_size,
                              model.vision() ? "images" : fmt::format("sequences of {} tokens", length),
                              data_parallel_degree(scenario), micro_batches(scenario)));
  const auto usual = texts_of(Plan{});
  const auto chosen = texts_of(scenario.plan);
  std::string line;
  constexpr std::size_t kWidth = 100;
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    const bool always = chosen[i].text.starts_with("framework ");  // always shown: it changes the time of a step most
    if (chosen[i].value == usual[i].value && !always) continue;
    if (line.size() + chosen[i].text.size() > kWidth) lines.push_back(std::exchange(line, {}));
    line += (line.empty() ? "" : ", ") + chosen[i].text;
  }
  for (const std::string& own : {narrow_gradients(scenario.plan), when_reduced(scenario)})
    if (!own.empty()) line += (line.empty() ? "" : ", ") + own;
  if (!line.empty()) lines.push_back(line);
  for (const LayerRange& range : scenario.plan.layers) {
    const auto own = texts_of(range.plan);
    std::string fields;
    for (std::size_t i = 0; i < own.size(); ++i)
      if (own[i].scope == Scope::layer && own[i].value != chosen[i].value)
        fields += (fields.empty() ? "" : ", ") + own[i].text;
    if (fields.empty()) continue;
    const std::int64_t end = range.to > 0 ? range.to : model.total_layers();
    lines.push_back(fmt::format("layers[{}:{}{}]: {}", range.from, end,
                                range.step > 1 ? fmt::format(":{}", range.step) : "", fields));
  }
  return lines;
}

}  // namespace orrery
