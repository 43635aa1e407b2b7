// Layouts of storages whose lives are known: best fit, the smallest one, and a step's memory in two levels.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "sim/memory/address_layout.h"
#include "tests/memory/trace_peak.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using Lives = std::vector<StorageLife>;

// Nothing that meets overlaps, and the buffer is as large as what lies furthest up.
void expect_valid(const Lives& lives, const AddressLayout& layout) {
  std::int64_t top = 0;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    EXPECT_GE(layout.addresses[i], 0);
    top = std::max(top, layout.addresses[i] + lives[i].bytes);
    for (std::size_t j = i + 1; j < lives.size(); ++j)
      EXPECT_TRUE(!lives[i].meets(lives[j]) || layout.addresses[i] + lives[i].bytes <= layout.addresses[j] ||
                  layout.addresses[j] + lives[j].bytes <= layout.addresses[i])
          << i << " " << j;
  }
  EXPECT_EQ(layout.bytes, top);
  EXPECT_GE(layout.least_bytes, most_alive(lives));
  EXPECT_LE(layout.least_bytes, layout.bytes);
}

// Each order in which storages are put, each as low as it goes: one of them is that of a smallest layout from below.
std::int64_t smallest_of_all_orders(const Lives& lives) {
  std::vector<std::size_t> order(lives.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t smallest = std::accumulate(lives.begin(), lives.end(), std::int64_t{0},
                                          [](std::int64_t sum, const StorageLife& life) { return sum + life.bytes; });
  std::vector<std::int64_t> tops(lives.size());
  do {
    std::int64_t height = 0;
    for (std::size_t n = 0; n < order.size(); ++n) {
      std::int64_t at = 0;
      for (std::size_t before = 0; before < n; ++before)
        if (lives[order[n]].meets(lives[order[before]])) at = std::max(at, tops[order[before]]);
      tops[order[n]] = at + lives[order[n]].bytes;
      height = std::max(height, tops[order[n]]);
    }
    smallest = std::min(smallest, height);
  } while (std::ranges::next_permutation(order).found);
  return smallest;
}

Lives drawn(std::mt19937& random, std::size_t storages, std::size_t instants, std::size_t longest) {
  Lives lives;
  for (std::size_t i = 0; i < storages; ++i) {
    const std::size_t begin = random() % instants;
    lives.push_back({512 * static_cast<std::int64_t>(1 + random() % 40), begin, begin + 1 + random() % longest});
  }
  return lives;
}

TEST(AddressLayout, BestFitTakesTheSmallestGap) {
  // From below 8, 6, 5, 4 and 3; when 6 and 4 have ended, 2 lies where 4 was.
  const Lives lives{{8, 0, 9}, {5, 0, 9}, {6, 0, 5}, {3, 0, 9}, {4, 0, 5}, {2, 5, 9}};
  const AddressLayout layout = best_fit(lives);
  expect_valid(lives, layout);
  EXPECT_EQ(layout.addresses, (std::vector<std::int64_t>{0, 14, 8, 23, 19, 19}));
  EXPECT_EQ(layout.bytes, 26);
  EXPECT_EQ(layout.least_bytes, 26);
  // Around 4 that has its place: 8 above it, 6 over that.
  const AddressLayout around = best_fit_around(lives, {-1, -1, -1, -1, 3, -1});
  expect_valid(lives, around);
  EXPECT_EQ(around.addresses[4], 3);
  EXPECT_EQ(around.addresses[0], 7);
}

TEST(AddressLayout, BestFitIsNotAlwaysTheSmallest) {
  // 3 lies at the bottom, where 4 was, and leaves 1 below the first 2: no room for the second.
  const Lives lives{{4, 0, 2}, {2, 0, 4}, {3, 3, 6}, {2, 2, 4}};
  EXPECT_EQ(most_alive(lives), 7);
  EXPECT_EQ(best_fit(lives).bytes, 8);
  const AddressLayout layout = smallest_layout(lives);
  expect_valid(lives, layout);
  EXPECT_EQ(layout.bytes, 7);
  EXPECT_EQ(layout.least_bytes, 7);
  EXPECT_TRUE(layout.by_program);
  EXPECT_EQ(layout.gap(), 0);
}

TEST(AddressLayout, TheProgramFindsWhatAllOrdersHave) {
  std::mt19937 random(11);
  int better = 0;
  for (int round = 0; round < 60; ++round) {
    const Lives lives = drawn(random, 6, 6, 4);
    const AddressLayout layout = smallest_layout(lives);
    expect_valid(lives, layout);
    EXPECT_EQ(layout.bytes, smallest_of_all_orders(lives)) << round;
    EXPECT_EQ(layout.least_bytes, layout.bytes) << "and knows it";
    better += layout.by_program ? 1 : 0;
  }
  EXPECT_GE(better, 3);
}

TEST(AddressLayout, LimitsLeaveBestFitOrBetter) {
  std::mt19937 random(5);
  Lives lives;
  do lives = drawn(random, 18, 30, 10);
  while (best_fit(lives).bytes == most_alive(lives));
  const AddressLayout known = best_fit(lives), none = smallest_layout(lives, {.nodes = 100, .pairs = 0}),
                      few = smallest_layout(lives, {.nodes = 1, .pairs = 1000});
  EXPECT_EQ(none.addresses, known.addresses);
  EXPECT_FALSE(none.by_program);
  EXPECT_EQ(none.least_bytes, most_alive(lives));
  expect_valid(lives, few);
  EXPECT_LE(few.bytes, known.bytes);
  const AddressLayout again = smallest_layout(lives, {.nodes = 1, .pairs = 1000});
  EXPECT_EQ(again.addresses, few.addresses) << "the same twice";
  EXPECT_EQ(again.least_bytes, few.least_bytes);
}

// Of more pairs than the limit the largest are the program's, the others lie around them.
TEST(AddressLayout, TheLargestStoragesMatterMost) {
  std::mt19937 random(7);
  int better = 0;
  for (int round = 0; round < 8; ++round) {
    const Lives lives = drawn(random, 24, 30, 12);
    const AddressLayout layout = smallest_layout(lives, {.nodes = 20, .pairs = 40});
    expect_valid(lives, layout);
    EXPECT_LE(layout.bytes, best_fit(lives).bytes);
    better += layout.by_program ? 1 : 0;
  }
  EXPECT_GE(better, 1);
}

TEST(AddressLayout, NothingTakesNothing) {
  EXPECT_EQ(best_fit({}).bytes, 0);
  EXPECT_EQ(smallest_layout({}).bytes, 0);
  const Lives empty{{0, 0, 3}, {0, 1, 2}};
  EXPECT_EQ(smallest_layout(empty).bytes, 0);
}

// A small GPT on eight devices, whose layers swap; one sequence.
Program swapping(bool memo) {
  Scenario s = scenario_of("gpt3-1.3B", "hgx-a800", 1);
  s.workload = {2048, 0, 1};
  s.plan.batch.micro_batch_size = 1;
  s.plan.data.degree = 1;
  s.plan.tensor.degree = 8;
  s.plan.tensor.sequence_parallel = true;
  s.plan.memo = {.swap = memo, .alpha = memo ? 0.5 : 1};
  Program p;
  lower(s, p);
  return p;
}

TEST(BiLevelLayout, PlacesAllThatIsAliveApart) {
  const Program p = swapping(true);
  const AllocationTrace trace = allocation_trace(p, 0);
  const BiLevelLayout plan = bi_level_plan(p, trace, 512, best_fit);
  Lives lives;
  for (const Allocation& a : trace.allocations) lives.push_back({a.bytes, 0, trace.events.size()});
  for (std::size_t e = 0; e < trace.events.size(); ++e)
    (trace.events[e].frees ? lives[trace.events[e].allocation].end : lives[trace.events[e].allocation].begin) = e;
  std::int64_t top = 0;
  for (std::size_t i = 0; i < lives.size(); ++i) {
    top = std::max(top, plan.addresses[i] + lives[i].bytes);
    for (std::size_t j = i + 1; j < lives.size(); ++j)
      ASSERT_TRUE(!lives[i].meets(lives[j]) || plan.addresses[i] + lives[i].bytes <= plan.addresses[j] ||
                  plan.addresses[j] + lives[j].bytes <= plan.addresses[i])
          << i << " " << j;
  }
  EXPECT_GT(top, plan.bytes() - 512);
  EXPECT_LE(top, plan.bytes());
  EXPECT_EQ(plan.alive_bytes, peak_bytes(trace, 512));
  EXPECT_GE(plan.bytes(), plan.alive_bytes);
  EXPECT_LT(plan.bytes(), 1.05 * static_cast<double>(plan.alive_bytes));
}

// Replayed, it allocates what is alive, holds no more than it plans, and ends with what stays.
TEST(BiLevelLayout, IsReplayedWithinItsBytes) {
  const Program p = swapping(true);
  const AllocationTrace trace = allocation_trace(p, 0);
  const BiLevelLayout plan = bi_level_plan(p, trace, 512, best_fit);
  const Replay r = replay(trace, plan, 512);
  EXPECT_EQ(r.statistics.peak_allocated, plan.alive_bytes);
  EXPECT_EQ(r.statistics.peak_reserved, plan.bytes());
  ASSERT_EQ(r.segments.size(), 1u);
  std::int64_t kept = 0, all = 0;
  for (const CachingAllocator::Block& b : r.segments[0].blocks) {
    kept += b.allocated ? b.bytes : 0;
    all += b.bytes;
  }
  EXPECT_EQ(kept, plan.resident_bytes);
  EXPECT_EQ(all, plan.bytes());
  EXPECT_FALSE(r.events.empty());
}

// One layout of a layer's forward and one of its backward serve all layers alike.
TEST(BiLevelLayout, LaysEqualBlocksOutOnce) {
  const Program p = swapping(true);
  const AllocationTrace trace = allocation_trace(p, 0);
  int asked = 0;
  const BiLevelLayout plan = bi_level_plan(p, trace, 512, [&](std::span<const StorageLife> lives) {
    ++asked;
    return best_fit(lives);
  });
  EXPECT_EQ(static_cast<std::size_t>(asked), plan.blocks.size() + 1);
  std::int64_t forwards = 0, kinds = 0;
  for (const BlockLayout& block : plan.blocks)
    if (block.block == kForwardBlock) forwards += block.instances, ++kinds;
  EXPECT_EQ(forwards, 24);
  EXPECT_LE(kinds, 4) << "those that swap and those that stay, and the first, which is handed its input otherwise";
}

// MEMO's point: two layers' activations at a time, where all layers' were alive.
TEST(BiLevelLayout, SwappingLeavesTwoLayersOnTheDevice) {
  const auto of = [](bool memo) {
    const Program p = swapping(memo);
    return bi_level_plan(p, allocation_trace(p, 0), 512, best_fit);
  };
  const BiLevelLayout kept = of(false), swapped = of(true);
  EXPECT_EQ(kept.resident_bytes, swapped.resident_bytes);
  EXPECT_LT(swapped.step.bytes, kept.step.bytes * 2 / 5);
}

}  // namespace
}  // namespace orrery
