// Schedules and durations shared by the tests of this folder.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "sim/analytical/pipeline_walk.h"
#include "strategies/pipeline_parallel/schedules.h"

namespace orrery::pipeline_parallel {

constexpr std::array<ScheduleKind, 6> kAllKinds{ScheduleKind::gpipe,       ScheduleKind::one_f_one_b,
                                                ScheduleKind::interleaved, ScheduleKind::zb_h1,
                                                ScheduleKind::zb_v,        ScheduleKind::dualpipe_v};

inline std::string name_of(ScheduleKind kind) { return std::string(kScheduleNames[static_cast<std::size_t>(kind)]); }

inline std::int64_t chunks_of(ScheduleKind kind, std::int64_t v) {
  return kind == ScheduleKind::interleaved ? v : is_v(kind) ? 2 : 1;
}

inline Schedule schedule_of(ScheduleKind kind, std::int64_t p, std::int64_t m, std::int64_t v = 2) {
  Schedule schedule;
  build_schedule(kind, p, chunks_of(kind, v), m, schedule);
  return schedule;
}

constexpr double real(std::int64_t n) { return static_cast<double>(n); }

using Random = std::mt19937_64;
// 0 .. n-1
inline std::int64_t pick(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(n));
}

// Costs with their storage.
struct Costs {
  std::vector<std::int32_t> classes;
  std::vector<ChunkSeconds> seconds;
  std::vector<double> hops;
  std::vector<double> behind_last;

  PipelineCosts view() const {
    return {.stage_class = classes,
            .seconds = seconds,
            .hop_seconds = hops,
            .behind_last = behind_last,
            .slots_behind = classes.size()};
  }
};

// The same durations for all stages, chunks and micro-batches.
inline Costs uniform_costs(const Schedule& schedule, double f, double b, double w = 0, double hop = 0) {
  const std::size_t p = schedule.stages.size(), v = static_cast<std::size_t>(schedule.chunks);
  const ChunkSeconds seconds{SlotSeconds{f, f, f}, SlotSeconds{b, b, b}, SlotSeconds{w, w, w}};
  return {std::vector<std::int32_t>(p, 0), std::vector<ChunkSeconds>(v, seconds), std::vector<double>(p * v, hop), {}};
}

inline PipelineClock clock_of(const Schedule& schedule, const Costs& costs) {
  PipelineClock clock;
  PipelineWalker().walk(schedule, costs.view(), clock);
  return clock;
}

}  // namespace orrery::pipeline_parallel
