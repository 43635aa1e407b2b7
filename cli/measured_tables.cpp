#include "cli/measured_tables.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "sim/report/format.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Table {
  std::string columns;
  std::vector<std::vector<std::string>> rows{};
};

std::string error_columns(const Engines& engines) {
  std::string columns;
  for (const char* sizes : {"", ", all"})
    for (const std::size_t e : engines) columns += fmt::format("|{}{}", kEngineNames[e], sizes);
  return columns;
}

// "4.9 (-1.2)": the median error and the bias, in percent.
std::string error_cell(const ErrorStatistics& error) {
  if (error.points == 0) return "-";
  double bias = kPercent * error.bias;
  constexpr double kShownAsZero = 0.05;
  if (std::abs(bias) < kShownAsZero) bias = 0;  // not "-0.0"
  return fmt::format("{:.1f} ({:+.1f})", kPercent * error.median, bias);
}

Table curve_table(const MeasuredCollectives& measured, const Engines& engines) {
  Table table{"<curve|<system|<collective|nodes x devices|points" + error_columns(engines)};
  for (const MeasuredCurve& curve : measured.curves) {
    std::vector<std::string>& row = table.rows.emplace_back();
    const bool forced = curve.algorithm != name_of(CollectiveAlgorithm::automatic);
    row = {curve.id + (curve.not_fitted.empty() ? "" : " *"), curve.system,
           curve.kind + (forced ? ", " + curve.algorithm : ""),
           fmt::format("{} x {}", curve.nodes, curve.ranks / curve.nodes), std::to_string(curve.points.size())};
    for (const double least : {kLargeBytes, 0.0})
      for (const std::size_t e : engines)
        row.push_back(curve.unpredicted.empty() ? error_cell(error_over(curve.points, e, least)) : "not predicted");
  }
  return table;
}

Table summary_table(std::span<const ErrorSummary> summaries, const Engines& engines) {
  Table table{"<|<links|curves|points" + error_columns(engines)};
  for (const std::size_t e : engines) table.columns += fmt::format("|{}, by curve", kEngineNames[e]);
  for (const ErrorSummary& summary : summaries) {
    std::vector<std::string>& row = table.rows.emplace_back();
    const std::size_t points = std::max(summary.large[0].points, summary.large[1].points);
    row = {summary.level, summary.name, std::to_string(summary.curves), std::to_string(points)};
    for (const auto* errors : {&summary.large, &summary.all})
      for (const std::size_t e : engines) row.push_back(error_cell((*errors)[e]));
    for (const std::size_t e : engines)
      row.push_back(points == 0 ? "-" : fmt::format("{:.1f}", kPercent * summary.median_curve[e]));
  }
  return table;
}

constexpr const char* kLegend =
    "Median of |predicted / measured - 1| over points from 1 MiB on (\"all\": over all sizes) in percent; the median "
    "of predicted / measured - 1 is in brackets. By curve: median over the curves' medians, from 1 MiB on.";

// Remarks on curves that differ from the others, one per line.
std::vector<std::string> remarks(const MeasuredCollectives& measured) {
  std::vector<std::string> lines;
  OrderedJson not_fitted;  // reason, and curves
  for (const MeasuredCurve& curve : measured.curves) {
    if (!curve.unpredicted.empty()) lines.push_back(fmt::format("Not predicted: {}: {}", curve.id, curve.unpredicted));
    if (curve.not_fitted.empty()) continue;
    not_fitted[curve.not_fitted].push_back(curve.id);
  }
  for (const auto& [why, which] : not_fitted.items())
    lines.push_back(fmt::format("* Not used by the calibration: {}: {}",
                                fmt::join(which.get<std::vector<std::string>>(), ", "), why));
  for (const LeftOutCurve& curve : measured.left_out)
    lines.push_back(fmt::format("Published without points: {}: {}", curve.id, curve.why));
  return lines;
}

OrderedJson json_of(const ErrorStatistics& error) {
  return {{"points", error.points}, {"median_error", error.median}, {"bias", error.bias}};
}

}  // namespace

std::string measured_table(const MeasuredCollectives& measured, const Engines& engines) {
  const Table curves = curve_table(measured, engines),
              summary = summary_table(summaries_of(measured.curves, engines), engines);
  std::string text = grid(curves.columns, curves.rows) + "\n" + grid(summary.columns, summary.rows);
  text += fmt::format("\n{}\n", kLegend);
  for (const std::string& line : remarks(measured)) text += line + "\n";
  return text;
}

std::string measured_markdown(const MeasuredCollectives& measured, const Engines& engines) {
  std::string text = fmt::format(
      "# Measured collectives and their predictions\n\nWritten by `orrery collective --measured --markdown FILE` from "
      "`results/published/collectives.json`, which has the sources. {}\n\nThe calibration was fitted on these curves, "
      "except where a * says otherwise: these are residuals, not forecasts. Both engines take their rates from it and "
      "differ where flows contend.\n\n",
      kLegend);
  const Table curves = curve_table(measured, engines),
              summary = summary_table(summaries_of(measured.curves, engines), engines);
  text += markdown_grid(summary.columns, summary.rows) + "\n" + markdown_grid(curves.columns, curves.rows);
  const std::vector<std::string> lines = remarks(measured);
  if (!lines.empty()) text += "\n";
  for (const std::string& line : lines) text += "- " + line + "\n";
  return text;
}

std::string measured_csv(const MeasuredCollectives& measured, const Engines& engines) {
  std::string text =
      "curve,source,system,device,network,links,class,collective,forced_algorithm,ranks,nodes,fitted,unpredicted,bytes,"
      "measured_seconds,algorithm,protocol";
  for (const std::size_t e : engines) text += fmt::format(",{0}_seconds,{0}_error", kEngineNames[e]);
  text += '\n';
  for (const MeasuredCurve& curve : measured.curves) {
    std::string head;
    for (const std::string* cell : {&curve.id, &curve.source, &curve.system, &curve.gpu, &curve.network, &curve.links,
                                    &curve.calibration_class, &curve.kind, &curve.algorithm})
      head += csv_text(*cell) + ',';
    const bool predicted = curve.unpredicted.empty();
    head += fmt::format("{},{},{},{}", curve.ranks, curve.nodes, curve.not_fitted.empty(), csv_text(curve.unpredicted));
    for (const MeasuredPoint& point : curve.points) {
      text += fmt::format("{},{},{},{},{}", head, point.bytes, point.measured_seconds,
                          predicted ? name_of(point.predicted.algorithm) : "",
                          predicted ? name_of(point.predicted.protocol) : std::string_view{});
      for (const std::size_t e : engines)
        text += predicted ? fmt::format(",{},{}", point.predicted.seconds[e], point.error(e)) : ",,";
      text += '\n';
    }
  }
  return text;
}

OrderedJson measured_json(const MeasuredCollectives& measured, const Engines& engines) {
  const auto by_engine = [&](auto value) {
    OrderedJson json = OrderedJson::object();
    for (const std::size_t e : engines) json[std::string(kEngineNames[e])] = value(e);
    return json;
  };
  OrderedJson summary = OrderedJson::array();
  for (const ErrorSummary& s : summaries_of(measured.curves, engines))
    summary.push_back({{"level", s.level},
                       {"links", s.name},
                       {"curves", s.curves},
                       {"from_1_mib", by_engine([&](std::size_t e) { return json_of(s.large[e]); })},
                       {"all_sizes", by_engine([&](std::size_t e) { return json_of(s.all[e]); })},
                       {"median_curve", by_engine([&](std::size_t e) { return OrderedJson(s.median_curve[e]); })}});
  OrderedJson curves = OrderedJson::array();
  for (const MeasuredCurve& c : measured.curves) {
    OrderedJson points = OrderedJson::array();
    for (const MeasuredPoint& p : c.points) {
      OrderedJson point = {{"bytes", p.bytes}, {"measured_seconds", p.measured_seconds}};
      if (c.unpredicted.empty()) {
        point["algorithm"] = name_of(p.predicted.algorithm);
        point["protocol"] = name_of(p.predicted.protocol);
        point.update(by_engine([&](std::size_t e) { return OrderedJson(p.predicted.seconds[e]); }));
      }
      points.push_back(std::move(point));
    }
    OrderedJson& curve = curves.emplace_back(OrderedJson{{"id", c.id},
                                                         {"source", c.source},
                                                         {"method", c.method},
                                                         {"system", c.system},
                                                         {"device", c.gpu},
                                                         {"network", c.network},
                                                         {"links", c.links},
                                                         {"class", c.calibration_class},
                                                         {"collective", c.kind},
                                                         {"forced_algorithm", c.algorithm},
                                                         {"ranks", c.ranks},
                                                         {"nodes", c.nodes},
                                                         {"not_fitted", c.not_fitted},
                                                         {"unpredicted", c.unpredicted}});
    if (c.unpredicted.empty()) {
      curve["from_1_mib"] = by_engine([&](std::size_t e) { return json_of(error_over(c.points, e, kLargeBytes)); });
      curve["all_sizes"] = by_engine([&](std::size_t e) { return json_of(error_over(c.points, e, 0)); });
    }
    curve["points"] = std::move(points);
  }
  OrderedJson left_out = OrderedJson::array();
  for (const LeftOutCurve& c : measured.left_out) left_out.push_back({{"id", c.id}, {"why", c.why}});
  return {{"summary", std::move(summary)},
          {"curves", std::move(curves)},
          {"left_out", std::move(left_out)},
          {"version", ORRERY_VERSION}};
}

}  // namespace orrery
