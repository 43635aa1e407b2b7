// A candidate: one way to run a training. It has devices with their cost and power. A forecast gives its time, cost,
// energy and carbon, with intervals for the error of the predicted step time. Sensitivities say what moves them.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/planning/presets.h"
#include "sim/planning/training_run.h"

namespace orrery {

class JsonReader;

// A value with an interval: low <= value <= high.
struct Estimate {
  double low = 0, value = 0, high = 0;
};

struct Candidate {
  std::string name;
  Estimate step_seconds;
  TrainingRun run;             // its step_seconds is step_seconds.value
  double tokens_per_step = 0;  // 0: unknown
  Price price;
  double electricity_per_kwh = 0;  // in the price's currency; 0 if the price includes electricity
  Power power;
  SiteOverhead site;
  Grid grid;
  // The inputs as they were read; `run` has the values derived from them.
  FailureRate failures;
  CheckpointStorage storage;
  RestartOverhead restarts;
};

// Reads the object
//   {"name", "step_seconds", "step_seconds_low", "step_seconds_high",    seconds; low and high default to step_seconds
//    "steps" or "tokens" with "tokens_per_step",                         the last step may be partial
//    "devices", "devices_per_node" (8), "spare_nodes" (0),
//    "checkpoint_bytes", "checkpoint_interval_seconds" (Daly's), "repair_seconds" (0),
//    "failures", "storage", "restarts", "price", "power", "site", "grid",    presets.h: a preset's name or an object
//    "electricity_per_kwh" (0)}                                          in the price's currency
// A failure rate is per node of 8 devices; nodes of n devices fail n/8 times as often. Throws InputError for missing,
// unknown or contradictory values; among these are a price and a power of different devices.
Candidate read_candidate(const nlohmann::json& json, const InputError::Where& where);
// Reads the keys from "checkpoint_bytes" on, for a candidate whose step time, length and size come from elsewhere.
// "name" and the steps and sizes of `run` stay unchanged; "checkpoint_bytes" may be absent (has()). Does not finish()
// the reader.
void read_operations(JsonReader& reader, std::int64_t devices_per_node, Candidate& candidate);

// The costs of one outcome of a run. Devices, spares included, are held and paid for from begin to end. They draw
// busy_watts during steps, kept or lost, and waiting_watts otherwise; spares draw waiting_watts. Power at the meter is
// `site` times that.
struct Expenses {
  double device_hours = 0;
  double cost = 0;  // in price.currency
  double energy_kwh = 0;
  double carbon_kg = 0;  // CO2-equivalent of the electricity; does not include making the devices
};
Expenses expenses(const Candidate& candidate, const RunOutcome& outcome);

// expected_run() (training_run.h) and its expenses, at the three step times. low <= high for ettr and goodput, too.
struct Forecast {
  RunOutcome outcome;  // at step_seconds.value
  Estimate wall_seconds, ettr, goodput, device_hours, cost, energy_kwh, carbon_kg;
};
Forecast forecast(const Candidate& candidate);

// The sensitivity of a forecast: how far each input moves an output, and the price at which two candidates cost the
// same.

enum class PlanOutput : std::uint8_t { wall_seconds, ettr, goodput, device_hours, cost, energy_kwh, carbon_kg };
inline constexpr std::array<std::string_view, 7> kPlanOutputNames{
    "wall_seconds", "ettr", "goodput", "device_hours", "cost", "energy_kwh", "carbon_kg"};
double value_of(const Forecast& forecast, PlanOutput output);  // Estimate::value

struct TornadoBar {
  std::string input;  // "step_seconds", "price.per_device_hour", "failures.failures_per_node_day", "memory size", ...
  double at_less = 0, at_more = 0;  // the output with the input times 1 - swing, 1 + swing
  bool less_fits = true;            // with less of the input, the plan still fits the memory
  double width() const { return at_more > at_less ? at_more - at_less : at_less - at_more; }
};

// Returns how far each input moves the output, in a fixed order of the inputs. Inputs that are 0 are left out. A
// checkpoint interval that is not given is chosen anew for each value. REQUIRES: 0 < swing < 1. Throws InputError like
// expected_run() if an input at its worse end makes the run practically endless.
std::vector<TornadoBar> sensitivities(const Candidate& candidate, PlanOutput output, double swing = 0.2);

// The price of a's device-hour at which `a` costs as much as `b`, and its ratio to b's price: `a` pays below it. low:
// a's slowest and b's fastest steps; high: the reverse. Not above 0 if a's electricity alone costs more. Throws
// InputError if the currencies differ, or if b's price is 0.
struct BreakEven {
  Estimate price, ratio;
};
BreakEven break_even(const Candidate& a, const Candidate& b);

}  // namespace orrery
