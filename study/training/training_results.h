// Trainings in an SQLite file (docs/steps.md has its tables): what is under way goes on after a kill.
#pragma once

#include <cstdint>
#include <string>

#include "sim/database/database.h"
#include "study/training/training.h"

namespace orrery {

struct TrainingRecord {
  std::string name;      // what it is called
  std::string scenario;  // JSON, written out
  std::string version, calibrations;
  std::uint64_t digest = 0;  // TrainingOptions'
};

class TrainingResults {
 public:
  // As Database.
  explicit TrainingResults(const std::string& path);

  KnownOutcomes outcomes() const;
  // Kept in memory until flush().
  void add(std::uint64_t key, const StepOutcome& outcome) { new_.emplace(key, outcome); }
  std::size_t waiting() const { return new_.size(); }
  void flush();  // in one transaction, as is the next
  // In place of what there is of the same digest and steps.
  void add(const TrainingRecord& record, const Training& training);

  const Database& database() const { return database_; }

 private:
  Database database_;
  KnownOutcomes new_;
};

}  // namespace orrery
