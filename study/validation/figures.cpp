#include "study/validation/figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"
#include "sim/report/format.h"
#include "study/validation/errors.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

constexpr std::array<const char*, 3> kFiguresFiles{"results/published/moe.json", "results/published/long_context.json",
                                                   "results/published/slow_networks.json"};
constexpr double kSecondsPerHour = 3600;

double figure_count(JsonReader& reader, const char* key) {
  if (!reader.has(key)) reader.fail(key, "a number");
  return reader.number(key, {.least = 1});
}

// The scenario that a prediction names: a bundled one, that of a published step, or the document itself, with the
// fields of "set" laid over it.
nlohmann::json scenario_of(JsonReader& reader) {
  nlohmann::json document = reader.need("scenario", "a bundled scenario's name or a scenario");
  if (document.is_string()) {
    const std::string named = document;
    const PublishedPoint* point = find_published(named);
    ScenarioSource source;
    document = point != nullptr && point->scenario ? *point->scenario : load_scenario_document(named, {}, source);
  }
  if (const nlohmann::json* set = reader.take("set")) document.merge_patch(*set);
  return document;
}

// Seconds of the ops with these names in a step: "expert_layer.forward.dispatch". A name that ends in '*' is a
// beginning.
double op_seconds(const nlohmann::json& names, const InputError::Where& where, const Report& report) {
  double seconds = 0;
  for (const nlohmann::json& entry : names) {
    std::string name = entry;
    const bool begins = name.ends_with('*');
    if (begins) name.pop_back();
    bool found = false;
    for (const OpReport& op : report.ops) {
      if (begins ? !op.name.starts_with(name) : op.name != name) continue;
      found = true;
      seconds += op.seconds * op.times_per_step;
    }
    if (!found) throw InputError(where, '"' + entry.get<std::string>() + '"', "an op of the step");
  }
  return seconds;
}

// GB/s of the tokens that a rank receives from the others in an exchange by token, as DeepEP counts: once a rank, or
// with the own node once a node.
double exchange_rate(JsonReader& reader) {
  const Cluster cluster = read_cluster(reader.need("cluster", "a cluster"), reader.at("cluster"));
  Router router{.experts = static_cast<std::uint16_t>(figure_count(reader, "experts")),
                .choices = static_cast<std::uint16_t>(figure_count(reader, "choices"))};
  if (reader.has("groups")) router.groups = static_cast<std::uint16_t>(figure_count(reader, "groups"));
  if (reader.has("best_groups")) router.best_groups = static_cast<std::uint16_t>(figure_count(reader, "best_groups"));
  const double bytes = figure_count(reader, "tokens") * figure_count(reader, "token_bytes") * router.choices;
  const std::string counted = reader.text("counted");
  if (counted != "ranks" && counted != "nodes") reader.fail("counted", "\"ranks\" or \"nodes\"");
  const std::int64_t nodes = cluster.nodes, ranks = nodes * cluster.node.devices;
  const TokenShares shares = token_shares(router, ranks, nodes);
  const CollectiveCost cost =
      CollectiveModel(cluster, find_collective_calibration(cluster))
          .token_exchange(
              bytes, router,
              {.ranks = ranks, .ranks_per_node = cluster.node.devices, .nodes = nodes, .groups_sharing_nics = 1});
  const double received =
      counted == "ranks" ? shares.to_rank * static_cast<double>(ranks) : shares.to_node * static_cast<double>(nodes);
  return received * bytes / cost.seconds / 1e9;
}

// Rate of a grouped product against one batched product of its shape, forward.
double grouped_rate(JsonReader& reader) {
  const Device device = find_device(reader.text("device"));
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  GemmShape shape;
  for (const auto& [key, size] : {std::pair("groups", &shape.batch), std::pair("m", &shape.m), std::pair("n", &shape.n),
                                  std::pair("k", &shape.k)})
    *size = static_cast<std::int64_t>(figure_count(reader, key));
  const double bytes = 2.0 * static_cast<double>(shape.batch) *
                       static_cast<double>(shape.m * shape.k + shape.k * shape.n + shape.m * shape.n);
  return model.matmul_seconds(shape, Dtype::bf16, bytes) / model.grouped_seconds(shape, Dtype::bf16, bytes);
}

// The largest power of two that fits as a micro-batch.
double largest_micro_batch(nlohmann::json document, const std::string& id, std::int64_t most, Simulator& simulator) {
  std::int64_t fits = 0;
  for (std::int64_t micro_batch = 1; micro_batch <= most; micro_batch *= 2) {
    document["plan"]["micro_batch_size"] = micro_batch;
    if (!simulator.evaluate(document, {id, {}}, {}).report.memory_fits) break;
    fits = micro_batch;
  }
  return static_cast<double>(fits);
}

double predict_figure(JsonReader& reader, const PublishedFigure& figure, Simulator& simulator) {
  const std::string kind = reader.text("kind");
  const auto report_of = [&](JsonReader& of, bool ops = false) {
    return simulator.evaluate(scenario_of(of), {figure.id, {}}, {.ops = ops}).report;
  };
  double value = 0;
  if (kind == "ops") {
    const nlohmann::json* names = reader.take("ops");
    if (names == nullptr || !names->is_array() || names->empty()) reader.fail("ops", "names of ops");
    value = op_seconds(*names, reader.at("ops"), report_of(reader, /*ops=*/true));
    if (figure.unit == "ms") value *= 1e3;
  } else if (kind == "step") {
    value = report_of(reader).step_seconds;
    if (figure.unit == "ms") value *= 1e3;
    if (reader.has("samples")) value = figure_count(reader, "samples") / value;
  } else if (kind == "mfu") {
    value = report_of(reader).mfu;
  } else if (kind == "mfu_full_attention") {
    value = report_of(reader).mfu_full_attention;
  } else if (kind == "speedup") {
    const double seconds = report_of(reader).step_seconds;
    reader.object(
        "over", [&](JsonReader& slower) { value = report_of(slower).step_seconds / seconds; }, "the slower scenario");
  } else if (kind == "device_hours") {
    const double tokens = figure_count(reader, "tokens"), tokens_per_step = figure_count(reader, "tokens_per_step");
    const Report report = report_of(reader);
    value = report.step_seconds * static_cast<double>(report.devices) * tokens / tokens_per_step / kSecondsPerHour;
  } else if (kind == "largest_micro_batch") {
    const auto most = static_cast<std::int64_t>(figure_count(reader, "most"));
    value = largest_micro_batch(scenario_of(reader), figure.id, most, simulator);
  } else if (kind == "exchange" || kind == "grouped") {
    reader.object(
        kind.c_str(), [&](JsonReader& of) { value = kind == "exchange" ? exchange_rate(of) : grouped_rate(of); },
        "an object");
  } else {
    reader.fail("kind",
                "ops, step, speedup, mfu, mfu_full_attention, device_hours, largest_micro_batch, exchange or grouped");
  }
  return value;
}

std::string figure_value(double value) { return fmt::format("{:.4g}", value); }

std::vector<std::vector<std::string>> predicted_rows(std::span<const PublishedFigure> figures) {
  std::vector<std::vector<std::string>> rows;
  for (const PublishedFigure& f : figures)
    if (f.is_predicted())
      rows.push_back({f.id, f.what, figure_value(f.value), figure_value(f.predicted), f.unit,
                      f.has_error() ? signed_percent_text(f.error()) : "-", f.in_sample.empty() ? "" : "in sample"});
  return rows;
}

// Each reason, in the order in which they first occur, with how many figures it is of and the first of them.
std::vector<std::vector<std::string>> why_not_rows(std::span<const PublishedFigure> figures) {
  std::vector<std::vector<std::string>> rows;
  for (const PublishedFigure& f : figures) {
    if (f.is_predicted() || std::ranges::any_of(rows, [&](const auto& row) { return row[2] == f.not_predicted; }))
      continue;
    rows.push_back({std::to_string(std::ranges::count(figures, f.not_predicted, &PublishedFigure::not_predicted)), f.id,
                    f.not_predicted});
  }
  return rows;
}

// Joins what `text` makes of the figures of each file.
template <class Text>
std::string of_subjects(std::span<const PublishedFigure> figures, const char* between, Text text) {
  std::string all;
  while (!figures.empty()) {
    std::size_t n = 1;
    while (n < figures.size() && figures[n].about == figures.front().about) ++n;
    all += (all.empty() ? "" : between) + text(figures.first(n));
    figures = figures.subspan(n);
  }
  return all;
}

std::string line_of(std::span<const PublishedFigure> figures) {
  std::vector<double> errors;
  for (const PublishedFigure& f : figures)
    if (f.has_error() && f.in_sample.empty()) errors.push_back(f.error());
  const ErrorStatistics e = error_statistics(errors);
  return fmt::format(
      "Figures of {} that are not steps (--figures): {} predicted, median {}, 90th pct {}; {} not predicted\n",
      figures.front().about, e.points, percent_text(e.median), percent_text(e.percentile_90),
      std::count_if(figures.begin(), figures.end(), [](const PublishedFigure& f) { return !f.is_predicted(); }));
}

constexpr std::string_view kPredicted = "<id|<what|published|predicted|<|error|<";
constexpr std::string_view kReasons = "figures|<the first|<not predicted because";

}  // namespace

std::vector<PublishedFigure> predicted_figures(const nlohmann::json& document, const std::string& file,
                                               Simulator& simulator) {
  JsonReader of_file(document, {file, ""});
  of_file.text("schema");
  const std::string about = of_file.text("about");
  if (about.empty()) of_file.fail("about", "the subject of its figures");
  of_file.take("notes");
  const nlohmann::json* reasons = of_file.take("reasons");  // that more than one figure is not predicted for, by name
  std::vector<PublishedFigure> figures;
  std::set<std::string> ids;
  of_file.each("points", "an array", [&](JsonReader& reader) {
    PublishedFigure& f = figures.emplace_back();
    f.about = about;
    for (const auto& [key, member] : {std::pair("id", &f.id), std::pair("source", &f.source),
                                      std::pair("what", &f.what), std::pair("unit", &f.unit)})
      *member = reader.text(key, true);
    if (!ids.insert(f.id).second) reader.fail("id", "a unique id");
    if (!reader.has("value")) reader.fail("value", "a number");
    f.value = reader.number("value");
    f.not_predicted = reader.text("not_predicted");
    f.in_sample = reader.text("in_sample");
    if (reasons != nullptr)
      if (const auto whole = reasons->find(f.not_predicted); whole != reasons->end()) f.not_predicted = *whole;
    if (reader.has("prediction") != f.not_predicted.empty())
      reader.fail("prediction", "how it is predicted, or the reason in \"not_predicted\"");
    reader.object("prediction", [&](JsonReader& how) { f.predicted = predict_figure(how, f, simulator); });
  });
  of_file.finish();
  return figures;
}

std::vector<PublishedFigure> predicted_figures(Simulator& simulator) {
  std::vector<PublishedFigure> all;
  for (const char* file : kFiguresFiles)
    for (PublishedFigure& f : predicted_figures(parse_embedded(file), file, simulator)) all.push_back(std::move(f));
  return all;
}

std::string figures_table(std::span<const PublishedFigure> figures) {
  return of_subjects(figures, "\n", [](std::span<const PublishedFigure> of) {
    return of.front().about + "\n" + grid(kPredicted, predicted_rows(of)) + "\n" + grid(kReasons, why_not_rows(of));
  });
}

std::string figures_line(std::span<const PublishedFigure> figures) { return of_subjects(figures, "", line_of); }

std::string figures_markdown(std::span<const PublishedFigure> figures) {
  return of_subjects(figures, "\n", [](std::span<const PublishedFigure> of) {
    return line_of(of) + "\n" + markdown_grid(kPredicted, predicted_rows(of)) + "\n" +
           markdown_grid(kReasons, why_not_rows(of));
  });
}

}  // namespace orrery
