// `orrery calibrate`: measures a device and fits its calibration.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "realrun/backend.h"
#include "realrun/calibrate/fit.h"
#include "realrun/calibrate/sweep.h"

namespace orrery {

struct CalibrationProgress {
  std::size_t done = 0, total = 0;  // points, each counted once a pass
  double seconds = 0, budget_seconds = 0;
  std::string point;  // the one that was measured last
};

struct CalibrateOptions {
  double budget_seconds = 600;
  SweepOptions sweep;
  std::int64_t passes = 3;  // over the sweep, where the budget allows; the fastest of a point counts
  double footprint_bytes = 48e6;
  std::string journal;   // path
  bool restart = false;  // without the points of an earlier journal
  std::string date;      // of today, "2026-11-21"
  std::optional<Device> preset;
  std::function<void(const CalibrationProgress&)> progress;
  // Asked between points: true ends the sweep; what was measured is in the journal.
  std::function<bool()> interrupted;
};
// What suits a device; budget, journal, date and preset are the caller's.
CalibrateOptions options_for(const BackendFacts& facts);

struct CalibrateResult {
  CalibrationFit fit;
  std::string text;  // the calibration's file
  std::size_t measured = 0, planned = 0;
  bool interrupted = false;
};

using MakeBackend = std::function<std::unique_ptr<Backend>()>;

// `make_backend` is called once, and on a CPU once more for every hardware thread, to see what ranks do to each other.
// Throws DeviceError for what the device cannot do, InputError for a journal of another machine and for too few points.
CalibrateResult calibrate(const MakeBackend& make_backend, const CalibrateOptions& options);

}  // namespace orrery
