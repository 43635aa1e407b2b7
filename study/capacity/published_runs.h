// Whole trainings as their authors reported them (results/published/runs.json), with the predictions of them.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/planning/candidate.h"
#include "study/simulation/simulation.h"

namespace orrery {

enum class ReportedQuantity : std::uint8_t {
  wall_days,
  device_hours,
  ettr,
  failures_per_day,
  energy_mwh,
  carbon_tonnes,
  cost,
};
inline constexpr std::array<std::string_view, 7> kReportedQuantityNames{
    "wall_days", "device_hours", "ettr", "failures_per_day", "energy_mwh", "carbon_tonnes", "cost"};
enum class ReportedBound : std::uint8_t { none, at_least, at_most };
inline constexpr std::array<std::string_view, 3> kReportedBoundNames{"none", "at least", "at most"};

struct ReportedFigure {
  std::string run, source, where;
  std::vector<std::string> assumptions;  // facts that the prediction needs and the source does not state
  bool step_predicted = false;           // the engine predicted the step time; false: it was given
  ReportedQuantity quantity = ReportedQuantity::wall_days;
  ReportedBound bound = ReportedBound::none;
  double reported = 0;
  Estimate predicted;

  double error() const { return predicted.value / reported - 1; }
};

// In the order of the file. Throws InputError if a run cannot be predicted.
std::vector<ReportedFigure> predict_published_runs(Simulator& simulator);

// One row per figure, errors in per cent. Ends with a newline.
std::string published_runs_table(const std::vector<ReportedFigure>& figures);
// The same with sources and assumptions.
nlohmann::ordered_json published_runs_json(const std::vector<ReportedFigure>& figures);

}  // namespace orrery
