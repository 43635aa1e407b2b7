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

Estimate predicted_of(const Forecast& f, ReportedQuantity quantity) {
  const double failures = f.outcome.failures / f.outcome.wall_seconds * kSecondsOfDay;
  const std::array<Estimate, kReportedQuantityNames.size()> in_order{scaled(f.wall_seconds, 1 / kSecondsOfDay),
                                                                     f.device_hours,
                                                                     f.ettr,
                                                                     {failures, failures, failures},
                                                                     scaled(f.energy_kwh, 1e-3),
                                                                     scaled(f.carbon_kg, 1e-3),
                                                                     f.cost};
  return in_order[static_cast<std::size_t>(quantity)];
}

void predict_run(JsonReader& reader, Simulator& simulator, std::vector<ReportedFigure>& figures) {
  ReportedFigure figure;
  figure.run = reader.text("id");
  figure.source = reader.text("source");
  if (const nlohmann::json* assumptions = reader.take("assumptions"))
    figure.assumptions = assumptions->get<std::vector<std::string>>();
  const CapacityPlan plan = read_capacity_plan(reader.need("plan", "a document for `orrery plan`"), {kRunsFile, {}});
  const std::vector<SizedCandidate> sized = size_up(plan, simulator);
  if (sized.size() != 1) reader.fail("plan", "one candidate of one size");
  if (!sized.front().impossible.empty()) reader.fail("plan", "one that can be predicted: " + sized.front().impossible);
  figure.step_predicted = sized.front().scenario.has_value();
  reader.each("reported", "an array of figures", [&](JsonReader& of_figure) {
    of_figure.field("quantity", figure.quantity, kReportedQuantityNames, "");
    of_figure.field("value", figure.reported, positive(), "");
    figure.bound = ReportedBound::none;
    of_figure.field("bound", figure.bound, kReportedBoundNames, "");
    figure.where = of_figure.text("where");
    figure.predicted = predicted_of(sized.front().forecast, figure.quantity);
    figures.push_back(figure);
  });
}

}  // namespace

std::vector<ReportedFigure> predict_published_runs(Simulator& simulator) {
  static const nlohmann::json document = parse_embedded(kRunsFile);
  JsonReader reader(document, {kRunsFile, ""});
  reader.take("schema");
  std::vector<ReportedFigure> figures;
  reader.each("runs", "an array", [&](JsonReader& run) { predict_run(run, simulator, figures); });
  reader.finish();
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
