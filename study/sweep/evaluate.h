// The evaluation of a sweep's points, by one of several threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "study/sweep/document.h"
#include "study/sweep/results.h"

namespace orrery {

struct SweepPoint {
  std::int64_t number = 0;
  std::vector<int> choices;  // by axis (SweepCursor)
};

// The state of a point in the file. `result`: the file has a result of the same key, from another sweep or point.
enum class Kept : std::uint8_t { nothing, result, point };

// The interface of everything that evaluates a sweep's points, threads of this process or others: points to evaluate,
// results that the file already has, and rows to store. All functions may be called by several threads at the same
// time.
class SweepWork {
 public:
  virtual ~SweepWork() = default;
  // Returns the next points, at most `most`. Empty: there are none left, or the sweep is stopping.
  virtual std::vector<SweepPoint> take(std::size_t most) = 0;
  // The state of each of these points in the file, by its number and key.
  virtual std::vector<Kept> kept(std::span<const SweepRow> points) = 0;
  virtual void add(std::vector<SweepRow> rows) = 0;
  // Reports a point that could not be computed, for reasons outside it; it is to be tried again.
  virtual void fail(const std::string& message) = 0;
};

struct SweepEvaluation {
  std::string program;  // its version and calibrations, which are part of each key
  UserCalibration user{};
  int search_threads = 1;  // threads of each search for a point's best plan
};

// Evaluates points of `work` until there are none left.
void evaluate_points(const SweepDocument& sweep, const SweepEvaluation& evaluation, SweepWork& work);

}  // namespace orrery
