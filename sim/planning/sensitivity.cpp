#include "sim/planning/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace orrery {
namespace {

// 0 if the candidate does not use the input.
double& figure_of(Candidate& candidate, PlanInput input) {
  TrainingRun& run = candidate.run;
  switch (input) {
    case PlanInput::step_seconds:
      return candidate.step_seconds.value;
    case PlanInput::price:
      return candidate.price.per_device_hour;
    case PlanInput::electricity:
      return candidate.electricity_per_kwh;
    case PlanInput::busy_watts:
      return candidate.power.busy_watts;
    case PlanInput::idle_watts:
      return candidate.power.idle_watts;
    case PlanInput::node_watts:
      return candidate.power.node_watts;
    case PlanInput::pue:
      return candidate.site.pue;
    case PlanInput::grid:
      return candidate.grid.grams_per_kwh;
    case PlanInput::failure_rate:
      return run.failures_per_node_second;
    case PlanInput::repair:
      return run.repair_seconds;
    case PlanInput::detection:
      return run.detection_seconds;
    case PlanInput::restart:
      return run.restart_seconds;
    case PlanInput::checkpoint_bytes:
      return run.checkpoint_bytes;
    case PlanInput::write_bandwidth:
      return run.write_bytes_per_second;
    case PlanInput::read_bandwidth:
      return run.read_bytes_per_second;
    case PlanInput::snapshot_bandwidth:
      break;
  }
  return run.snapshot_bytes_per_second;
}

double output_at(const Candidate& candidate, PlanInput input, double factor, PlanOutput output) {
  Candidate changed = candidate;
  figure_of(changed, input) *= factor;
  changed.run.step_seconds = changed.step_seconds.low = changed.step_seconds.high = changed.step_seconds.value;
  return value_of(forecast(changed), output);
}

}  // namespace

double value_of(const Forecast& forecast, PlanOutput output) {
  switch (output) {
    case PlanOutput::wall_seconds:
      return forecast.wall_seconds.value;
    case PlanOutput::ettr:
      return forecast.ettr.value;
    case PlanOutput::goodput:
      return forecast.goodput.value;
    case PlanOutput::device_hours:
      return forecast.device_hours.value;
    case PlanOutput::cost:
      return forecast.cost.value;
    case PlanOutput::energy_kwh:
      return forecast.energy_kwh.value;
    case PlanOutput::carbon_kg:
      break;
  }
  return forecast.carbon_kg.value;
}

std::vector<Sensitivity> sensitivities(const Candidate& candidate, PlanOutput output, double swing) {
  constexpr double kFactor = 1.001;
  std::vector<Sensitivity> result;
  Candidate known = candidate;
  for (std::size_t i = 0; i < kPlanInputNames.size(); ++i) {
    const auto input = static_cast<PlanInput>(i);
    if (figure_of(known, input) == 0) continue;
    const auto at = [&](double factor) { return output_at(candidate, input, factor, output); };
    result.push_back({.input = input,
                      .exponent = std::log(at(kFactor) / at(1 / kFactor)) / (2 * std::log(kFactor)),
                      .at_less = at(1 - swing),
                      .at_more = at(1 + swing)});
  }
  std::stable_sort(result.begin(), result.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::fabs(a.at_more - a.at_less) > std::fabs(b.at_more - b.at_less);
  });
  return result;
}

BreakEven break_even(const Candidate& a, const Candidate& b) {
  if (a.price.currency != b.price.currency)
    throw InputError({"", "/price/currency"}, fmt::format("{} and {}", a.price.currency, b.price.currency),
                     "prices in one currency, to compare two candidates");
  if (b.price.per_device_hour <= 0)
    throw InputError({"", "/price/per_device_hour"}, "0", "a price above 0 for the ratio of prices");
  const Forecast mine = forecast(a), other = forecast(b);
  const auto tie = [&](double Estimate::*my, double Estimate::*its) {
    const double electricity = mine.energy_kwh.*my * a.electricity_per_kwh;
    return (other.cost.*its - electricity) / mine.device_hours.*my;
  };
  BreakEven result;
  result.price = {.low = tie(&Estimate::high, &Estimate::low),
                  .value = tie(&Estimate::value, &Estimate::value),
                  .high = tie(&Estimate::low, &Estimate::high)};
  const double its = b.price.per_device_hour;
  result.ratio = {.low = result.price.low / its, .value = result.price.value / its, .high = result.price.high / its};
  return result;
}

}  // namespace orrery
