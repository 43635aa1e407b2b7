// Many scenarios in one process: a JSON line in, a JSON line out.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/report/report.h"
#include "sim/simulation/simulation.h"

namespace orrery {

// The report with the version; `ops` keeps the list of ops.
nlohmann::ordered_json result_json(const Report& report, bool ops);
// {"jobs": [{"name": ..., "slowdown": ..., "alone_seconds": ..., "together": report}], "version": ...}
nlohmann::ordered_json jobs_json(const std::vector<JobResult>& jobs, bool ops);

// Each line of `input` ("-": standard input) is a scenario, or with the discrete-event engine jobs; `output` gets its
// result, or {"error": {...}}, on the line of the same number. Relative paths in a scenario start from the folder of
// `input`.
void run_batch(const std::string& input, const std::vector<std::string>& sets, const std::string& output,
               SimulationOptions options, bool ops, UserCalibration user);

}  // namespace orrery
