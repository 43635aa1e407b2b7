// Runs a sweep: of its points those that the file of results lacks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "sim/cost/user_calibration.h"
#include "sim/sweep/document.h"
#include "sim/sweep/results.h"

namespace orrery {

struct SweepProgress {
  std::int64_t points = 0, computed = 0, known = 0;
};

struct SweepRunOptions {
  int threads = 1;
  std::int64_t shard = 0, shards = 1;  // of each `shards` points in a row the one at this place
  std::string version;                 // of the program
  std::string calibrations;            // what points were calibrated by
  UserCalibration user{};
  std::function<bool()> stop{};  // asked a few times a second, as progress() is called; then points under way are ended
  std::function<void(const SweepProgress&)> progress{};
};

struct SweepOutcome : SweepProgress {
  std::int64_t sweep = 0;   // its number in the file
  std::int64_t errors = 0;  // of the computed: cannot be laid out, or no plan fits
  std::string first_error;
  std::int64_t failed = 0;  // not computed, by no fault of theirs: to be tried again
  std::string first_failure;
  bool stopped = false;
};

// A digest of the calibrations that come with Orrery.
std::string bundled_calibrations();

// Throws InputError where results cannot be written.
SweepOutcome run_sweep(const SweepDocument& sweep, SweepResults& results, const SweepRunOptions& options);

}  // namespace orrery
