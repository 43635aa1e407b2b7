// The results of sweeps in an SQLite file (docs/sweep.md describes its tables). Several processes may write to one
// file.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "sim/database/database.h"
#include "sim/report/columns.h"
#include "sim/report/report.h"

namespace orrery {

// The identity of a sweep: another document, program or calibration makes it a different sweep.
struct SweepRecord {
  std::string digest;
  std::string document;             // JSON, including the scenario
  std::vector<std::string> fields;  // fields of its axes
  std::int64_t points = 0;
  std::string version, calibrations;
};

// One point: its result, its error, or that the file already has its result.
struct SweepRow {
  std::int64_t number = 0;
  std::uint64_t key = 0;           // digest of scenario, engine, version and calibration
  std::uint64_t scenario = 0;      // digest of scenario and engine only
  std::string fields;              // {"cluster.nodes": 8}
  bool known = false;              // the file already has a result for this key
  std::string error;               // empty: no error
  std::string plan;                // of a search: the plan's fields that it found, as JSON
  // Numbers, flags and texts, by sweep_columns(); empty: error.
  std::vector<nlohmann::json> values;
};

// report_columns() without those of ops, which take time to fill.
const std::vector<const ReportColumn*>& sweep_columns();
std::vector<nlohmann::json> sweep_values(const Report& report);

// Columns of exports besides fields and figures.
inline constexpr std::array<std::string_view, 4> kPointColumns{"error", "sweep", "number", "key"};

// The object that a text of a database is; an empty one if it is none: an SQLite file may hold any text.
nlohmann::ordered_json object_in(const std::string& text);

// The kind of database that holds sweeps.
const DatabaseKind& sweep_database();

// Sentences that say which results in the file are known to be wrong because an earlier version of Orrery made them.
std::vector<std::string> doubts_about(const Database& database);

class SweepResults {
 public:
  // Throws InputError like Database, and if another version of Orrery made the file with other columns.
  SweepResults(const std::string& path, Database::Mode mode);

  // Returns the number of the sweep in the file, and adds the sweep if it is new.
  std::int64_t add(const SweepRecord& sweep);
  // Adds the keys that any process has written since the last call.
  void add_new_keys(std::unordered_set<std::uint64_t>& keys);
  // Number -> key, for all points of the sweep that are in the file.
  std::unordered_map<std::int64_t, std::uint64_t> points_of(std::int64_t sweep) const;
  std::vector<std::string> doubts() const { return doubts_about(database_); }
  // Adds rows in one transaction. The file keeps an existing result of the same key.
  void add(std::int64_t sweep, std::span<const SweepRow> rows);
  // Adds everything that another file has and this one lacks, in one transaction. Returns the number of points added.
  std::int64_t merge(const std::string& path);

  // The names of the columns that an export may have: fields of axes, fields that searches found, figures and others.
  std::vector<std::string> names(std::int64_t sweep) const;
  // Calls row() for each point of a sweep, or of all sweeps (0), in order, with its values of these names as a JSON
  // object (null: none) or as CSV (empty: none).
  void for_each(std::int64_t sweep, const std::vector<std::string>& names, bool as_json,
                const std::function<void(const std::string& line)>& row) const;
  // Returns the number of points in the file that belong to a sweep; sweep 0: to any sweep. With several shards it
  // counts only the points whose number, modulo `shards`, is `shard`.
  std::int64_t count(std::int64_t sweep, std::int64_t shard = 0, std::int64_t shards = 1) const;

 private:
  Database database_;
  std::int64_t last_seen_ = 0;
};

}  // namespace orrery
