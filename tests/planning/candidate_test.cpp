// Do time, cost, energy and carbon follow from a candidate as they should, and is what moves them named?
#include "sim/planning/candidate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/planning/training_run.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

nlohmann::json seventy_billion() {
  return parse_json(R"({
    "name": "H100", "step_seconds": 12, "step_seconds_low": 11, "step_seconds_high": 14,
    "tokens": 15e12, "tokens_per_step": 4194304, "devices": 2048, "spare_nodes": 8,
    "checkpoint_bytes": 1e12, "repair_seconds": 86400,
    "failures": "llama-3-405b", "storage": "nvidia-su-256-h100", "restarts": "megascale",
    "price": "gcp-h100-three-year", "power": "h100-node-measured", "site": "google", "grid": "gcp-us-central1"
  })",
                    "plan.json");
}

Candidate read(const nlohmann::json& json) { return read_candidate(json, {"plan.json", "/candidates/0"}); }

std::string refusal(const char* key, const nlohmann::json& value) {
  nlohmann::json json = seventy_billion();
  if (value.is_null())
    json.erase(key);
  else
    json[key] = value;
  try {
    read(json);
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Candidate, IsReadWithItsPresets) {
  const Candidate candidate = read(seventy_billion());
  const TrainingRun& run = candidate.run;
  EXPECT_EQ(run.steps, 3576279);
  EXPECT_EQ(run.nodes, 256);
  EXPECT_EQ(run.spare_nodes, 8);
  EXPECT_NEAR(run.seconds_between_failures(), 86400 / (0.003789 * 256), 1e-6);
  EXPECT_EQ(run.repair_share, 0.78);
  EXPECT_EQ(run.recovery_seconds(), 600 + 30 + 8);
  EXPECT_EQ(candidate.price.per_device_hour, 4.86);
  // Nodes of 4 fail half as often: there are twice as many.
  nlohmann::json small = seventy_billion();
  small["devices_per_node"] = 4;
  EXPECT_DOUBLE_EQ(read(small).run.seconds_between_failures(), run.seconds_between_failures());
}

TEST(Candidate, WhatIsMissingUnknownOrContradictoryGetsItsSentence) {
  EXPECT_EQ(
      refusal("spare_node", 3),
      "plan.json: /candidates/0/spare_node: found the unknown key \"spare_node\", expected a known key (did you mean "
      "\"spare_nodes\"?)");
  for (const char* key : {"step_seconds", "tokens_per_step", "devices", "checkpoint_bytes", "failures", "storage",
                          "restarts", "price", "power", "site", "grid"})
    EXPECT_THAT(refusal(key, nullptr), HasSubstr(std::string("/candidates/0/") + key + ": found nothing, expected "));
  EXPECT_THAT(refusal("tokens", nullptr), HasSubstr("expected either steps or tokens"));
  EXPECT_THAT(refusal("steps", 5), HasSubstr("expected either steps or tokens"));
  EXPECT_THAT(refusal("step_seconds_low", 13), HasSubstr("expected at most step_seconds, 12"));
  EXPECT_THAT(refusal("step_seconds_high", 11), HasSubstr("expected at least step_seconds, 12"));
  EXPECT_THAT(refusal("power", "a100-board"), HasSubstr("expected power of H100-SXM5-80GB, the device of the price"));
  EXPECT_THAT(refusal("price", {{"per_device_hour", 2}, {"currency", "USD"}}), HasSubstr("/price/date: found nothing"));
  EXPECT_THAT(refusal("failures", -0.1), HasSubstr("expected the name of a failure-rate preset, or an object"));
  EXPECT_THAT(refusal("repair_seconds", -1), HasSubstr("found -1"));
}

// Each by hand.
TEST(Candidate, ExpensesAreThoseOfTheTimeTheDevicesAreHeld) {
  Candidate candidate = read(seventy_billion());
  candidate.power.busy_watts = 1000;
  candidate.power.idle_watts = 250;
  candidate.power.node_watts = 400;
  candidate.site.pue = 1.25;
  candidate.grid.grams_per_kwh = 100;
  candidate.electricity_per_kwh = 0.05;
  const RunOutcome outcome{
      .wall_seconds = 10 * 3600, .useful_seconds = 7 * 3600, .lost_seconds = 3600, .waiting_seconds = 2 * 3600};
  const Expenses spent = expenses(candidate, outcome);
  EXPECT_DOUBLE_EQ(spent.device_hours, 264 * 8 * 10);
  const double kwh = 1.25 * (2048 * (8 * 1.0 + 2 * 0.25) + 64 * 10 * 0.25 + 264 * 10 * 0.4);
  EXPECT_DOUBLE_EQ(spent.energy_kwh, kwh);
  EXPECT_DOUBLE_EQ(spent.carbon_kg, kwh / 10);
  EXPECT_DOUBLE_EQ(spent.cost, 21120 * 4.86 + 0.05 * kwh);
}

TEST(Candidate, TheIntervalOfAStepIsCarriedIntoAllOfThem) {
  const Candidate candidate = read(seventy_billion());
  const Forecast result = forecast(candidate);
  for (const Estimate* estimate :
       {&result.wall_seconds, &result.device_hours, &result.cost, &result.energy_kwh, &result.carbon_kg}) {
    // Nearly in proportion: what a failure costs does not grow with the step.
    EXPECT_NEAR(estimate->low / estimate->value, 11.0 / 12, 1e-3);
    EXPECT_NEAR(estimate->high / estimate->value, 14.0 / 12, 1e-3);
  }
  for (const Estimate* estimate : {&result.ettr, &result.goodput}) {
    EXPECT_LE(estimate->low, estimate->value);
    EXPECT_LE(estimate->value, estimate->high);
  }
  EXPECT_NEAR(result.goodput.value, result.ettr.value * 256 / 264, 1e-12);
  EXPECT_EQ(result.wall_seconds.value, result.outcome.wall_seconds);
  EXPECT_NEAR(result.cost.value, result.wall_seconds.value / 3600 * 264 * 8 * 4.86, 1);
}

const TornadoBar& of(const std::vector<TornadoBar>& all, std::string_view input) {
  return *std::find_if(all.begin(), all.end(), [&](const TornadoBar& bar) { return bar.input == input; });
}

// d log(output) / d log(input).
double exponent(const Candidate& candidate, PlanOutput output, std::string_view input) {
  constexpr double kSwing = 0.001;
  const std::vector<TornadoBar> all = sensitivities(candidate, output, kSwing);
  return std::log(of(all, input).at_more / of(all, input).at_less) / std::log((1 + kSwing) / (1 - kSwing));
}

TEST(Sensitivities, AreTheDerivativesOfWhatIsKnown) {
  Candidate candidate = read(seventy_billion());
  const auto of_cost = [&](std::string_view input) { return exponent(candidate, PlanOutput::cost, input); };
  EXPECT_NEAR(of_cost("price.per_device_hour"), 1, 1e-9);
  EXPECT_NEAR(of_cost("step_seconds"), 1, 1e-3);
  EXPECT_EQ(of_cost("grid.grams_per_kwh"), 0);
  EXPECT_EQ(of_cost("power.busy_watts"), 0);  // the price includes electricity
  for (const std::string_view input : {"grid.grams_per_kwh", "site.pue", "power.busy_watts"})
    EXPECT_NEAR(exponent(candidate, PlanOutput::carbon_kg, input), 1, 1e-9) << input;
  EXPECT_EQ(exponent(candidate, PlanOutput::carbon_kg, "price.per_device_hour"), 0);
  const auto cost = sensitivities(candidate, PlanOutput::cost);
  EXPECT_NEAR(of(cost, "price.per_device_hour").at_less, 0.8 * forecast(candidate).cost.value, 1);
  EXPECT_NEAR(of(cost, "price.per_device_hour").at_more, 1.2 * forecast(candidate).cost.value, 1);
}

// By every input and every output: what the forecast of a candidate is whose JSON says so much less and more. Inputs
// that are 0 are left out, and the names are those of the candidate's document.
TEST(Sensitivities, AreForecastsOfChangedDocuments) {
  nlohmann::json json = seventy_billion();
  json["electricity_per_kwh"] = 0.07;
  json["power"] = {{"busy_watts", 900}, {"idle_watts", 300}, {"node_watts", 1500}, {"date", "2026"}, {"source", "s"}};
  json["storage"] = {{"write_bytes_per_second", 40e9},
                     {"read_bytes_per_second", 60e9},
                     {"snapshot_bytes_per_second", 1e12},
                     {"date", "2026"},
                     {"source", "s"}};
  json.erase("step_seconds_low");
  json.erase("step_seconds_high");
  json["site"] = {{"pue", 1.4}, {"date", "2026"}, {"source", "s"}};
  for (const char* part : {"price", "grid", "failures", "restarts"})
    json[part] = {{"base", json[part].get<std::string>()}, {"date", "2026"}};
  const Candidate candidate = read(json);
  const std::vector<std::pair<std::string, double>> inputs{
      {"step_seconds", 12},
      {"price.per_device_hour", candidate.price.per_device_hour},
      {"electricity_per_kwh", 0.07},
      {"power.busy_watts", 900},
      {"power.idle_watts", 300},
      {"power.node_watts", 1500},
      {"site.pue", candidate.site.pue},
      {"grid.grams_per_kwh", candidate.grid.grams_per_kwh},
      {"failures.failures_per_node_day", candidate.failures.failures_per_node_day},
      {"repair_seconds", 86400},
      {"restarts.detection_seconds", candidate.restarts.detection_seconds},
      {"restarts.restart_seconds", candidate.restarts.restart_seconds},
      {"checkpoint_bytes", 1e12},
      {"storage.write_bytes_per_second", 40e9},
      {"storage.read_bytes_per_second", 60e9},
      {"storage.snapshot_bytes_per_second", 1e12}};
  constexpr double kSwing = 0.15;
  const auto forecast_with = [&](const std::string& input, double value) {
    nlohmann::json changed = json;
    const std::size_t dot = input.find('.');
    (dot == std::string::npos ? changed : changed[input.substr(0, dot)])[input.substr(dot + 1)] = value;
    return forecast(read(changed));
  };
  for (std::size_t output = 0; output < kPlanOutputNames.size(); ++output) {
    const auto of_output = static_cast<PlanOutput>(output);
    const std::vector<TornadoBar> bars = sensitivities(candidate, of_output, kSwing);
    ASSERT_EQ(bars.size(), inputs.size());
    for (std::size_t i = 0; i < bars.size(); ++i) {
      const auto& [input, value] = inputs[i];
      EXPECT_EQ(bars[i].input, input);
      const double less = value_of(forecast_with(input, value * (1 - kSwing)), of_output),
                   more = value_of(forecast_with(input, value * (1 + kSwing)), of_output);
      EXPECT_NEAR(bars[i].at_less, less, 1e-9 * less) << input << " of " << kPlanOutputNames[output];
      EXPECT_NEAR(bars[i].at_more, more, 1e-9 * more) << input << " of " << kPlanOutputNames[output];
      EXPECT_NEAR(bars[i].width(), std::fabs(more - less), 1e-9 * more);
    }
  }
  // Each output has its name: all are different figures of one forecast.
  const Forecast all = forecast(candidate);
  EXPECT_EQ(value_of(all, PlanOutput::wall_seconds), all.wall_seconds.value);
  EXPECT_EQ(value_of(all, PlanOutput::ettr), all.ettr.value);
  EXPECT_EQ(value_of(all, PlanOutput::goodput), all.goodput.value);
  EXPECT_EQ(value_of(all, PlanOutput::device_hours), all.device_hours.value);
  EXPECT_EQ(value_of(all, PlanOutput::cost), all.cost.value);
  EXPECT_EQ(value_of(all, PlanOutput::energy_kwh), all.energy_kwh.value);
  EXPECT_EQ(value_of(all, PlanOutput::carbon_kg), all.carbon_kg.value);
  nlohmann::json less = json;
  less.erase("electricity_per_kwh");
  less.erase("repair_seconds");
  EXPECT_EQ(sensitivities(read(less), PlanOutput::cost).size(), inputs.size() - 2);
}

// What is derived from a document: whole steps and nodes, rates of nodes of other sizes, reads that are as fast as
// writes where nothing is said.
TEST(Candidate, ItsRunFollowsFromWhatItSays) {
  nlohmann::json json = seventy_billion();
  json.update(
      {{"tokens", 1001.0},
       {"tokens_per_step", 100.0},
       {"devices", 21},
       {"devices_per_node", 4},
       {"checkpoint_interval_seconds", 777.0},
       {"failures", {{"failures_per_node_day", 0.5}, {"repair_share", 0.25}, {"date", "2026"}, {"source", "s"}}},
       {"storage", {{"write_bytes_per_second", 5e9}, {"date", "2026"}, {"source", "s"}}}});
  const TrainingRun run = read(json).run;
  EXPECT_EQ(run.steps, 11);
  EXPECT_EQ(run.devices, 21);
  EXPECT_EQ(run.nodes, 6);
  EXPECT_DOUBLE_EQ(run.failures_per_node_second, 0.5 / 86400 / 2);
  EXPECT_EQ(run.repair_share, 0.25);
  EXPECT_EQ(run.checkpoint_interval_seconds, 777);
  EXPECT_EQ(run.write_bytes_per_second, 5e9);
  EXPECT_EQ(run.read_bytes_per_second, 5e9);
  EXPECT_EQ(run.snapshot_bytes_per_second, 0);
  json["storage"]["read_bytes_per_second"] = 7e9;
  EXPECT_EQ(read(json).run.read_bytes_per_second, 7e9);
  json["devices"] = 20;
  EXPECT_EQ(read(json).run.nodes, 5) << "full ones";
  json["tokens"] = 1000.0;
  EXPECT_EQ(read(json).run.steps, 10);
  json.erase("step_seconds_low");
  json.erase("step_seconds_high");
  const Estimate step = read(json).step_seconds;
  EXPECT_TRUE(step.low == 12 && step.value == 12 && step.high == 12);
  EXPECT_EQ(read(json).run.step_seconds, 12);
}

// To first order, at the best interval: T/Ts = 1 + sqrt(2 delta/M) + R/M.
TEST(Sensitivities, OfFailuresAndBandwidthAreThoseOfTheFirstOrderForm) {
  Candidate candidate = read(seventy_billion());
  candidate.run.repair_seconds = 0;
  candidate.run.failures_per_node_second /= 100;
  const TrainingRun& run = candidate.run;
  const double between = run.seconds_between_failures(), recovery = run.recovery_seconds();
  const double checkpoints = std::sqrt(2 * run.stall_seconds() / between);
  const double whole = 1 + checkpoints + recovery / between;
  const auto near = [&](std::string_view input, double expected) {
    EXPECT_NEAR(exponent(candidate, PlanOutput::wall_seconds, input), expected, 0.02 * std::fabs(expected)) << input;
  };
  near("failures.failures_per_node_day", (checkpoints / 2 + recovery / between) / whole);
  near("storage.write_bytes_per_second", -checkpoints / 2 / whole);
  near("storage.read_bytes_per_second", -8 / between / whole);
  near("restarts.detection_seconds", 600 / between / whole);
  near("restarts.restart_seconds", 30 / between / whole);
}

TEST(BreakEvenPrice, IsWhereBothCostTheSame) {
  const Candidate h100 = read(seventy_billion());
  Candidate a100 = h100;
  a100.step_seconds = {.low = 25, .value = 30, .high = 33};
  a100.run.step_seconds = 30;
  a100.price.per_device_hour = 2;
  a100.power.busy_watts = 812.5;
  a100.electricity_per_kwh = 0.1;
  for (const double electricity : {0.0, 0.12}) {
    Candidate tied = h100;
    tied.electricity_per_kwh = electricity;
    const BreakEven even = break_even(tied, a100);
    tied.price.per_device_hour = even.price.value;
    EXPECT_NEAR(forecast(tied).cost.value / forecast(a100).cost.value, 1, 1e-12);
    EXPECT_DOUBLE_EQ(even.ratio.value, even.price.value / 2);
    EXPECT_LT(even.price.low, even.price.value);
    EXPECT_LT(even.price.value, even.price.high);
    // At the edges, too.
    tied.price.per_device_hour = even.price.low;
    EXPECT_NEAR(forecast(tied).cost.high / forecast(a100).cost.low, 1, 1e-12);
  }
  // Same electricity, same spares: nearly the ratio of step times.
  a100.electricity_per_kwh = 0;
  EXPECT_NEAR(break_even(h100, a100).ratio.value, 2.5, 0.01);
}

TEST(BreakEvenPrice, CurrenciesAreNotMixed) {
  const Candidate dollars = read(seventy_billion());
  Candidate euros = dollars;
  euros.price.currency = "EUR";
  try {
    break_even(dollars, euros);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/price/currency: found USD and EUR, expected prices in one currency"));
  }
  euros.price.per_device_hour = 0;
  euros.price.currency = "USD";
  EXPECT_THROW(break_even(dollars, euros), InputError);
}

}  // namespace
}  // namespace orrery
