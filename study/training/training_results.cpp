#include "study/training/training_results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "sim/base/digest.h"

namespace orrery {
namespace {

constexpr std::int64_t kApplicationId = 0x4f527472;  // "ORtr"
constexpr std::int64_t kSchemaVersion = 1;

struct OutcomeColumn {
  const char* name;
  double StepOutcome::*value;
};
constexpr std::array kOutcomeColumns{
    OutcomeColumn{"step_seconds", &StepOutcome::seconds},
    OutcomeColumn{"tokens_per_second_per_device", &StepOutcome::tokens_per_second_per_device},
    OutcomeColumn{"mfu", &StepOutcome::mfu},
    OutcomeColumn{"exposed_communication_seconds", &StepOutcome::exposed_communication_seconds},
    OutcomeColumn{"idle_link_seconds", &StepOutcome::idle_link_seconds},
    OutcomeColumn{"memory_peak_bytes", &StepOutcome::memory_peak_bytes},
    OutcomeColumn{"memory_capacity_bytes", &StepOutcome::memory_capacity_bytes}};

// The columns of outcomes and of a training's steps.
std::vector<std::string_view> outcome_names() {
  std::vector<std::string_view> names{"key"};
  for (const OutcomeColumn& column : kOutcomeColumns) names.emplace_back(column.name);
  for (const FigureKind* kind : figure_columns()) names.emplace_back(kind->column);
  names.emplace_back("memory_fits");
  return names;
}
std::vector<std::string_view> step_names() {
  std::vector<std::string_view> names(std::begin(kTrainingColumns), std::end(kTrainingColumns));
  for (const FigureKind* kind : figure_columns()) names.emplace_back(kind->column);
  return names;
}

const DatabaseKind& training_database() {
  static const DatabaseKind kind = [] {
    std::string outcomes, steps;
    for (const std::string_view name : outcome_names())
      if (name != "key" && name != "memory_fits") outcomes += fmt::format("    {} REAL NOT NULL,\n", name);
    for (const std::string_view name : step_names())
      if (name != "step") steps += fmt::format("    {} REAL NOT NULL,\n", name);
    return DatabaseKind{"a database of trainings",
                        "orrery simulate --steps --db",
                        kApplicationId,
                        kSchemaVersion,
                        "CREATE TABLE outcomes (\n    key TEXT PRIMARY KEY,\n" + outcomes +
                            "    memory_fits INTEGER NOT NULL) WITHOUT ROWID;\n"
                            "CREATE TABLE trainings (\n"
                            "    id INTEGER PRIMARY KEY,\n"
                            "    digest TEXT NOT NULL,\n"
                            "    name TEXT NOT NULL,\n"
                            "    scenario TEXT NOT NULL,\n"
                            "    first_step INTEGER NOT NULL,\n"
                            "    steps INTEGER NOT NULL,\n"
                            "    seconds REAL NOT NULL,\n"
                            "    version TEXT NOT NULL,\n"
                            "    calibrations TEXT NOT NULL,\n"
                            "    UNIQUE (digest, steps));\n"
                            "CREATE TABLE steps (\n"
                            "    training INTEGER NOT NULL REFERENCES trainings(id),\n"
                            "    step INTEGER NOT NULL,\n" +
                            steps +
                            "    figures TEXT NOT NULL,\n"
                            "    PRIMARY KEY (training, step)) WITHOUT ROWID;",
                        false};
  }();
  return kind;
}

// "INTO table (a, b) VALUES (?, ?)"
std::string into(std::string_view table, std::span<const std::string_view> names) {
  std::string places = "?";
  for (std::size_t i = 1; i < names.size(); ++i) places += ", ?";
  return fmt::format("INTO {} ({}) VALUES ({})", table, fmt::join(names, ", "), places);
}

}  // namespace

TrainingResults::TrainingResults(const std::string& path)
    : database_(path, Database::Mode::write, training_database()) {}

KnownOutcomes TrainingResults::outcomes() const {
  KnownOutcomes known;
  Statement rows(database_, fmt::format("SELECT {} FROM outcomes", fmt::join(outcome_names(), ", ")));
  while (rows.step()) {
    StepOutcome& outcome = known[digest_in(rows.text(0))];
    int at = 0;
    for (const OutcomeColumn& column : kOutcomeColumns) outcome.*column.value = rows.number(++at);
    for (std::size_t i = 0; i < figure_columns().size(); ++i) outcome.figures.push_back(rows.number(++at));
    outcome.memory_fits = rows.integer(++at) != 0;
  }
  return known;
}

void TrainingResults::flush() {
  if (new_.empty()) return;
  Transaction transaction(database_);
  Statement insert(database_, "INSERT OR IGNORE " + into("outcomes", outcome_names()));
  for (const auto& [key, outcome] : new_) {
    insert.bind(digest_text(key));
    for (const OutcomeColumn& column : kOutcomeColumns) insert.bind(outcome.*column.value);
    for (const double figure : outcome.figures) insert.bind(figure);
    insert.bind(std::int64_t{outcome.memory_fits}).run();
  }
  transaction.commit();
  new_.clear();
}

void TrainingResults::add(const TrainingRecord& record, const Training& training) {
  flush();
  Transaction transaction(database_);
  const std::string digest = digest_text(record.digest);
  for (const char* sql :
       {"DELETE FROM steps WHERE training IN (SELECT id FROM trainings WHERE digest = ? AND steps = ?)",
        "DELETE FROM trainings WHERE digest = ? AND steps = ?"})
    Statement(database_, sql).bind(digest).bind(training.steps).run();
  Statement(database_,
            "INSERT INTO trainings (digest, name, scenario, first_step, steps, seconds, version, calibrations) VALUES "
            "(?, ?, ?, ?, ?, ?, ?, ?)")
      .bind(digest)
      .bind(record.name)
      .bind(record.scenario)
      .bind(training.first_step)
      .bind(training.steps)
      .bind(training.seconds)
      .bind(record.version)
      .bind(record.calibrations)
      .run();
  const std::int64_t id = database_.last_row();
  std::vector<std::string_view> names = step_names();
  const std::size_t fixed = names.size();
  names.insert(names.begin(), {"training", "figures"});
  Statement insert(database_, "INSERT " + into("steps", names));
  for (std::size_t row = 0; row < static_cast<std::size_t>(training.steps); ++row) {
    nlohmann::ordered_json figures = nlohmann::ordered_json::object();
    for (std::size_t i = fixed; i < training.columns.size(); ++i)
      figures[training.columns[i].name] = training.columns[i].values[row];
    insert.bind(id).bind(figures.dump());
    for (std::size_t i = 0; i < fixed; ++i) insert.bind(training.columns[i].values[row]);
    insert.run();
  }
  transaction.commit();
}

}  // namespace orrery
