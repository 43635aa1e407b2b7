// Is the fast walk exact, does it fail loudly on bad orders, and does it react to its inputs as physics demands?
#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "sim/analytical/pipeline_rows.h"
#include "tests/pipeline/pipeline_cases.h"

namespace orrery::pipeline_parallel {
namespace {

// How durations are drawn: wholly random; first, middle and last stages; small integers, with many ties and zeros.
Costs random_costs(Random& random, std::int64_t p, std::int64_t v) {
  const int style = static_cast<int>(pick(random, 4));
  std::uniform_real_distribution<double> real(0.1, 2.0);
  const auto draw = [&] { return style == 2 ? static_cast<double>(pick(random, 3)) : real(random); };
  const std::size_t classes = style == 0 ? p : 3;
  Costs costs;
  for (std::int64_t s = 0; s < p; ++s)
    costs.classes.push_back(static_cast<std::int32_t>(style == 0   ? s
                                                      : s == 0     ? 0
                                                      : s == p - 1 ? 2
                                                      : style == 3 ? pick(random, 3)
                                                                   : 1));
  for (std::size_t row = 0; row < classes * v; ++row) {
    ChunkSeconds seconds;
    for (SlotSeconds& slot : seconds) {
      const double usual = draw();
      slot = {usual + (pick(random, 2) ? draw() : 0), usual, usual + (pick(random, 2) ? draw() : 0)};
    }
    costs.seconds.push_back(seconds);
  }
  const int hops = static_cast<int>(pick(random, 3));  // none, all the same, all different
  const double hop = draw() / 4;
  for (std::int64_t q = 0; q < p * v; ++q) costs.hops.push_back(hops == 0 ? 0 : hops == 1 ? hop : draw() / 2);
  // Messages that are longer than a slot may queue, which the fast way does not know. Most are not.
  double shortest = std::numeric_limits<double>::infinity();
  for (const ChunkSeconds& seconds : costs.seconds)
    for (const SlotSeconds& slot : seconds) shortest = std::min(shortest, slot.usual);
  if (const double longest = std::ranges::max(costs.hops); pick(random, 4) && longest > shortest)
    for (double& seconds : costs.hops) seconds *= 0.999 * shortest / longest;
  if (pick(random, 2))
    for (std::size_t i = 0; i < classes * v * p; ++i) costs.behind_last.push_back(draw());
  return costs;
}

void expect_equal(const PipelineClock& fast, const PipelineClock& plain) {
  const double tolerance = 1e-9 * (plain.makespan > 0 ? plain.makespan : 1);
  ASSERT_NEAR(fast.makespan, plain.makespan, tolerance);
  for (std::size_t s = 0; s < plain.stages.size(); ++s) {
    SCOPED_TRACE(s);
    ASSERT_NEAR(fast.stages[s].first_forward_begin, plain.stages[s].first_forward_begin, tolerance);
    ASSERT_NEAR(fast.stages[s].last_backward_end, plain.stages[s].last_backward_end, tolerance);
    ASSERT_NEAR(fast.stages[s].finish, plain.stages[s].finish, tolerance);
    ASSERT_NEAR(fast.stages[s].busy_seconds, plain.stages[s].busy_seconds, tolerance);
    ASSERT_NEAR(fast.stages[s].transfer_seconds, plain.stages[s].transfer_seconds, tolerance);
  }
}

TEST(Walk, IsExact) {
  Random random(1);
  PipelineWalker walker;  // one for all: its storage must not carry over
  for (int trial = 0; trial < 12000; ++trial) {
    const ScheduleKind kind = kAllKinds[pick(random, 6)];
    const std::int64_t p = 1 + pick(random, 16), v = chunks_of(kind, 2 + pick(random, 4));
    const std::int64_t m = kind == ScheduleKind::interleaved ? p * (1 + pick(random, 200 / p)) : 1 + pick(random, 200);
    if (schedule_limit(kind, p, v, m)) continue;
    Schedule schedule;
    build_schedule(kind, p, v, m, schedule);
    schedule.blocking_transfers = pick(random, 3) == 0;
    const Costs costs = random_costs(random, p, v);
    SCOPED_TRACE(name_of(kind) + " p=" + std::to_string(p) + " m=" + std::to_string(m) + " v=" + std::to_string(v) +
                 (schedule.blocking_transfers ? " blocking" : "") + " trial " + std::to_string(trial));
    PipelineClock fast, plain;
    walker.walk(schedule, costs.view(), fast);
    walker.walk_plain(schedule, costs.view(), plain);
    expect_equal(fast, plain);
    if (HasFatalFailure()) return;
  }
}

// Long steady states, where rows are skipped: round trips (period p), a bottleneck stage, near ties.
TEST(Walk, IsExactOverThousandsOfMicroBatches) {
  PipelineWalker walker;
  for (const ScheduleKind kind : kAllKinds)
    for (const double slower : {1.0, 1.0 + 1e-12, 1.0 + 1e-7, 1.001, 1.5})
      for (const double hop : {0.0, 1e-9, 0.01, 0.9}) {
        const Schedule schedule = schedule_of(kind, 8, 4000, 3);
        Costs costs = uniform_costs(schedule, 1, 2, 1, hop);
        costs.classes[5] = 1;
        for (std::int64_t c = 0; c < schedule.chunks; ++c) {
          costs.seconds.push_back(costs.seconds[c]);
          for (SlotSeconds& slot : costs.seconds.back()) slot.usual *= slower;
        }
        SCOPED_TRACE(name_of(kind) + " slower " + std::to_string(slower) + " hop " + std::to_string(hop));
        PipelineClock fast, plain;
        walker.walk(schedule, costs.view(), fast);
        walker.walk_plain(schedule, costs.view(), plain);
        expect_equal(fast, plain);
      }
}

// Rounds of blocking transfers are left out, too: a long step takes no longer to walk than one of a few rounds.
TEST(Walk, BlockingRoundsThatRepeatAreLeftOut) {
  PipelineWalker walker;
  Random random(3);
  for (const std::int64_t p : {2, 4, 8})
    for (const double slower : {1.0, 1.001, 1.5}) {
      Schedule schedule = schedule_of(ScheduleKind::interleaved, p, 200 * p, 3);
      schedule.blocking_transfers = true;
      Costs costs = random_costs(random, p, 3);
      if (slower < 1.5) costs = uniform_costs(schedule, 1, 2 * slower, 0, 0.1);
      PipelineClock fast, plain;
      walker.walk(schedule, costs.view(), fast);
      walker.walk_plain(schedule, costs.view(), plain);
      expect_equal(fast, plain);
      EXPECT_NEAR(fast.makespan / plain.makespan, 1, 1e-12) << p << " " << slower;
    }
  Schedule schedule = schedule_of(ScheduleKind::interleaved, 4, 400'000, 3);
  schedule.blocking_transfers = true;
  const Costs costs = uniform_costs(schedule, 1, 2, 0, 0.1);
  PipelineClock clock;
  walker.walk(schedule, costs.view(), clock);
  EXPECT_LT(walker.slots_walked(), 10'000);
}

// Otherwise the two tests above would compare the plain walk with itself.
TEST(Walk, TakesTheFastWayWhereItClaimsTo) {
  RowWalker walker;
  PipelineClock clock;
  for (const ScheduleKind kind : kAllKinds)
    for (const bool blocking : {false, true})
      for (std::int64_t p = 1; p <= 8; ++p)
        for (std::int64_t m = 1; m <= 40; ++m) {
          if (schedule_limit(kind, p, chunks_of(kind, 3), m)) continue;
          Schedule schedule = schedule_of(kind, p, m, 3);
          schedule.blocking_transfers = blocking;
          // One stage or one micro-batch: GPipe and 1F1B are the same.
          const bool same_as_1f1b = kind == ScheduleKind::gpipe && m == 1;
          const bool fast = blocking ? kind == ScheduleKind::one_f_one_b || same_as_1f1b : !is_v(kind);
          EXPECT_EQ(walker.walk(schedule, uniform_costs(schedule, 1, 2, 1).view(), clock), fast)
              << name_of(kind) << " p=" << p << " m=" << m << " blocking " << blocking;
        }
}

// The fast way must not mistake an order for one it knows: schedules with one fault run alike, or fail, both ways.
TEST(Walk, IsExactOnOrdersThatAreNearlyThoseOfThePapers) {
  Random random(4);
  PipelineWalker walker;
  std::int64_t ran = 0, refused = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    const ScheduleKind kind = kAllKinds[pick(random, 6)];
    const std::int64_t p = 2 + pick(random, 4), m = p * (1 + pick(random, 4)), v = chunks_of(kind, 2);
    if (schedule_limit(kind, p, v, m)) continue;
    Schedule schedule;
    build_schedule(kind, p, v, m, schedule);
    Segment& segment = schedule.segments[pick(random, std::ssize(schedule.segments))];
    Slot& slot = segment.slots[pick(random, segment.size)];
    switch (pick(random, 6)) {
      case 0:
        ++slot.micro_batch;
        break;
      case 1:
        slot.micro_batch -= slot.micro_batch > 0;
        break;
      case 2:
        slot.kind = static_cast<SlotKind>(pick(random, 3));
        break;
      case 3:
        ++segment.repeats;
        break;
      case 4:
        std::swap(segment, schedule.segments[pick(random, std::ssize(schedule.segments))]);
        break;
      case 5:
        std::swap(slot, segment.slots[pick(random, segment.size)]);
        break;
    }
    const Costs costs = random_costs(random, p, v);
    PipelineClock fast, plain;
    std::string fast_error, plain_error;
    try {
      walker.walk(schedule, costs.view(), fast);
    } catch (const std::logic_error& error) {
      fast_error = error.what();
    }
    try {
      walker.walk_plain(schedule, costs.view(), plain);
    } catch (const std::logic_error& error) {
      plain_error = error.what();
    }
    ASSERT_EQ(fast_error, plain_error) << name_of(kind);
    ++(plain_error.empty() ? ran : refused);
    if (plain_error.empty()) expect_equal(fast, plain);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(ran, 500);
  EXPECT_GT(refused, 500);
}

TEST(Walk, TimelineRecordsEverySlotInOrderAndEveryTransfer) {
  const Schedule schedule = schedule_of(ScheduleKind::interleaved, 4, 8, 2);
  const Costs costs = uniform_costs(schedule, 1, 2, 0, 0.25);
  PipelineClock clock;
  PipelineTimeline timeline;
  walk_timeline(schedule, costs.view(), clock, timeline);
  ASSERT_EQ(timeline.slots.size(), 4 * 2 * 2 * 8);
  EXPECT_EQ(timeline.transfers.size(), 2 * 8 * 7);  // 7 boundaries between 8 chunks, there and back
  std::size_t i = 0;
  for (std::int32_t s = 0; s < 4; ++s) {
    double now = 0;
    schedule.order(s).for_each([&](const Slot& slot) {
      const SlotRecord& record = timeline.slots[i++];
      EXPECT_EQ(record.stage, s);
      EXPECT_EQ(record.slot, slot);
      EXPECT_GE(record.begin_seconds, now);
      now = record.end_seconds;
    });
    EXPECT_DOUBLE_EQ(now, clock.stages[s].finish);
  }
  for (const TransferRecord& transfer : timeline.transfers)
    EXPECT_GE(transfer.to_seconds, transfer.from_seconds + 0.25);
}

TEST(Walk, NeverGetsFasterByLongerTransfersOrSlots) {
  Random random(2);
  for (int trial = 0; trial < 1000; ++trial) {
    const ScheduleKind kind = kAllKinds[pick(random, 6)];
    const std::int64_t p = 2 + pick(random, 7), m = p * (1 + pick(random, 8)), v = chunks_of(kind, 3);
    if (schedule_limit(kind, p, v, m)) continue;
    Schedule schedule;
    build_schedule(kind, p, v, m, schedule);
    schedule.blocking_transfers = pick(random, 2);
    Costs costs = random_costs(random, p, v);
    const double before = clock_of(schedule, costs).makespan;
    costs.hops[pick(random, p * v)] += 0.5;
    const double longer_hop = clock_of(schedule, costs).makespan;
    EXPECT_GE(longer_hop, before * (1 - 1e-12)) << name_of(kind);
    costs.seconds[pick(random, std::ssize(costs.seconds))][pick(random, 3)].usual += 0.5;
    if (m > 2) {  // two micro-batches are the first and the last
      EXPECT_GE(clock_of(schedule, costs).makespan, longer_hop * (1 - 1e-12)) << name_of(kind);
    }
  }
}

TEST(Walk, PaysForOneMoreMicroBatchAtLeastTheBottlenecksTime) {
  Random random(3);
  for (int trial = 0; trial < 1000; ++trial) {
    const ScheduleKind kind =
        std::array{ScheduleKind::gpipe, ScheduleKind::one_f_one_b, ScheduleKind::zb_h1}[pick(random, 3)];
    const std::int64_t p = 1 + pick(random, 8), m = 2 + pick(random, 60);
    const Schedule schedule = schedule_of(kind, p, m), more = schedule_of(kind, p, m + 1);
    const Costs costs = random_costs(random, p, 1);
    const PipelineClock clock = clock_of(schedule, costs);
    double bottleneck = 0;
    for (std::int64_t s = 0; s < p; ++s) {
      const ChunkSeconds& seconds = costs.seconds[costs.classes[s]];
      const double w = schedule.split_backward ? seconds[2].usual : 0;
      bottleneck = std::max(bottleneck, seconds[0].usual + seconds[1].usual + w);
    }
    // Not the difference of two makespans: a stage that waited may use its bubble. But no step is shorter than the
    // busiest stage's work.
    const double makespan = clock_of(more, costs).makespan;
    EXPECT_GE(makespan, clock.makespan * (1 - 1e-12)) << name_of(kind);
    EXPECT_GE(makespan, bottleneck * real(m + 1) * (1 - 1e-12)) << name_of(kind);
  }
}

// In the steady state one more micro-batch costs the bottleneck's time exactly.
TEST(Walk, PaysTheBottleneckForEachMicroBatchInTheLongRun) {
  const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, 6, 200),
                 more = schedule_of(ScheduleKind::one_f_one_b, 6, 201);
  Costs costs = uniform_costs(schedule, 1, 2);
  costs.classes[4] = 1;
  costs.seconds.push_back({SlotSeconds{1.5, 1.5, 1.5}, SlotSeconds{2.5, 2.5, 2.5}, SlotSeconds{}});
  EXPECT_NEAR(clock_of(more, costs).makespan - clock_of(schedule, costs).makespan, 4, 1e-9);
}

// Messages that are longer than a slot leave a stage one after the other.
TEST(Walk, MessagesQueue) {
  // Forwards end at 1 2 3 4, arrive at 4 7 10 13 and end at 5 8 11 14; backwards end at 15 16 17 18, arrive at 18 21 24
  // 27 and end at 19 22 25 28.
  const Schedule gpipe = schedule_of(ScheduleKind::gpipe, 2, 4);
  EXPECT_NEAR(clock_of(gpipe, uniform_costs(gpipe, 1, 1, 0, 3)).makespan, 28, 1e-12);
  EXPECT_NEAR(clock_of(gpipe, uniform_costs(gpipe, 1, 1, 0, 1)).makespan, 12, 1e-12) << "in time";
  // A stage between two others sends a message in each direction for each micro-batch.
  const Schedule schedule = schedule_of(ScheduleKind::one_f_one_b, 4, 200),
                 more = schedule_of(ScheduleKind::one_f_one_b, 4, 201);
  const Costs slow = uniform_costs(schedule, 1, 2, 0, 50);
  EXPECT_NEAR(clock_of(more, slow).makespan - clock_of(schedule, slow).makespan, 100, 1e-9);
}

// Orders by hand: each stage one segment per slot.
Schedule by_hand(const std::vector<std::vector<Slot>>& orders, std::int64_t micro_batches) {
  Schedule schedule;
  schedule.micro_batches = micro_batches;
  for (const std::vector<Slot>& order : orders) {
    const auto begin = static_cast<std::uint32_t>(schedule.segments.size());
    for (const Slot& slot : order) {
      Segment segment;
      segment.slots[0] = slot;
      segment.size = segment.repeats = 1;
      schedule.segments.push_back(segment);
    }
    const auto end = static_cast<std::uint32_t>(schedule.segments.size());
    schedule.stages.push_back({begin, end, end, end, 0, 0});
    schedule.position.push_back(static_cast<std::int64_t>(schedule.position.size()));
  }
  return schedule;
}

constexpr SlotKind F = SlotKind::forward, B = SlotKind::backward, W = SlotKind::weight_gradient;

void expect_refused(const Schedule& schedule, const std::string& sentence) {
  const Costs costs = uniform_costs(schedule, 1, 1, 1);
  PipelineClock clock;
  try {
    PipelineWalker().walk(schedule, costs.view(), clock);
    FAIL() << "ran";
  } catch (const std::logic_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(sentence));
  }
}

TEST(Walk, ReportsADeadlockWithStageAndSlot) {
  // Stage 0 wants micro-batch 0 back before it sends 1; stage 1 wants 1 before it returns 0.
  const Schedule schedule =
      by_hand({{{F, 0, 0}, {B, 0, 0}, {F, 0, 1}, {B, 0, 1}}, {{F, 0, 0}, {F, 0, 1}, {B, 0, 0}, {B, 0, 1}}}, 2);
  expect_refused(schedule, "deadlocks: stage 0, slot 1 (backward of micro-batch 0, chunk 0)");
}

TEST(Walk, ReportsSlotsThatCannotRun) {
  expect_refused(by_hand({{{B, 0, 0}, {F, 0, 0}}}, 1),
                 "stage 0, slot 0 (backward of micro-batch 0, chunk 0) comes before its forward");
  expect_refused(by_hand({{{F, 0, 0}, {F, 0, 0}, {B, 0, 0}}}, 1),
                 "slot 1 (forward of micro-batch 0, chunk 0) runs twice");
  expect_refused(by_hand({{{F, 0, 1}, {B, 0, 1}}}, 1), "slot 0 (forward of micro-batch 1, chunk 0) does not exist");
  expect_refused(by_hand({{{F, 0, 0}, {B, 0, 0}, {W, 0, 0}}}, 1),
                 "(weight_gradient of micro-batch 0, chunk 0) in a schedule");
}

TEST(Walk, RunsOrdersThatNoPaperNames) {
  // The backward of micro-batch 1 first.
  const Schedule schedule =
      by_hand({{{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {B, 0, 0}}, {{F, 0, 0}, {F, 0, 1}, {B, 0, 1}, {B, 0, 0}}}, 2);
  EXPECT_DOUBLE_EQ(clock_of(schedule, uniform_costs(schedule, 1, 1)).makespan, 6);
}

// A forward of 1 and a backward of 2 that together take 2.5.
TEST(Walk, PairsRunBesideEachOther) {
  for (const std::int64_t m : {1, 2, 5}) {
    Schedule schedule;
    build_schedule(ScheduleKind::one_f_one_b, 1, 1, m, schedule, true);
    const Costs costs = uniform_costs(schedule, 1, 2, 0);
    PipelineCosts with = costs.view();
    const std::vector<double> saves{0.5};
    with.pair_saves = saves;
    PipelineClock clock;
    PipelineWalker().walk(schedule, with, clock);
    // One forward alone, m - 1 pairs, one backward alone.
    EXPECT_DOUBLE_EQ(clock.makespan, 1 + 2.5 * static_cast<double>(m - 1) + 2);
    EXPECT_DOUBLE_EQ(clock.stages[0].busy_seconds, clock.makespan);
    PipelineTimeline timeline;
    walk_timeline(schedule, with, clock, timeline);
    double end = 0;
    for (const SlotRecord& slot : timeline.slots) {
      EXPECT_GE(slot.begin_seconds, end - 1e-12);
      end = slot.end_seconds;
    }
  }
}

TEST(Walk, PairsThatSaveNothingTakeWhatSlotsTake) {
  Random random(3);
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t p = 2 + pick(random, 6), v = 2 + pick(random, 3), m = p * (1 + pick(random, 6));
    Schedule schedule;
    build_schedule(ScheduleKind::interleaved, p, v, m, schedule, true);
    Costs costs = random_costs(random, p, v);
    std::fill(costs.hops.begin(), costs.hops.end(), 0.0);
    PipelineClock alone, paired;
    PipelineWalker walker;
    walker.walk(schedule, costs.view(), alone);
    PipelineCosts with = costs.view();
    const std::vector<double> saves(costs.seconds.size(), 0.0);
    with.pair_saves = saves;
    walker.walk(schedule, with, paired);
    // Together they begin when both inputs are there, and hand on when both are done: never earlier.
    EXPECT_GE(paired.makespan, alone.makespan * (1 - 1e-12));
    for (std::size_t s = 0; s < alone.stages.size(); ++s)
      EXPECT_NEAR(paired.stages[s].busy_seconds, alone.stages[s].busy_seconds, 1e-9 * alone.makespan);
  }
}

TEST(Schedules, PairsAreOfTwoMicroBatches) {
  for (const auto& [kind, p, v] : {std::tuple{ScheduleKind::one_f_one_b, 1, 1},
                                   {ScheduleKind::interleaved, 4, 2},
                                   {ScheduleKind::interleaved, 8, 3}}) {
    Schedule schedule;
    build_schedule(kind, p, v, 4 * p, schedule, true);
    EXPECT_TRUE(schedule.pairs);
    for (std::size_t s = 0; s < schedule.stages.size(); ++s) {
      int pairs = 0, visited = 0;
      for (const Segment& segment : schedule.order(s).body)
        for (std::uint32_t i = 0; i + 1 < segment.size; ++i) {
          const Slot &f = segment.slots[i], &b = segment.slots[i + 1];
          if (!StageOrder::is_pair(f, b)) continue;
          ++pairs;
          EXPECT_FALSE(f.chunk == b.chunk && f.micro_batch == b.micro_batch) << s;
        }
      for (const std::span<const Segment> segments : {schedule.order(s).prologue, schedule.order(s).epilogue})
        for (const Segment& segment : segments) pairs += segment.size > 1;
      schedule.order(s).for_each_turn(
          true, [](const Slot&) {}, [&](const Slot&, const Slot&) { ++visited; });
      // All forwards but those that come first.
      int forwards = 0, first = 0;
      bool before_backward = true;
      schedule.order(s).for_each([&](const Slot& slot) {
        forwards += slot.kind == SlotKind::forward;
        before_backward = before_backward && slot.kind == SlotKind::forward;
        first += before_backward;
      });
      EXPECT_EQ(visited, forwards - (first - 1));
      EXPECT_GT(pairs, 0);
    }
  }
}

}  // namespace
}  // namespace orrery::pipeline_parallel
