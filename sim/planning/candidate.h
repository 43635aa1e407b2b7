// One way to do a training: devices, what they cost, what they draw. Its time, cost, energy and carbon, with how far
// the prediction of a step may be off.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sim/base/error.h"
#include "sim/planning/presets.h"
#include "sim/planning/training_run.h"

namespace orrery {

class JsonReader;

// An interval, low <= value <= high, that a figure lies in.
struct Estimate {
  double low = 0, value = 0, high = 0;
};

struct Candidate {
  std::string name;
  Estimate step_seconds;
  TrainingRun run;             // its step_seconds is step_seconds.value
  double tokens_per_step = 0;  // 0: not said
  Price price;
  double electricity_per_kwh = 0;  // in the price's currency, where the price is without it
  Power power;
  SiteOverhead site;
  Grid grid;
  // As they were read; `run` has what follows from them.
  FailureRate failures;
  CheckpointStorage storage;
  RestartOverhead restarts;
};

// The object
//   {"name", "step_seconds", "step_seconds_low", "step_seconds_high",    seconds; low and high: step_seconds
//    "steps" or "tokens" with "tokens_per_step",                         the last step may be part of one
//    "devices", "devices_per_node" (8), "spare_nodes" (0),
//    "checkpoint_bytes", "checkpoint_interval_seconds" (Daly's), "repair_seconds" (0),
//    "failures", "storage", "restarts", "price", "power", "site", "grid",    presets.h: a preset's name or an object
//    "electricity_per_kwh" (0)}                                          in the price's currency
// A failure rate is for each node of 8 devices: nodes of n devices fail n/8 times as often. InputError on what is
// missing, unknown or contradicts itself: a price or power of another device than the other is of, too.
Candidate read_candidate(const nlohmann::json& json, const InputError::Where& where);
// Of these keys those from "checkpoint_bytes" on, for one whose step, length and size come from elsewhere: "name" and
// `run`'s steps and sizes are left as they are, and "checkpoint_bytes" may lack (has()). Does not finish() the reader.
void read_operations(JsonReader& reader, std::int64_t devices_per_node, Candidate& candidate);

// What one outcome of its run comes to. Devices are held, and paid for, from begin to end, spares with them. They draw
// busy_watts in steps, kept or lost, else waiting_watts; spares waiting_watts. Power at the meter is `site` times that.
struct Expenses {
  double device_hours = 0;
  double cost = 0;  // in price.currency
  double energy_kwh = 0;
  double carbon_kg = 0;  // CO2-equivalent of the electricity; that of making the devices is not in it
};
Expenses expenses(const Candidate& candidate, const RunOutcome& outcome);

// expected_run (training_run.h) and its expenses, at the three step times. ettr and goodput: low <= high, too.
struct Forecast {
  RunOutcome outcome;  // at step_seconds.value
  Estimate wall_seconds, ettr, goodput, device_hours, cost, energy_kwh, carbon_kg;
};
Forecast forecast(const Candidate& candidate);

}  // namespace orrery
