#include "study/training/training_results.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

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
    OutcomeColumn{"memory_capacity_bytes", &StepOutcome::memory_capacity_bytes},
    OutcomeColumn{"busiest_rank", &StepOutcome::busiest_rank},
    OutcomeColumn{"dropped_share", &StepOutcome::dropped_share}};

const DatabaseKind& training_database() {
  static const DatabaseKind kind = [] {
    std::string outcomes, steps;
    for (const OutcomeColumn& column : kOutcomeColumns) outcomes += fmt::format("    {} REAL NOT NULL,\n", column.name);
    for (const std::string_view name : kTrainingColumns)
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

std::string hexadecimal(std::uint64_t number) { return fmt::format("{:016x}", number); }

}  // namespace

TrainingResults::TrainingResults(const std::string& path)
    : database_(path, Database::Mode::write, training_database()) {}

KnownOutcomes TrainingResults::outcomes() const {
  KnownOutcomes known;
  std::string names;
  for (const OutcomeColumn& column : kOutcomeColumns) names += fmt::format("{}, ", column.name);
  Statement rows(database_, "SELECT key, " + names + "memory_fits FROM outcomes");
  while (rows.step()) {
    const std::string key = rows.text(0);
    std::uint64_t number = 0;
    constexpr int kHexadecimal = 16;
    std::from_chars(key.data(), key.data() + key.size(), number, kHexadecimal);
    StepOutcome& outcome = known[number];
    int at = 0;
    for (const OutcomeColumn& column : kOutcomeColumns) outcome.*column.value = rows.number(++at);
    outcome.memory_fits = rows.integer(++at) != 0;
  }
  return known;
}

void TrainingResults::flush() {
  if (new_.empty()) return;
  Transaction transaction(database_);
  std::string names, places;
  for (const OutcomeColumn& column : kOutcomeColumns) {
    names += fmt::format("{}, ", column.name);
    places += "?, ";
  }
  Statement insert(database_,
                   "INSERT OR IGNORE INTO outcomes (key, " + names + "memory_fits) VALUES (?, " + places + "?)");
  for (const auto& [key, outcome] : new_) {
    insert.bind(hexadecimal(key));
    for (const OutcomeColumn& column : kOutcomeColumns) insert.bind(outcome.*column.value);
    insert.bind(std::int64_t{outcome.memory_fits}).run();
  }
  transaction.commit();
  new_.clear();
}

void TrainingResults::add(const TrainingRecord& record, const Training& training) {
  flush();
  Transaction transaction(database_);
  const std::string digest = hexadecimal(record.digest);
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
  constexpr std::size_t kFixed = std::size(kTrainingColumns);
  std::string names = "training, figures", places = "?, ?";
  for (const std::string_view name : kTrainingColumns) {
    names += fmt::format(", {}", name);
    places += ", ?";
  }
  Statement insert(database_, "INSERT INTO steps (" + names + ") VALUES (" + places + ")");
  for (std::size_t row = 0; row < static_cast<std::size_t>(training.steps); ++row) {
    nlohmann::ordered_json figures = nlohmann::ordered_json::object();
    for (std::size_t i = kFixed; i < training.columns.size(); ++i)
      figures[training.columns[i].name] = training.columns[i].values[row];
    insert.bind(id).bind(figures.dump());
    for (std::size_t i = 0; i < kFixed; ++i) insert.bind(training.columns[i].values[row]);
    insert.run();
  }
  transaction.commit();
}

}  // namespace orrery
