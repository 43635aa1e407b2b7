#include "study/capacity/published_runs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/report/format.h"
#include "study/capacity/sized_candidate.h"

namespace orrery {
namespace {

constexpr double kSecondsOfDay = 86400;
constexpr const char* kRunsFile = "results/published/runs.json";

Estimate scaled(const Estimate& estimate, double factor) {
  return {.low = estimate.low * factor, .value = estimate.value * factor, .high = estimate.high * factor};
}

Estimate predicted_of(const SizedCandidate& sized, ReportedQuantity quantity) {
  const Forecast& forecast = sized.forecast;
  switch (quantity) {
    case ReportedQuantity::wall_days:
      return scaled(forecast.wall_seconds, 1 / kSecondsOfDay);
    case ReportedQuantity::device_hours:
      return forecast.device_hours;
    case ReportedQuantity::ettr:
      return forecast.ettr;
    case ReportedQuantity::failures_per_day: {
      const double rate = forecast.outcome.failures / forecast.outcome.wall_seconds * kSecondsOfDay;
      return {.low = rate, .value = rate, .high = rate};
    }
    case ReportedQuantity::energy_mwh:
      return scaled(forecast.energy_kwh, 1e-3);
    case ReportedQuantity::carbon_tonnes:
      return scaled(forecast.carbon_kg, 1e-3);
    case ReportedQuantity::cost:
      break;
  }
  return forecast.cost;
}

void predict_run(const nlohmann::json& run, const InputError::Where& where, Simulator& simulator,
                 std::vector<ReportedFigure>& figures) {
  JsonReader reader(run, where);
  ReportedFigure figure;
  reader.field("id", figure.run, "");
  reader.take("source");
  if (run.contains("source")) figure.source = run["source"].get<std::string>();
  if (const nlohmann::json* assumptions = reader.take("assumptions"))
    figure.assumptions = assumptions->get<std::vector<std::string>>();
  const nlohmann::json *plan_json = reader.take("plan"), *reported = reader.take("reported");
  reader.finish();
  if (plan_json == nullptr) reader.fail("plan", "a document for `orrery plan`");
  if (reported == nullptr || !reported->is_array()) reader.fail("reported", "an array of figures");
  const CapacityPlan plan = read_capacity_plan(*plan_json, {where.file, {}});
  const std::vector<SizedCandidate> sized = size_up(plan, simulator);
  if (sized.size() != 1) reader.fail("plan", "one candidate of one size");
  if (!sized.front().impossible.empty()) reader.fail("plan", "one that can be predicted: " + sized.front().impossible);
  figure.step_predicted = sized.front().scenario.has_value();
  for (std::size_t i = 0; i < reported->size(); ++i) {
    JsonReader of_figure((*reported)[i], {where.file, fmt::format("{}/reported/{}", where.pointer, i)});
    of_figure.field("quantity", figure.quantity, kReportedQuantityNames, "");
    of_figure.field("value", figure.reported, positive(), "");
    figure.bound = ReportedBound::none;
    of_figure.field("bound", figure.bound, kReportedBoundNames, "");
    of_figure.field("where", figure.where, "");
    of_figure.finish();
    figure.predicted = predicted_of(sized.front(), figure.quantity);
    figures.push_back(figure);
  }
}

}  // namespace

std::vector<ReportedFigure> predict_published_runs(Simulator& simulator) {
  static const nlohmann::json document = parse_embedded(kRunsFile);
  JsonReader reader(document, {kRunsFile, ""});
  reader.take("schema");
  const nlohmann::json* runs = reader.take("runs");
  reader.finish();
  std::vector<ReportedFigure> figures;
  for (std::size_t i = 0; i < runs->size(); ++i)
    predict_run((*runs)[i], {kRunsFile, fmt::format("/runs/{}", i)}, simulator, figures);
  return figures;
}

std::string published_runs_table(const std::vector<ReportedFigure>& figures) {
  std::vector<std::vector<std::string>> rows;
  const auto number = [](ReportedQuantity quantity, double value) {
    if (quantity == ReportedQuantity::ettr) return percent_text(value);
    return value >= 1e6 ? rate_text(value) : fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 1000 ? 1 : 0);
  };
  for (const ReportedFigure& f : figures) {
    const bool met = (f.bound == ReportedBound::at_least && f.predicted.value >= f.reported) ||
                     (f.bound == ReportedBound::at_most && f.predicted.value <= f.reported);
    const std::string bound = f.bound == ReportedBound::none
                                  ? ""
                                  : fmt::format("{} ", kReportedBoundNames[static_cast<std::size_t>(f.bound)]);
    rows.push_back({f.run, std::string(kReportedQuantityNames[static_cast<std::size_t>(f.quantity)]),
                    bound + number(f.quantity, f.reported), number(f.quantity, f.predicted.value),
                    f.predicted.low == f.predicted.high ? ""
                                                        : fmt::format("{} to {}", number(f.quantity, f.predicted.low),
                                                                      number(f.quantity, f.predicted.high)),
                    met ? "holds" : signed_percent_text(f.error()), f.step_predicted ? "predicted" : "given"});
  }
  return grid("<run|<quantity|reported|predicted|80 %|error|<step", rows);
}

nlohmann::ordered_json published_runs_json(const std::vector<ReportedFigure>& figures) {
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const ReportedFigure& f : figures)
    array.push_back({{"run", f.run},
                     {"source", f.source},
                     {"where", f.where},
                     {"quantity", kReportedQuantityNames[static_cast<std::size_t>(f.quantity)]},
                     {"bound", kReportedBoundNames[static_cast<std::size_t>(f.bound)]},
                     {"reported", f.reported},
                     {"predicted", f.predicted.value},
                     {"predicted_low", f.predicted.low},
                     {"predicted_high", f.predicted.high},
                     {"error", f.error()},
                     {"step", f.step_predicted ? "predicted" : "given"},
                     {"assumptions", f.assumptions}});
  return array;
}

}  // namespace orrery
