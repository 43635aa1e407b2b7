// What `orrery sweep` does: a document, its results in a database, and rows of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "study/answers/scenario_argument.h"
#include "study/sweep/results.h"
#include "study/sweep/run.h"

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

// What rows of the sweep may have: fields of its axes and of the plans that it may find, figures and kPointColumns. For
// rows that are there SweepResults::names says it.
std::vector<std::string> names_of_rows(const SweepDocument& sweep);
// Throws InputError for fields that are none of `names`, with the nearest, and for those that come twice.
void check_fields(const std::vector<std::string>& fields, const std::vector<std::string>& names);
// For who names none: all but which sweep and which of its points a row is.
std::vector<std::string> usual_fields(const SweepResults& results, std::int64_t sweep);
// An object.
void append_row_json(const std::vector<SweepCell>& cells, std::string& text);
// An array of objects, of the sweep with this number in the file, or of all of them (0). `fields`: empty: the usual
// ones.
std::string rows_json(const SweepResults& results, std::int64_t sweep, const std::vector<std::string>& fields);
// {"database", "points", "computed", "there_before", "without_result", "first_error", "notes"}
nlohmann::ordered_json sweep_json(const SweepRequest& request, const SweepDocument& sweep, const SweepResults& results,
                                  const SweepOutcome& outcome);
// Notes on a sweep, a sentence each: what its figures leave out, and which of the file's results are known to be wrong.
std::vector<std::string> notes_on(const SweepDocument& sweep, const SweepResults& results);

}  // namespace orrery
