#include "sim/planning/sensitivity.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace orrery {
namespace {

// What a forecast hangs on. The figure is 0 if the candidate does not use the input.
struct ForecastInput {
  std::string_view name;
  double& (*of)(Candidate&);
};
constexpr ForecastInput kInputs[] = {
    {"step_seconds", [](Candidate& c) -> double& { return c.step_seconds.value; }},
    {"price.per_device_hour", [](Candidate& c) -> double& { return c.price.per_device_hour; }},
    {"electricity_per_kwh", [](Candidate& c) -> double& { return c.electricity_per_kwh; }},
    {"power.busy_watts", [](Candidate& c) -> double& { return c.power.busy_watts; }},
    {"power.idle_watts", [](Candidate& c) -> double& { return c.power.idle_watts; }},
    {"power.node_watts", [](Candidate& c) -> double& { return c.power.node_watts; }},
    {"site.pue", [](Candidate& c) -> double& { return c.site.pue; }},
    {"grid.grams_per_kwh", [](Candidate& c) -> double& { return c.grid.grams_per_kwh; }},
    {"failures.failures_per_node_day", [](Candidate& c) -> double& { return c.run.failures_per_node_second; }},
    {"repair_seconds", [](Candidate& c) -> double& { return c.run.repair_seconds; }},
    {"restarts.detection_seconds", [](Candidate& c) -> double& { return c.run.detection_seconds; }},
    {"restarts.restart_seconds", [](Candidate& c) -> double& { return c.run.restart_seconds; }},
    {"checkpoint_bytes", [](Candidate& c) -> double& { return c.run.checkpoint_bytes; }},
    {"storage.write_bytes_per_second", [](Candidate& c) -> double& { return c.run.write_bytes_per_second; }},
    {"storage.read_bytes_per_second", [](Candidate& c) -> double& { return c.run.read_bytes_per_second; }},
    {"storage.snapshot_bytes_per_second", [](Candidate& c) -> double& { return c.run.snapshot_bytes_per_second; }},
};

double output_at(const Candidate& candidate, const ForecastInput& input, double factor, PlanOutput output) {
  Candidate changed = candidate;
  input.of(changed) *= factor;
  changed.run.step_seconds = changed.step_seconds.low = changed.step_seconds.high = changed.step_seconds.value;
  return value_of(forecast(changed), output);
}

}  // namespace

double value_of(const Forecast& forecast, PlanOutput output) {
  constexpr std::array<Estimate Forecast::*, kPlanOutputNames.size()> kOutputs{
      &Forecast::wall_seconds, &Forecast::ettr,       &Forecast::goodput,  &Forecast::device_hours,
      &Forecast::cost,         &Forecast::energy_kwh, &Forecast::carbon_kg};
  return (forecast.*kOutputs[static_cast<std::size_t>(output)]).value;
}

std::vector<Sensitivity> sensitivities(const Candidate& candidate, PlanOutput output, double swing) {
  constexpr double kFactor = 1.001;
  std::vector<Sensitivity> result;
  Candidate known = candidate;
  for (const ForecastInput& input : kInputs) {
    if (input.of(known) == 0) continue;
    const auto at = [&](double factor) { return output_at(candidate, input, factor, output); };
    result.push_back({.input = input.name,
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
