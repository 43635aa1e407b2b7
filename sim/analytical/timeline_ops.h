// Collects the ops that a timeline's slices and intervals refer to, and lists each of them once. Internal to the
// engines.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "sim/analytical/block_clock.h"
#include "sim/program/program.h"
#include "sim/report/report.h"

namespace orrery {

class TimelineOps {
 public:
  // Appends to `timeline.ops`. Keeps references to both arguments.
  TimelineOps(const Program& program, Timeline& timeline) : program_(program), ops_(timeline.ops) {}

  // Returns the index of the op in `timeline.ops`. The first time it appends the op there.
  std::uint32_t operator()(BlockKind kind, const LineOp& op);

 private:
  const Program& program_;
  std::vector<TimelineOp>& ops_;
  std::map<std::tuple<const BlockCode*, std::uint16_t, std::int64_t, int>, std::uint32_t> known_;
};

}  // namespace orrery
