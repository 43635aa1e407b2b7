// What `orrery sweep` does: a document, its results in a database, and rows of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/answers/scenario_argument.h"
#include "sim/sweep/results.h"
#include "sim/sweep/run.h"

namespace orrery {

inline constexpr std::int64_t kMostSweepThreads = 4096;

struct SweepRequest {
  std::string database;
  std::string shard;         // "2/3": the second of three parts; empty: all
  std::int64_t threads = 0;  // 0: as many as the machine has; with helpers this process's share
  std::vector<std::string> calibrations;
  SweepHelpers* helpers = nullptr;  // null: none
};

// A bundled sweep's name, a path, "-" for standard input; or a document. Throws InputError.
SweepDocument sweep_argument(const ScenarioArgument& argument);
// What run_sweep takes, by this program; helpers are to be prepared. Throws InputError; nothing is written yet.
SweepRunOptions sweep_options(const SweepRequest& request);
// InputError where no point has a result.
void require_a_result(const SweepDocument& sweep, const SweepOutcome& outcome);

// Rows are of the sweep with this number in the file, or of all of them (0). `fields`: those of axes and of plans that
// were found, columns of `simulate --csv`, "error", "sweep", "number", "key"; empty: all but the last three. Throws
// InputError for others, with the nearest name.
std::vector<std::string> row_fields(const SweepResults& results, std::int64_t sweep,
                                    const std::vector<std::string>& fields);
// An object.
void append_row_json(const std::vector<SweepCell>& cells, std::string& text);
// An array of objects.
std::string rows_json(const SweepResults& results, std::int64_t sweep, const std::vector<std::string>& fields);
// {"database", "points", "computed", "there_before", "without_result", "first_error"}
nlohmann::ordered_json sweep_json(const SweepRequest& request, const SweepOutcome& outcome);

}  // namespace orrery
