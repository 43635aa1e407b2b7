#include "realrun/bench/history.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "realrun/bench/statistics.h"
#include "realrun/bench/text.h"
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

// Reads rows of a series' id, seconds and more, ordered by series. `begin` is called at the first row of each, and
// returns the point that the series' repetitions are summarized in; null: none.
template <class Begin>
void read_points(Statement& rows, Begin begin) {
  HistoryPoint* point = nullptr;
  std::vector<double> seconds;
  const auto finish = [&] {
    if (point != nullptr) summarize(*point, seconds);
    seconds.clear();
  };
  std::int64_t last = -1;
  while (rows.step()) {
    if (rows.integer(0) != last) {
      finish();
      last = rows.integer(0);
      point = begin();
    }
    seconds.push_back(rows.number(1));
  }
  finish();
}

std::string fact_or_nothing(const BenchmarkRun& run, const char* key) {
  const std::string* fact = run.fact(key);
  return fact == nullptr ? std::string() : *fact;
}

}  // namespace

History::History(const std::string& path, Mode mode)
    : database_(std::make_unique<Database>(
          path, mode == Mode::read ? Database::Mode::read : Database::Mode::write,
          DatabaseKind{"a history", "orrery bench --history", kApplicationId, kSchemaVersion, kSchema})) {}

History::~History() = default;

bool History::add(const BenchmarkRun& run) {
  database_->execute("BEGIN IMMEDIATE", "write");
  try {
    {
      Statement known(*database_, "SELECT 1 FROM runs WHERE digest = ?");
      if (known.bind(run.digest).step()) {
        database_->roll_back();
        return false;
      }
    }
    nlohmann::ordered_json context = nlohmann::ordered_json::object();
    for (const auto& [key, value] : run.context) context[key] = value;
    // SQLite converts a date with an offset to UTC, which orders runs from different places.
    Statement(
        *database_,
        "INSERT INTO runs (digest, date, utc, git_commit, version, device, context) VALUES (?1, ?2, datetime(?2), "
        "?3, ?4, ?5, ?6)")
        .bind(run.digest)
        .bind(run.date)
        .bind(fact_or_nothing(run, "git_commit"))
        .bind(fact_or_nothing(run, "orrery_version"))
        .bind(fact_or_nothing(run, "device") + (run.has_cold_caches() ? ", cold caches" : ""))  // another series
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
  } catch (...) {
    database_->roll_back();
    throw;
  }
  database_->execute("COMMIT", "write");
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
  Statement statement(
      *database_,
      "SELECT series.id, CASE WHEN series.by_real_time THEN real_seconds ELSE cpu_seconds END, "
      "runs.date, runs.git_commit, runs.version, runs.device "
      "FROM series JOIN runs ON runs.id = series.run JOIN repetitions ON repetitions.series = series.id "
      "WHERE series.name = ? ORDER BY coalesce(runs.utc, runs.date), runs.id, number");
  statement.bind(found);
  std::vector<HistoryPoint> points;
  read_points(statement, [&] {
    return &points.emplace_back(HistoryPoint{.date = statement.text(2),
                                             .commit = statement.text(3),
                                             .version = statement.text(4),
                                             .device = statement.text(5),
                                             .machine = {}});
  });
  std::map<std::string, double> last;  // median by device
  for (HistoryPoint& point : points) {
    double& before = last[point.device];
    if (before > 0) point.ratio = point.median_seconds / before;
    before = point.median_seconds;
  }
  return points;
}

std::vector<HistorySeries> History::last_runs(std::size_t runs) const {
  std::map<std::int64_t, HistoryPoint> wanted;  // by run, without its times
  {
    Statement statement(*database_,
                        "SELECT id, date, git_commit, version, device, context FROM runs "
                        "ORDER BY coalesce(utc, date) DESC, id DESC");
    std::map<std::string, std::size_t> taken;  // by device
    while (statement.step()) {
      HistoryPoint point{.date = statement.text(1),
                         .commit = statement.text(2),
                         .version = statement.text(3),
                         .device = statement.text(4),
                         .machine = machine_of(statement.text(5))};
      if (++taken[point.device] <= runs) wanted.emplace(statement.integer(0), std::move(point));
    }
  }
  Statement statement(
      *database_,
      "SELECT series.id, CASE WHEN series.by_real_time THEN real_seconds ELSE cpu_seconds END, "
      "runs.id, runs.device, series.name "
      "FROM series JOIN runs ON runs.id = series.run JOIN repetitions ON repetitions.series = series.id "
      "ORDER BY runs.device, series.name, coalesce(runs.utc, runs.date), runs.id, series.id, number");
  std::vector<HistorySeries> result;
  read_points(statement, [&]() -> HistoryPoint* {
    const auto run = wanted.find(statement.integer(2));
    if (run == wanted.end()) return nullptr;
    const std::string device = statement.text(3), name = statement.text(4);
    if (result.empty() || result.back().device != device || result.back().name != name)
      result.push_back({name, device, {}});
    return &result.back().points.emplace_back(run->second);
  });
  return result;
}

}  // namespace orrery::bench
