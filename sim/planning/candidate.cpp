#include "sim/planning/candidate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr double kSecondsPerHour = 3600, kSecondsPerDay = 86400, kJoulesPerKwh = 3.6e6;
constexpr double kDevicesOfRatedNode = 8;  // a node of FailureRate
constexpr NumberRange kStep{.least = 1e-9, .most = 1e9};
constexpr NumberRange kRepairTime{.least = 0, .most = 1e9};
constexpr NumberRange kSize{.least = 0, .most = 1e18};
constexpr NumberRange kTokens{.least = 1, .most = 1e18};

// `what` a preset of this kind is, for the message where nothing is given.
template <class Preset>
Preset read_preset(JsonReader& reader, const char* key, const char* what) {
  const Json* json = reader.take(key);
  if (json == nullptr) reader.fail(key, fmt::format("{}: a preset's name or an object", what));
  return PresetsOf<Preset>::read(*json, reader.at(key));
}

void read_step(JsonReader& reader, Candidate& candidate) {
  Estimate& step = candidate.step_seconds;
  reader.field("step_seconds", step.value, kStep, "");
  if (step.value <= 0) reader.fail("step_seconds", "the seconds of a step");
  step.low = step.high = step.value;
  reader.field("step_seconds_low", step.low, kStep, "");
  reader.field("step_seconds_high", step.high, kStep, "");
  if (step.low > step.value) reader.fail("step_seconds_low", fmt::format("at most step_seconds, {}", step.value));
  if (step.high < step.value) reader.fail("step_seconds_high", fmt::format("at least step_seconds, {}", step.value));
  candidate.run.step_seconds = step.value;
}

void read_length(JsonReader& reader, Candidate& candidate) {
  double tokens = 0;
  reader.field("steps", candidate.run.steps, IntegerRange{.least = 1, .most = 1'000'000'000'000}, "");
  reader.field("tokens", tokens, kTokens, "");
  reader.field("tokens_per_step", candidate.tokens_per_step, kTokens, "");
  if (reader.has("steps") == reader.has("tokens"))
    reader.fail("steps", "either steps or tokens, the length of the training");
  if (!reader.has("tokens")) return;
  if (candidate.tokens_per_step <= 0)
    reader.fail("tokens_per_step", "the tokens of a step, because the length is given in tokens");
  const double steps = std::ceil(tokens / candidate.tokens_per_step);
  if (steps > 1e12) reader.fail("tokens", "at most 1e12 steps");
  candidate.run.steps = static_cast<std::int64_t>(steps);
}

void read_size(JsonReader& reader, Candidate& candidate, std::int64_t& devices_per_node) {
  TrainingRun& run = candidate.run;
  reader.field("devices", run.devices, degree(), "");
  if (run.devices == 0) reader.fail("devices", "the number of devices that train");
  reader.field("devices_per_node", devices_per_node, IntegerRange{.least = 1, .most = 1024}, "");
  reader.field("spare_nodes", run.spare_nodes, degree(0), "");
  run.nodes = (run.devices + devices_per_node - 1) / devices_per_node;
}

}  // namespace

void read_operations(JsonReader& reader, std::int64_t devices_per_node, Candidate& candidate) {
  TrainingRun& run = candidate.run;
  candidate.failures = read_preset<FailureRate>(reader, "failures", "a failure rate");
  const FailureRate& failures = candidate.failures;
  run.failures_per_node_second =
      failures.failures_per_node_day / kSecondsPerDay * static_cast<double>(devices_per_node) / kDevicesOfRatedNode;
  run.repair_share = failures.repair_share;
  reader.field("repair_seconds", run.repair_seconds, kRepairTime, "");
  candidate.restarts = read_preset<RestartOverhead>(reader, "restarts", "restart overheads");
  run.detection_seconds = candidate.restarts.detection_seconds;
  run.restart_seconds = candidate.restarts.restart_seconds;

  candidate.storage = read_preset<CheckpointStorage>(reader, "storage", "storage of checkpoints");
  const CheckpointStorage& storage = candidate.storage;
  run.write_bytes_per_second = storage.write_bytes_per_second;
  run.read_bytes_per_second =
      storage.read_bytes_per_second > 0 ? storage.read_bytes_per_second : storage.write_bytes_per_second;
  run.snapshot_bytes_per_second = storage.snapshot_bytes_per_second;
  reader.field("checkpoint_bytes", run.checkpoint_bytes, kSize, "");
  reader.field("checkpoint_interval_seconds", run.checkpoint_interval_seconds, or_none(kStep), "");

  candidate.price = read_preset<Price>(reader, "price", "a price");
  reader.field("electricity_per_kwh", candidate.electricity_per_kwh, NumberRange{.least = 0, .most = 1e6}, "");
  candidate.power = read_preset<Power>(reader, "power", "power");
  candidate.site = read_preset<SiteOverhead>(reader, "site", "the site's PUE");
  candidate.grid = read_preset<Grid>(reader, "grid", "a grid");
  const std::string& priced = candidate.price.device;
  if (!priced.empty() && !candidate.power.device.empty() && priced != candidate.power.device)
    reader.fail("power", fmt::format("power of {}, the device of the price", priced));
}

Candidate read_candidate(const Json& json, const InputError::Where& where) {
  JsonReader reader(json, where);
  Candidate candidate;
  std::int64_t devices_per_node = 8;
  reader.field("name", candidate.name, "");
  read_step(reader, candidate);
  read_length(reader, candidate);
  read_size(reader, candidate, devices_per_node);
  read_operations(reader, devices_per_node, candidate);
  if (!reader.has("checkpoint_bytes")) reader.fail("checkpoint_bytes", "the bytes of a checkpoint");
  reader.finish();
  return candidate;
}

Expenses expenses(const Candidate& candidate, const RunOutcome& outcome) {
  const TrainingRun& run = candidate.run;
  const auto devices = static_cast<double>(run.devices);
  const auto nodes = static_cast<double>(run.nodes);
  const auto spare_nodes = static_cast<double>(run.spare_nodes);
  const double held = devices * (1 + spare_nodes / nodes);
  Expenses result;
  result.device_hours = held * outcome.wall_seconds / kSecondsPerHour;
  const Power& power = candidate.power;
  const double training = outcome.useful_seconds + outcome.lost_seconds;
  const double joules = devices * power.busy_watts * training +
                        power.waiting_watts() * (held * outcome.wall_seconds - devices * training) +
                        (nodes + spare_nodes) * power.node_watts * outcome.wall_seconds;
  result.energy_kwh = joules / kJoulesPerKwh * candidate.site.pue;
  result.cost =
      result.device_hours * candidate.price.per_device_hour + result.energy_kwh * candidate.electricity_per_kwh;
  result.carbon_kg = result.energy_kwh * candidate.grid.grams_per_kwh / 1000;
  return result;
}

Forecast forecast(const Candidate& candidate) {
  struct Spent : RunOutcome, Expenses {
    double goodput = 0;
  };
  const auto at = [&](double step_seconds) {
    TrainingRun run = candidate.run;
    run.step_seconds = step_seconds;
    const RunOutcome outcome = expected_run(run);
    return Spent{outcome, expenses(candidate, outcome), goodput(run, outcome)};
  };
  const Estimate& step = candidate.step_seconds;
  const Spent low = at(step.low), middle = at(step.value), high = at(step.high);
  // With longer steps there are fewer per interval, but the share that is kept is not always smaller.
  const auto estimate = [&](auto figure) {
    const double a = std::invoke(figure, low), value = std::invoke(figure, middle), b = std::invoke(figure, high);
    return Estimate{.low = std::min({a, value, b}), .value = value, .high = std::max({a, value, b})};
  };
  return {.outcome = middle,
          .wall_seconds = estimate(&Spent::wall_seconds),
          .ettr = estimate(&Spent::ettr),
          .goodput = estimate(&Spent::goodput),
          .device_hours = estimate(&Spent::device_hours),
          .cost = estimate(&Spent::cost),
          .energy_kwh = estimate(&Spent::energy_kwh),
          .carbon_kg = estimate(&Spent::carbon_kg)};
}

namespace {

// What a forecast hangs on. The figure is 0 if the candidate does not use the input.
struct ForecastInput {
  const char* name;
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

std::vector<TornadoBar> sensitivities(const Candidate& candidate, PlanOutput output, double swing) {
  std::vector<TornadoBar> result;
  Candidate known = candidate;
  for (const ForecastInput& input : kInputs)
    if (input.of(known) != 0)
      result.push_back(
          {input.name, output_at(candidate, input, 1 - swing, output), output_at(candidate, input, 1 + swing, output)});
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
