// Stores trainings in an SQLite file (docs/steps.md describes its tables), so that a training continues after a
// kill.
#pragma once

#include <cstdint>
#include <string>

#include "sim/database/database.h"
#include "study/training/training.h"

namespace orrery {

struct TrainingRecord {
  std::string name;      // the name of the training
  std::string scenario;  // the complete JSON
  std::string version, calibrations;
  std::uint64_t digest = 0;  // TrainingOptions::digest
};

class TrainingResults {
 public:
  // Throws InputError like Database.
  explicit TrainingResults(const std::string& path);

  KnownOutcomes outcomes() const;
  // Kept in memory until flush().
  void add(std::uint64_t key, const StepOutcome& outcome) { new_.emplace(key, outcome); }
  std::size_t waiting() const { return new_.size(); }
  void flush();  // in one transaction; so is the next function
  // Replaces a record of the same digest and steps.
  void add(const TrainingRecord& record, const Training& training);

  const Database& database() const { return database_; }

 private:
  Database database_;
  KnownOutcomes new_;
};

}  // namespace orrery
