// The work of `orrery sweep`: it reads a document, writes results into a database, and exports rows of them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "study/answers/arguments.h"
#include "study/sweep/results.h"
#include "study/sweep/run.h"

namespace orrery {

inline constexpr std::int64_t kMostSweepThreads = 4096;

struct SweepRequest {
  std::string database;
  std::string shard;         // "2/3": the second of three parts; empty: all
  std::int64_t threads = 0;  // 0: as many as the machine has; with helpers: this process's share
  std::vector<std::string> calibrations;
  SweepHelpers* helpers = nullptr;  // null: none
};

// Reads a bundled sweep's name, a path, "-" for standard input, or a document. Throws InputError.
SweepDocument sweep_argument(const ScenarioArgument& argument);
// The options of run_sweep() for this program. The helpers are still to be prepared. Throws InputError; writes nothing.
SweepRunOptions sweep_options(const SweepRequest& request);
// Throws InputError if no point has a result.
void require_a_result(const SweepDocument& sweep, const SweepOutcome& outcome);

// The columns that rows of the sweep may have: fields of its axes and of plans that it may find, figures, and
// kPointColumns. For existing rows use SweepResults::names().
std::vector<std::string> names_of_rows(const SweepDocument& sweep);
// Throws InputError for fields that are not in `names`, with the nearest name, and for repeated fields. `expected`:
// what they are.
inline constexpr const char* kFieldsOfRows =
    "fields of the sweep's axes, of the plans it found, and columns of `simulate --csv`";
void check_fields(const std::vector<std::string>& fields, const std::vector<std::string>& names,
                  const char* expected = kFieldsOfRows);
// The default columns: all except the ones that identify the sweep and the point's number in it.
std::vector<std::string> usual_fields(const SweepResults& results, std::int64_t sweep);
// An array of objects for the sweep with this number in the file, or for all sweeps (0). `fields`: empty: the usual
// ones.
std::string rows_json(const SweepResults& results, std::int64_t sweep, const std::vector<std::string>& fields);
// {"database", "points", "computed", "there_before", "without_result", "first_error", "notes"}
nlohmann::ordered_json sweep_json(const SweepRequest& request, const SweepDocument& sweep, const SweepResults& results,
                                  const SweepOutcome& outcome);
// Notes on a sweep, one sentence each: what its figures leave out, and which results of the file are known to be wrong.
std::vector<std::string> notes_on(const SweepDocument& sweep, const SweepResults& results);

}  // namespace orrery
