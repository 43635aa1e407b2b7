// A sweep's results, in an SQLite file (docs/sweep.md has its tables). Several processes may write one file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <variant>
#include <vector>

#include "sim/database/database.h"
#include "sim/report/columns.h"
#include "sim/report/report.h"

namespace orrery {

// What a sweep was run as: by another document, program or calibration it is another one.
struct SweepRecord {
  std::string digest;
  std::string document;             // JSON, with the scenario's in it
  std::vector<std::string> fields;  // of its axes
  std::int64_t points = 0;
  std::string version, calibrations;
};

// A column's value that outlives its report.
using SweepValue = std::variant<double, std::int64_t, bool, std::string>;

// One point: what was found, why there is nothing, or that it is in the file already.
struct SweepRow {
  std::int64_t number = 0;
  std::uint64_t key = 0;           // of scenario, engine, version and calibration
  std::uint64_t scenario = 0;      // of scenario and engine alone
  std::string fields;              // {"cluster.nodes": 8}
  bool known = false;              // the file has a result of that key
  std::string error;               // or empty
  std::string plan;                // of a search: the fields that it has found, as JSON
  std::vector<SweepValue> values;  // of sweep_columns(); empty: error
};

// report_columns() but those of ops, which take time to fill.
const std::vector<const ReportColumn*>& sweep_columns();
std::vector<SweepValue> sweep_values(const Report& report);

// Columns of exports beside fields and figures.
inline constexpr std::array<std::string_view, 4> kPointColumns{"error", "sweep", "number", "key"};

// A row of a table of results.
struct SweepCell {
  std::string name;
  std::string text;  // as CSV, empty where there is none
  std::string json;  // "null" where there is none
};

// The files that hold them.
const DatabaseKind& sweep_database();

// Says, a sentence each, which results in the file are known to be wrong because an earlier version of orrery made
// them.
std::vector<std::string> doubts_about(const Database& database);

class SweepResults {
 public:
  // As Database. Throws InputError, too, where another version of orrery has made the file with other columns.
  SweepResults(const std::string& path, Database::Mode mode);

  // The number of the sweep in the file, which it is added to.
  std::int64_t add(const SweepRecord& sweep);
  // Keys that came since the last call, from whatever process.
  void add_new_keys(std::unordered_set<std::uint64_t>& keys);
  // The key of each point of the sweep that there is.
  std::unordered_map<std::int64_t, std::uint64_t> points_of(std::int64_t sweep) const;
  std::vector<std::string> doubts() const { return doubts_about(database_); }
  // In one transaction. Of a key that is there the result stays.
  void add(std::int64_t sweep, std::span<const SweepRow> rows);
  // All that another file has and this one lacks, in one transaction. Returns how many points were added.
  std::int64_t merge(const std::string& path);

  // The names of the columns that an export may have: fields of axes, those that searches found, figures and the rest.
  std::vector<std::string> names(std::int64_t sweep) const;
  // Calls row() for each point of a sweep in order, or of all sweeps (0), with the cells of these names
  // (null where it has none).
  void for_each(std::int64_t sweep, const std::vector<std::string>& names,
                const std::function<void(const std::vector<SweepCell>&)>& row) const;
  // Of the points that are there; 0: of all sweeps. Of each `shards` in a row the one at the place `shard`.
  std::int64_t count(std::int64_t sweep, std::int64_t shard = 0, std::int64_t shards = 1) const;

 private:
  Database database_;
  std::int64_t last_seen_ = 0;
};

}  // namespace orrery
