// Do the schedules hold as many activations as their papers say?
#include <gtest/gtest.h>

#include "tests/pipeline/pipeline_cases.h"

namespace orrery::pipeline_parallel {
namespace {

std::vector<StagePeak> peaks_of(const Schedule& schedule, const ChunkBytes& bytes) {
  const std::vector<std::int32_t> classes(schedule.stages.size(), 0);
  const std::vector<ChunkBytes> all(static_cast<std::size_t>(schedule.chunks), bytes);
  std::vector<StagePeak> peaks;
  peak_bytes(schedule, classes, all, peaks);
  return peaks;
}

// By chunk.
std::vector<HeldMicroBatches> held_at(const Schedule& schedule, std::int64_t stage, std::size_t slot) {
  std::vector<HeldMicroBatches> held(static_cast<std::size_t>(schedule.chunks));
  count_held(schedule, stage, slot, {}, held);
  return held;
}

TEST(Peak, OfGpipeIsAllMicroBatches) {
  for (const StagePeak& stage : peaks_of(schedule_of(ScheduleKind::gpipe, 4, 37), {.saved = 1}))
    EXPECT_EQ(stage.bytes, 37);
}

// Narayanan et al. 2021, section 2.2.1: no more than p micro-batches; stage s holds p - s.
TEST(Peak, OfOneFOneBIsPMinusStage) {
  for (std::int64_t p = 1; p <= 9; ++p)
    for (std::int64_t m = 1; m <= 20; ++m) {
      const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, p, m);
      const std::vector<StagePeak> peaks = peaks_of(schedule, {.saved = 1});
      for (std::int64_t s = 0; s < p; ++s) {
        EXPECT_EQ(peaks[s].bytes, std::min(m, p - s));
        EXPECT_EQ(held_at(schedule, s, peaks[s].at)[0].in_flight, std::min(m, p - s));
      }
    }
}

// Korthikanti et al. 2022, section 4.2.3: interleaving multiplies the first stage's activations by 1 + (p-1)/(p v).
TEST(Peak, OfInterleavedIsLargerByPMinusOneOverPV) {
  for (std::int64_t p = 2; p <= 9; ++p)
    for (std::int64_t v = 2; v <= 5; ++v)
      for (std::int64_t groups = 2; groups <= 4; ++groups) {
        const Schedule schedule = schedule_of(ScheduleKind::interleaved, p, groups * p, v);
        const std::vector<StagePeak> peaks = peaks_of(schedule, {.saved = 1 / real(v)});
        EXPECT_NEAR(peaks[0].bytes, real(p) * (1 + real(p - 1) / real(p * v)), 1e-12) << "p=" << p << " v=" << v;
        std::int64_t chunks = 0;
        for (const HeldMicroBatches& held : held_at(schedule, 0, peaks[0].at)) chunks += held.in_flight;
        EXPECT_EQ(chunks, p * v + p - 1);
      }
}

// Qi et al. 2024, table 2: ZB-H1's peak is 1F1B's p M_B as long as W keeps no more than B did.
TEST(Peak, OfZbH1IsThatOfOneFOneB) {
  for (std::int64_t p = 1; p <= 9; ++p)
    for (std::int64_t m = p; m <= 3 * p; ++m) {
      const Schedule schedule = schedule_of(ScheduleKind::zb_h1, p, m);
      for (const StagePeak& stage : peaks_of(schedule, {.saved = 1, .kept = 1})) EXPECT_EQ(stage.bytes, p);
      EXPECT_EQ(peaks_of(schedule, {.saved = 1, .kept = 0.5})[0].bytes, p);
    }
}

// Qi et al. 2024, section 6: ZB-V's peak is p micro-batches' worth on every stage: 2p chunks, each half a stage.
TEST(Peak, OfZbVIsThatOfOneFOneBOnEveryStage) {
  for (std::int64_t p = 1; p <= 9; ++p)
    for (std::int64_t m = 2 * p; m <= 4 * p; ++m)
      for (const StagePeak& stage : peaks_of(schedule_of(ScheduleKind::zb_v, p, m), {.saved = 0.5, .kept = 0.5}))
        EXPECT_EQ(stage.bytes, p) << "p=" << p << " m=" << m;
}

// The reference: counting slot by slot. Random bytes, so that transients and several chunks decide.
TEST(Peak, OfSegmentsIsThatOfEverySlot) {
  Random random(7);
  std::uniform_real_distribution<double> size(0, 1);
  for (int trial = 0; trial < 3000; ++trial) {
    const ScheduleKind kind = kAllKinds[pick(random, 6)];
    const std::int64_t p = 1 + pick(random, 9), v = chunks_of(kind, 2 + pick(random, 3));
    const std::int64_t m = kind == ScheduleKind::interleaved ? p * (1 + pick(random, 8)) : 1 + pick(random, 60);
    if (schedule_limit(kind, p, v, m)) continue;
    Schedule schedule;
    build_schedule(kind, p, v, m, schedule);
    std::vector<std::int32_t> classes;
    std::vector<ChunkBytes> bytes(3 * v);
    for (std::int64_t s = 0; s < p; ++s) classes.push_back(static_cast<std::int32_t>(pick(random, 3)));
    for (ChunkBytes& b : bytes)
      b = {.saved = size(random), .kept = 2 * size(random), .transient = {size(random), size(random), size(random)}};
    std::vector<StagePeak> peaks;
    peak_bytes(schedule, classes, bytes, peaks);
    for (std::int64_t s = 0; s < p; ++s) {
      std::vector<double> in_flight(v), awaiting(v);
      double peak = 0;
      schedule.order(s).for_each([&](const Slot& slot) {
        if (slot.kind == SlotKind::forward) ++in_flight[slot.chunk];
        double held = bytes[classes[s] * v + slot.chunk].transient[static_cast<std::size_t>(slot.kind)];
        for (std::int64_t c = 0; c < v; ++c)
          held += in_flight[c] * bytes[classes[s] * v + c].saved + awaiting[c] * bytes[classes[s] * v + c].kept;
        peak = std::max(peak, held);
        if (slot.kind == SlotKind::backward) --in_flight[slot.chunk], awaiting[slot.chunk] += schedule.split_backward;
        if (slot.kind == SlotKind::weight_gradient) --awaiting[slot.chunk];
      });
      ASSERT_NEAR(peaks[s].bytes, peak, 1e-9 * peak) << name_of(kind) << " p=" << p << " m=" << m << " s=" << s;
      double explained =
          bytes[classes[s] * v + peaks[s].chunk].transient[static_cast<std::size_t>(peaks[s].slot)];
      const std::vector<HeldMicroBatches> held = held_at(schedule, s, peaks[s].at);
      for (std::int64_t c = 0; c < v; ++c)
        explained += real(held[c].in_flight) * bytes[classes[s] * v + c].saved +
                     real(held[c].awaiting_weight_gradient) * bytes[classes[s] * v + c].kept;
      ASSERT_NEAR(explained, peak, 1e-9 * peak);
    }
  }
}

// A pair at its fullest, which is not the forward's and then the backward's.
TEST(Peak, OfPairsIsWhatTheyHoldTogether) {
  for (const auto& [p, v, m] : {std::array{1, 1, 5}, std::array{4, 2, 8}}) {
    Schedule schedule;
    build_schedule(v == 1 ? ScheduleKind::one_f_one_b : ScheduleKind::interleaved, p, v, m, schedule, true);
    const std::vector<std::int32_t> one_class(static_cast<std::size_t>(p), 0);
    const std::vector<ChunkBytes> bytes(static_cast<std::size_t>(v), {.saved = 10, .transient = {1, 2, 0}});
    PeakOptions options;
    options.pair = [](std::size_t, std::size_t) { return -7; };
    std::vector<StagePeak> apart, together;
    peak_bytes(schedule, one_class, bytes, apart);
    peak_bytes(schedule, one_class, bytes, together, options);
    for (std::size_t s = 0; s < together.size(); ++s) {
      EXPECT_EQ(together[s].bytes, apart[s].bytes - 2 - 7) << p << " " << s;
      EXPECT_EQ(together[s].slot, SlotKind::backward);
      EXPECT_GE(together[s].beside, 0);
    }
    const std::vector<std::uint8_t> alike(static_cast<std::size_t>(m), 0);
    options.micro_batch_class = alike;
    std::vector<StagePeak> by_slot;
    peak_bytes(schedule, one_class, bytes, by_slot, options);
    for (std::size_t s = 0; s < by_slot.size(); ++s) {
      EXPECT_EQ(by_slot[s].bytes, together[s].bytes);
      EXPECT_EQ(by_slot[s].beside, together[s].beside);
    }
  }
}

// As many micro-batches as stages: each chunk has all its backwards in one stretch. Twice as many: it comes back.
TEST(Peak, HoldsAChunksGradientsFromItsFirstBackwardToItsLast) {
  const auto gradients_at_peak = [](std::int64_t m) {
    const Schedule schedule = schedule_of(ScheduleKind::interleaved, 4, m, 3);
    const std::vector<std::int32_t> one_class(4, 0);
    const std::vector<ChunkBytes> bytes(3, {.saved = 1e-3, .transient = {0, 0, 0}});
    const std::vector<double> gradients(3, 10);
    PeakOptions options;
    options.gradients = gradients;
    std::vector<StagePeak> peaks;
    peak_bytes(schedule, one_class, bytes, peaks, options);
    return peaks.back().gradient_bytes;
  };
  EXPECT_EQ(gradients_at_peak(4), 10);
  EXPECT_EQ(gradients_at_peak(8), 30);
}

}  // namespace
}  // namespace orrery::pipeline_parallel
