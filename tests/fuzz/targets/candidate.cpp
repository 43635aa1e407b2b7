#include "sim/planning/candidate.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/planning/training_run.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::candidate(std::string_view input) {
  const Candidate read = read_candidate(parse_json(input, "plan.json"), {"plan.json", ""});
  const Forecast result = forecast(read);
  for (const Estimate& estimate : {result.wall_seconds, result.ettr, result.goodput, result.device_hours, result.cost,
                                   result.energy_kwh, result.carbon_kg})
    require(0 <= estimate.low && estimate.low <= estimate.value && estimate.value <= estimate.high &&
                std::isfinite(estimate.high),
            "an estimate is an interval");
  require(result.ettr.high <= 1, "no more is useful than there is");
  require(!sensitivities(read, PlanOutput::wall_seconds).empty(), "time hangs on the step");
  // One history, where it is short.
  if (result.outcome.failures + result.outcome.useful_seconds / result.outcome.interval_seconds > 1e5) return;
  require(std::isfinite(simulate_runs(read.run, 1).front().wall_seconds), "a run ends");
}
