#include "realrun/bench/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "realrun/bench/statistics.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/base/statistics.h"
#include "sim/database/database.h"

namespace orrery::bench {
namespace {

constexpr int kApplicationId = 0x4f527279;  // "ORry": SQLite's field for the application that owns the file
constexpr int kSchemaVersion = 1;

// context: all facts of the run as a JSON object. A series is one benchmark in one run.
constexpr const char* kSchema = R"(
  CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    date TEXT NOT NULL,
    utc TEXT,
    git_commit TEXT NOT NULL,
    version TEXT NOT NULL,
    device TEXT NOT NULL,
    context TEXT NOT NULL);
  CREATE TABLE series (
    id INTEGER PRIMARY KEY,
    run INTEGER NOT NULL REFERENCES runs(id),
    name TEXT NOT NULL,
    by_real_time INTEGER NOT NULL,
    bytes REAL NOT NULL,
    flops REAL NOT NULL,
    UNIQUE (run, name));
  CREATE INDEX series_by_name ON series(name);
  CREATE TABLE repetitions (
    series INTEGER NOT NULL REFERENCES series(id),
    number INTEGER NOT NULL,
    iterations INTEGER NOT NULL,
    real_seconds REAL NOT NULL,
    cpu_seconds REAL NOT NULL,
    PRIMARY KEY (series, number)) WITHOUT ROWID;)";

// An SQLite file may hold any text as context.
MachineFacts machine_of(const std::string& context) {
  MachineFacts facts;
  const nlohmann::json json = nlohmann::json::parse(context, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return facts;
  for (std::size_t i = 0; i < facts.size(); ++i)
    if (const auto at = json.find(std::string(kMachineFacts[i])); at != json.end() && at->is_string()) facts[i] = *at;
  return facts;
}

void summarize(HistoryPoint& point, const std::vector<double>& seconds) {
  constexpr double kLow = 0.25, kHigh = 0.75;
  point.repetitions = seconds.size();
  point.low_seconds = quantile(seconds, kLow);
  point.high_seconds = quantile(seconds, kHigh);
  point.median_seconds = median(seconds);
  point.fastest_seconds = *std::min_element(seconds.begin(), seconds.end());
}

// Returns the name without Google Benchmark's suffix for the kind of time.
std::string_view kernel_name(std::string_view benchmark) {
  for (const std::string_view suffix : {"/real_time", "/manual_time"})
    if (benchmark.ends_with(suffix)) benchmark.remove_suffix(suffix.size());
  return benchmark;
}

// The repetitions of runs, of which the newest on each device has age 1. What follows in a query says which of them, and
// in which order: a series' rows follow each other.
constexpr const char* kRepetitions = R"(
  SELECT series.id, CASE WHEN series.by_real_time THEN real_seconds ELSE cpu_seconds END,
    runs.date, runs.git_commit, runs.version, runs.device, runs.context, series.name
  FROM (SELECT *, row_number() OVER (PARTITION BY device ORDER BY coalesce(utc, date) DESC, id DESC) AS age FROM runs)
    AS runs JOIN series ON series.run = runs.id JOIN repetitions ON repetitions.series = series.id )";

// Calls take(point, benchmark) for each series of such rows.
template <class Take>
void for_each_series(Statement& rows, Take take) {
  for (bool more = rows.step(); more;) {
    const std::int64_t series = rows.integer(0);
    const std::string benchmark = rows.text(7);
    HistoryPoint point{.date = rows.text(2),
                       .commit = rows.text(3),
                       .version = rows.text(4),
                       .device = rows.text(5),
                       .machine = machine_of(rows.text(6))};
    std::vector<double> seconds;
    for (; more && rows.integer(0) == series; more = rows.step()) seconds.push_back(rows.number(1));
    summarize(point, seconds);
    take(std::move(point), benchmark);
  }
}

}  // namespace

History::History(const std::string& path, Mode mode)
    : database_(std::make_unique<Database>(
          path, mode == Mode::read ? Database::Mode::read : Database::Mode::write,
          DatabaseKind{"a history", "orrery bench --history", kApplicationId, kSchemaVersion, kSchema})) {}

History::~History() = default;

bool History::add(const BenchmarkRun& run) {
  Transaction transaction(*database_);
  if (Statement(*database_, "SELECT 1 FROM runs WHERE digest = ?").bind(run.digest).step()) return false;
  nlohmann::ordered_json context = nlohmann::ordered_json::object();
  for (const auto& [key, value] : run.context) context[key] = value;
  // SQLite converts a date with an offset to UTC, which orders runs from different places.
  Statement(*database_,
            "INSERT INTO runs (digest, date, utc, git_commit, version, device, context) VALUES (?1, ?2, datetime(?2), "
            "?3, ?4, ?5, ?6)")
      .bind(run.digest)
      .bind(run.date)
      .bind(run.fact("git_commit"))
      .bind(run.fact("orrery_version"))
      .bind(run.fact("device") + (run.has_cold_caches() ? ", cold caches" : ""))  // another series
      .bind(json_text(context))
      .run();
  const std::int64_t id = database_->last_row();
  Statement series_row(*database_, "INSERT INTO series (run, name, by_real_time, bytes, flops) VALUES (?, ?, ?, ?, ?)");
  Statement repetition_row(*database_, "INSERT INTO repetitions VALUES (?, ?, ?, ?, ?)");
  for (const Series& series : run.series) {
    if (series.repetitions.empty()) continue;
    series_row.bind(id)
        .bind(series.name)
        .bind(std::int64_t{series.by_real_time})
        .bind(series.bytes)
        .bind(series.flops)
        .run();
    const std::int64_t series_id = database_->last_row();
    std::int64_t number = 0;
    for (const Repetition& r : series.repetitions)
      repetition_row.bind(series_id).bind(number++).bind(r.iterations).bind(r.real_seconds).bind(r.cpu_seconds).run();
  }
  transaction.commit();
  return true;
}

std::int64_t History::runs() const {
  return database_->number("SELECT count(*) FROM runs");
}

std::vector<std::string> History::benchmarks() const {
  Statement statement(*database_, "SELECT DISTINCT name FROM series ORDER BY name");
  std::vector<std::string> names;
  while (statement.step()) names.push_back(statement.text(0));
  return names;
}

std::vector<HistoryPoint> History::points(const std::string& name) const {
  const std::vector<std::string> known = benchmarks();
  std::string found;
  for (const std::string& candidate : known)
    if (candidate == name || (found.empty() && kernel_name(candidate) == name)) found = candidate;
  if (found.empty())
    throw InputError({database_->path(), ""}, fmt::format("no benchmark \"{}\"", name),
                     known.empty() ? "one of its benchmarks (it has none yet)" : "the name of one of its benchmarks",
                     nearest_name(name, known));
  Statement statement(*database_, std::string(kRepetitions) +
                                      "WHERE series.name = ? ORDER BY coalesce(runs.utc, runs.date), runs.id, number");
  std::vector<HistoryPoint> points;
  for_each_series(statement.bind(found),
                  [&](HistoryPoint point, const std::string&) { points.push_back(std::move(point)); });
  std::map<std::string, double> last;  // median by device
  for (HistoryPoint& point : points) {
    double& before = last[point.device];
    if (before > 0) point.ratio = point.median_seconds / before;
    before = point.median_seconds;
  }
  return points;
}

std::vector<HistorySeries> History::last_runs(std::size_t runs) const {
  Statement statement(*database_, std::string(kRepetitions) +
                                      "WHERE runs.age <= ? ORDER BY runs.device, series.name, "
                                      "coalesce(runs.utc, runs.date), runs.id, series.id, number");
  std::vector<HistorySeries> result;
  const auto take = [&](HistoryPoint point, const std::string& name) {
    if (result.empty() || result.back().device != point.device || result.back().name != name)
      result.push_back({name, point.device, {}});
    result.back().points.push_back(std::move(point));
  };
  for_each_series(statement.bind(static_cast<std::int64_t>(runs)), take);
  return result;
}

}  // namespace orrery::bench
