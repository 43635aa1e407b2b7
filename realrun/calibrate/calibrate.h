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
  std::size_t done = 0, total = 0;  // points; each counts once per pass
  double seconds = 0, budget_seconds = 0;
  std::string point;  // the last measured one
};

struct CalibrateOptions {
  double budget_seconds = 600;
  SweepOptions sweep;
  // Number of passes over the sweep, if the budget allows; the fastest measurement of a point counts.
  std::int64_t passes = 3;
  double footprint_bytes = 48e6;  // memory that a measured op's operands take in turn (Meter)
  std::string journal;            // path of the file that keeps measured points; a later call goes on from there
  bool restart = false;           // ignore the points of an earlier journal
  std::string date;               // today, "2026-11-21"
  std::optional<Device> preset;
  std::function<void(const CalibrationProgress&)> progress;
  // Called between points: true ends the sweep. Points measured so far are in the journal.
  std::function<bool()> interrupted;
};
// Returns options that suit the device. The caller sets budget, journal, date and preset.
CalibrateOptions options_for(const BackendFacts& facts);

struct CalibrateResult {
  CalibrationFit fit;
  std::string text;  // the calibration's file
  std::size_t measured = 0, planned = 0;
  bool interrupted = false;
};

using MakeBackend = std::function<std::unique_ptr<Backend>()>;

// Measures a device and fits its calibration. Calls `make_backend` once, and on a CPU once more for every hardware
// thread, to measure how ranks slow each other down. Throws DeviceError for what the device cannot do, InputError for a
// journal of another machine and for too few points.
CalibrateResult calibrate(const MakeBackend& make_backend, const CalibrateOptions& options);

}  // namespace orrery
