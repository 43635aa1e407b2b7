// What those have in common who evaluate a sweep's points, threads of this process or others: points to do, what the
// file has already, rows to be kept.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "study/sweep/results.h"

namespace orrery {

struct SweepPoint {
  std::int64_t number = 0;
  std::vector<int> choices;  // by axis (SweepCursor)
};

// What the file has of a point. `result`: of its key, by another sweep or point.
enum class Kept : std::uint8_t { nothing, result, point };

// Each function may be called by several threads at a time.
class SweepWork {
 public:
  virtual ~SweepWork() = default;
  // The next points, `most` at most. Empty: there are no more, or the sweep is to end before.
  virtual std::vector<SweepPoint> take(std::size_t most) = 0;
  // Of each of these points, by its number and key.
  virtual std::vector<Kept> kept(std::span<const SweepRow> points) = 0;
  virtual void add(std::vector<SweepRow> rows) = 0;
  // A point that could not be computed, by no fault of its own: it is to be tried again.
  virtual void fail(const std::string& message) = 0;
};

}  // namespace orrery
