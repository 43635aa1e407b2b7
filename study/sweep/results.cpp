#include "study/sweep/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/report/format.h"

namespace orrery {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::int64_t kApplicationId = 0x4f527377;  // "ORsw"
constexpr std::int64_t kSchemaVersion = 1;

// Beside the figures. `scenario`: the point's without what it was predicted by.
constexpr const char* kTables = R"(
  CREATE TABLE sweeps (
    id INTEGER PRIMARY KEY,
    digest TEXT NOT NULL UNIQUE,
    document TEXT NOT NULL,
    fields TEXT NOT NULL,
    points INTEGER NOT NULL,
    version TEXT NOT NULL,
    calibrations TEXT NOT NULL);
  CREATE TABLE points (
    sweep INTEGER NOT NULL REFERENCES sweeps(id),
    number INTEGER NOT NULL,
    fields TEXT NOT NULL,
    key TEXT NOT NULL,
    PRIMARY KEY (sweep, number)) WITHOUT ROWID;
  CREATE TABLE results (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    scenario TEXT NOT NULL,
    error TEXT,
    plan TEXT)";

constexpr std::string_view kError = kPointColumns.front();
constexpr std::span kOthers = std::span(kPointColumns).subspan<1>();

const char* type_of(const ReportColumn& column) {
  static const Report nothing;
  constexpr std::array<const char*, 4> kTypes{"REAL", "INTEGER", "INTEGER", "TEXT"};
  return kTypes[column.value(nothing).index()];
}

void bind(Statement& statement, const nlohmann::json& value) {
  if (value.is_string()) {
    statement.bind(value.get_ref<const std::string&>());
  } else if (value.is_number_float()) {
    statement.bind(value.get<double>());
  } else {
    statement.bind(value.is_boolean() ? std::int64_t{value.get<bool>()} : value.get<std::int64_t>());
  }
}

std::string result_columns() {
  std::string names = "key, scenario, error, plan";
  for (const ReportColumn* column : sweep_columns()) names += ", " + column->name;
  return names;
}

std::string cell_of(const OrderedJson& value, bool as_json) {
  if (value.is_string() && !as_json) return csv_text(value.get<std::string>());
  const std::string json = value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return as_json ? json : csv_text(json);
}

std::string cell_of(const ReportColumn& column, const Statement& row, int at, bool as_json) {
  static const Report nothing;
  std::string text;
  ColumnValue value = column.value(nothing);
  if (std::holds_alternative<double>(value)) {
    value = row.number(at);
  } else if (std::holds_alternative<std::int64_t>(value)) {
    value = row.integer(at);
  } else if (std::holds_alternative<bool>(value)) {
    value = row.integer(at) != 0;
  } else {
    text = row.text(at);
    value = std::string_view(text);
  }
  std::string cell;
  if (as_json) {
    JsonWriter writer(cell);
    write_json(value, writer);
  } else {
    append_csv(value, cell);
  }
  return cell;
}

// In the first version, as "0.1.0" or "0.1.0 187faaf82940", a thread that evaluated several points gave points of
// stacks without an interval that of the last point that had one.
constexpr std::string_view kMixedIntervals = "0.1.0";
constexpr const char* kInterval = "expected_step_seconds_low";

}  // namespace

OrderedJson object_in(const std::string& text) {
  OrderedJson json = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : OrderedJson::object();
}

std::vector<std::string> doubts_about(const Database& database) {
  Statement column(database, fmt::format("SELECT 1 FROM pragma_table_info('results') WHERE name = '{}'", kInterval));
  if (!column.step()) return {};
  Statement versions(database, fmt::format("SELECT DISTINCT version FROM sweeps s WHERE EXISTS (SELECT 1 FROM points p "
                                           "JOIN results r ON r.key = p.key WHERE p.sweep = s.id AND r.{} IS NOT NULL) "
                                           "ORDER BY version",
                                           kInterval));
  std::vector<std::string> earlier;
  while (versions.step())
    if (const std::string version = versions.text(0); version.substr(0, version.find(' ')) == kMixedIntervals)
      earlier.push_back(one_line(version));
  if (earlier.empty()) return {};
  return {
      fmt::format("{}: results of orrery {}: where plan.framework has no published steps, expected_step_seconds_low "
                  "and _high may be those of another point; sweep again for the right ones",
                  database.path(), fmt::join(earlier, ", "))};
}

const std::vector<const ReportColumn*>& sweep_columns() {
  static const std::vector<const ReportColumn*> columns = [] {
    std::vector<const ReportColumn*> all;
    for (const ReportColumn& column : report_columns())
      if (!column.of_ops) all.push_back(&column);
    return all;
  }();
  return columns;
}

std::vector<nlohmann::json> sweep_values(const Report& report) {
  std::vector<nlohmann::json> values;
  values.reserve(sweep_columns().size());
  for (const ReportColumn* column : sweep_columns())
    std::visit([&](const auto& its) { values.emplace_back(its); }, column->value(report));
  return values;
}

const DatabaseKind& sweep_database() {
  static const DatabaseKind all = [] {
    std::string schema = kTables;
    for (const ReportColumn* column : sweep_columns())
      schema += fmt::format(",\n    {} {}", column->name, type_of(*column));
    return DatabaseKind{"a database of sweeps", "orrery sweep --db", kApplicationId,
                        kSchemaVersion,         schema + ");",       true};
  }();
  return all;
}

SweepResults::SweepResults(const std::string& path, Database::Mode mode) : database_(path, mode, sweep_database()) {
  std::string columns;
  Statement table(database_, "SELECT name FROM pragma_table_info('results') WHERE cid > 0 ORDER BY cid");
  while (table.step()) columns += (columns.empty() ? "" : ", ") + table.text(0);
  if (columns != result_columns())
    throw InputError({path, ""}, "figures that are not those of this version of orrery",
                     "a database of sweeps by this version: " + sweep_database().made_by);
  // A transaction is there after a kill; after a power cut the last ones may be gone, and the file is whole.
  if (mode == Database::Mode::write) database_.execute("PRAGMA synchronous = NORMAL", "write");
  database_.execute("PRAGMA cache_size = -65536", "read");  // KiB: keys come in no order
}

std::int64_t SweepResults::add(const SweepRecord& sweep) {
  Transaction transaction(database_);
  Statement(database_,
            "INSERT OR IGNORE INTO sweeps (digest, document, fields, points, version, calibrations) "
            "VALUES (?, ?, ?, ?, ?, ?)")
      .bind(sweep.digest)
      .bind(sweep.document)
      .bind(nlohmann::json(sweep.fields).dump())
      .bind(sweep.points)
      .bind(sweep.version)
      .bind(sweep.calibrations)
      .run();
  std::int64_t id = 0;
  {
    Statement found(database_, "SELECT id FROM sweeps WHERE digest = ?");
    found.bind(sweep.digest).step();
    id = found.integer(0);
  }
  transaction.commit();
  return id;
}

void SweepResults::add_new_keys(std::unordered_set<std::uint64_t>& keys) {
  Statement rows(database_, "SELECT id, key FROM results WHERE id > ? ORDER BY id");
  rows.bind(last_seen_);
  while (rows.step()) {
    last_seen_ = rows.integer(0);
    keys.insert(digest_in(rows.text(1)));
  }
}

std::unordered_map<std::int64_t, std::uint64_t> SweepResults::points_of(std::int64_t sweep) const {
  std::unordered_map<std::int64_t, std::uint64_t> points;
  Statement rows(database_, "SELECT number, key FROM points WHERE sweep = ?");
  rows.bind(sweep);
  while (rows.step()) points.emplace(rows.integer(0), digest_in(rows.text(1)));
  return points;
}

void SweepResults::add(std::int64_t sweep, std::span<const SweepRow> rows) {
  if (rows.empty()) return;
  Transaction transaction(database_);
  const std::size_t columns = sweep_columns().size();
  std::string places = "?, ?, ?, ?";
  for (std::size_t i = 0; i < columns; ++i) places += ", ?";
  Statement result(database_, fmt::format("INSERT OR IGNORE INTO results ({}) VALUES ({})", result_columns(), places));
  Statement point(database_, "INSERT OR REPLACE INTO points (sweep, number, fields, key) VALUES (?, ?, ?, ?)");
  for (const SweepRow& row : rows) {
    const std::string key = digest_text(row.key);
    if (!row.known) {
      result.bind(key).bind(digest_text(row.scenario));
      for (const std::string* text : {&row.error, &row.plan}) text->empty() ? result.bind_null() : result.bind(*text);
      for (std::size_t i = 0; i < columns; ++i)
        if (row.values.empty()) {
          result.bind_null();
        } else {
          bind(result, row.values[i]);
        }
      result.run();
    }
    point.bind(sweep).bind(row.number).bind(row.fields).bind(key).run();
  }
  transaction.commit();
}

std::int64_t SweepResults::merge(const std::string& path) {
  std::error_code none;
  if (std::filesystem::equivalent(path, database_.path(), none))
    throw InputError({path, ""}, "the file that receives the results", "another one");
  { const SweepResults other(path, Database::Mode::read); }  // what is wrong with it, in its name
  {
    Statement attach(database_, "ATTACH ? AS other");
    attach.bind(path).run();
  }
  const std::int64_t before = count(0);
  {
    Transaction transaction(database_);
    const std::string columns = result_columns();
    database_.execute(
        "INSERT OR IGNORE INTO sweeps (digest, document, fields, points, version, calibrations) SELECT "
        "digest, document, fields, points, version, calibrations FROM other.sweeps ORDER BY id",
        "write");
    database_.execute(
        fmt::format("INSERT OR IGNORE INTO results ({0}) SELECT {0} FROM other.results ORDER BY id", columns), "write");
    database_.execute(
        "INSERT OR IGNORE INTO points (sweep, number, fields, key) SELECT mine.id, p.number, p.fields, p.key FROM "
        "other.points p JOIN other.sweeps theirs ON theirs.id = p.sweep JOIN main.sweeps mine ON mine.digest = "
        "theirs.digest ORDER BY mine.id, p.number",
        "write");
    transaction.commit();
  }
  database_.execute("DETACH other", "use");
  return count(0) - before;
}

std::int64_t SweepResults::count(std::int64_t sweep, std::int64_t shard, std::int64_t shards) const {
  Statement rows(database_, "SELECT count(*) FROM points WHERE (?1 = 0 OR sweep = ?1) AND number % ?3 = ?2");
  rows.bind(sweep).bind(shard).bind(shards).step();
  return rows.integer(0);
}

std::vector<std::string> SweepResults::names(std::int64_t sweep) const {
  std::vector<std::string> names;
  const auto add_once = [&](const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  Statement sweeps(database_, "SELECT fields FROM sweeps WHERE ?1 = 0 OR id = ?1 ORDER BY id");
  sweeps.bind(sweep);
  while (sweeps.step()) {
    const nlohmann::json fields = nlohmann::json::parse(sweeps.text(0), nullptr, /*allow_exceptions=*/false);
    if (!fields.is_array()) continue;
    for (const nlohmann::json& field : fields)
      if (field.is_string()) add_once(field.get<std::string>());
  }
  Statement plan(database_,
                 "SELECT r.plan FROM points p JOIN results r ON r.key = p.key WHERE (?1 = 0 OR p.sweep = ?1) AND "
                 "r.plan IS NOT NULL LIMIT 1");
  plan.bind(sweep);
  if (plan.step()) {
    const OrderedJson found = object_in(plan.text(0));
    for (const auto& [field, value] : found.items()) add_once(field);
  }
  for (const ReportColumn* column : sweep_columns()) add_once(column->name);
  for (const std::string_view other : kPointColumns) add_once(std::string(other));
  return names;
}

void SweepResults::for_each(std::int64_t sweep, const std::vector<std::string>& names, bool as_json,
                            const std::function<void(const std::string& line)>& row) const {
  const std::vector<const ReportColumn*>& columns = sweep_columns();
  constexpr int kFirstFigure = 6;
  std::string figures;
  for (const ReportColumn* column : columns) figures += ", r." + column->name;
  Statement rows(database_, fmt::format("SELECT p.sweep, p.number, p.key, p.fields, r.plan, r.error{} FROM points p "
                                        "JOIN results r ON r.key = p.key WHERE ?1 = 0 OR p.sweep = ?1 "
                                        "ORDER BY p.sweep, p.number",
                                        figures));
  rows.bind(sweep);
  std::vector<int> places;  // in the row; negative: none of it
  for (const std::string& name : names) {
    const auto other = std::find(kOthers.begin(), kOthers.end(), name);
    const auto column =
        std::find_if(columns.begin(), columns.end(), [&](const ReportColumn* c) { return c->name == name; });
    if (other != kOthers.end()) {
      places.push_back(static_cast<int>(other - kOthers.begin()));
    } else if (name == kError) {
      places.push_back(kFirstFigure - 1);
    } else {
      places.push_back(column == columns.end() ? -1 : kFirstFigure + static_cast<int>(column - columns.begin()));
    }
  }
  const std::string none = as_json ? "null" : "";
  std::vector<std::string> cells;
  std::string line;
  while (rows.step()) {
    const OrderedJson fields = object_in(rows.text(3)), plan = object_in(rows.text(4));
    cells.clear();
    for (std::size_t i = 0; i < names.size(); ++i) {
      const int at = places[i];
      if (at > 1 && rows.is_null(at)) {
        cells.push_back(none);
      } else if (at >= kFirstFigure) {
        cells.push_back(cell_of(*columns[static_cast<std::size_t>(at - kFirstFigure)], rows, at, as_json));
      } else if (at > 1) {
        cells.push_back(cell_of(rows.text(at), as_json));
      } else if (at >= 0) {
        cells.push_back(cell_of(rows.integer(at), as_json));
      } else if (const auto field = fields.find(names[i]); field != fields.end()) {
        cells.push_back(cell_of(*field, as_json));
      } else if (const auto found = plan.find(names[i]); found != plan.end()) {
        cells.push_back(cell_of(*found, as_json));
      } else {
        cells.push_back(none);
      }
    }
    line.clear();
    if (as_json) {
      JsonWriter writer(line);
      writer.begin_object();
      for (std::size_t i = 0; i < names.size(); ++i) writer.json_field(names[i], cells[i]);
      writer.end_object();
    } else {
      line = fmt::format("{}", fmt::join(cells, ","));
    }
    row(line);
  }
}

}  // namespace orrery
