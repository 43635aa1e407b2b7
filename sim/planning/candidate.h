// A candidate: one way to run a training. It has devices with their cost and power. A forecast gives its time, cost,
// energy and carbon, with intervals for the error of the predicted step time.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

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

}  // namespace orrery
