// PyTorch's caching allocator, by the rules of its source.
#include "sim/memory/caching_allocator.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace orrery {
namespace {

constexpr std::int64_t kMiB = 1 << 20;

std::int64_t reserved(const CachingAllocator& a) { return a.statistics().reserved; }

TEST(CachingAllocator, RoundsRequestsAndSegmentsAsPyTorchDoes) {
  CachingAllocator a({});
  const auto small = a.allocate(1, 0);
  EXPECT_EQ(a.statistics().allocated, 512);
  EXPECT_EQ(reserved(a), 2 * kMiB) << "the small pool's segment";
  const auto large = a.allocate(kMiB + 1, 0);
  EXPECT_EQ(a.statistics().allocated, 512 + kMiB + 512);
  EXPECT_EQ(reserved(a), 22 * kMiB);
  const auto own = a.allocate(10 * kMiB + 1, 0);  // no longer than what is left of 20 MiB
  EXPECT_EQ(reserved(a), 22 * kMiB);
  const auto next = a.allocate(10 * kMiB + 1, 0);
  EXPECT_EQ(reserved(a), 34 * kMiB) << "its own, rounded up to 2 MiB";
  EXPECT_EQ(a.statistics().requested, 1 + kMiB + 1 + 2 * (10 * kMiB + 1));
  for (const auto& address : {small, large, own, next}) a.free(*address);
  EXPECT_EQ(a.statistics().allocated, 0);
  EXPECT_EQ(reserved(a), 34 * kMiB) << "is cached";
  EXPECT_EQ(a.statistics().segments, 3);
}

// What is left of a large block stays with it up to 1 MiB.
TEST(CachingAllocator, SplitsWhereEnoughIsLeft) {
  CachingAllocator a({});
  const auto first = a.allocate(12 * kMiB, 0);
  a.free(*first);
  const auto all = a.allocate(11 * kMiB, 0);
  EXPECT_EQ(all, first);
  EXPECT_EQ(a.statistics().allocated, 12 * kMiB);
  a.free(*all);
  const auto part = a.allocate(11 * kMiB - 512, 0);
  EXPECT_EQ(a.statistics().allocated, 11 * kMiB - 512);
  EXPECT_EQ(a.allocate(kMiB + 512, 0), *part + 11 * kMiB - 512) << "what was split off";
}

TEST(CachingAllocator, TakesTheSmallestBlockThatIsLargeEnoughOfTheStream) {
  CachingAllocator a({});
  const auto wide = a.allocate(64 * kMiB, 0), narrow = a.allocate(32 * kMiB, 0), other = a.allocate(32 * kMiB, 1);
  for (const auto& address : {wide, narrow, other}) a.free(*address);
  EXPECT_EQ(a.allocate(30 * kMiB, 0), narrow);
  EXPECT_EQ(a.allocate(30 * kMiB, 1), other);
  EXPECT_EQ(a.allocate(30 * kMiB, 0), wide);
  EXPECT_EQ(reserved(a), 128 * kMiB);
}

// Free memory in pieces that no request fits into: more is reserved.
TEST(CachingAllocator, FragmentsWhereNeighboursStay) {
  CachingAllocator a({});
  const auto whole = a.allocate(100 * kMiB, 0);
  a.free(*whole);
  std::vector<std::int64_t> pieces;
  for (int i = 0; i < 5; ++i) pieces.push_back(*a.allocate(20 * kMiB, 0));
  EXPECT_EQ(reserved(a), 100 * kMiB);
  for (const int i : {1, 3}) a.free(pieces[static_cast<std::size_t>(i)]);
  a.allocate(40 * kMiB, 0);
  EXPECT_EQ(reserved(a), 140 * kMiB);
  // Neighbours join.
  a.free(pieces[2]);
  a.allocate(60 * kMiB, 0);
  EXPECT_EQ(reserved(a), 140 * kMiB);
}

// PyTorch's "reserved but unallocated": 24 MiB are free, 12 in one piece are not.
TEST(CachingAllocator, GivesWholeSegmentsBackBeforeItGivesUp) {
  CachingAllocator a({.capacity = 64 * kMiB});
  const auto cached = a.allocate(40 * kMiB, 0);
  a.free(*cached);
  const auto larger = a.allocate(50 * kMiB, 0);
  ASSERT_TRUE(larger);
  EXPECT_EQ(a.statistics().retries, 1);
  EXPECT_EQ(reserved(a), 50 * kMiB);
  a.free(*larger);
  const auto left = a.allocate(20 * kMiB, 0), right = a.allocate(20 * kMiB, 0);
  a.free(*left);
  ASSERT_TRUE(right);
  EXPECT_FALSE(a.allocate(40 * kMiB, 0)) << "30 of 50 MiB and 14 beyond are free";
}

TEST(CachingAllocator, ExpandsOneSegmentInPlaceOfManyWhereItMay) {
  for (const bool expandable : {false, true}) {
    CachingAllocator a({.expandable_segments = expandable});
    std::vector<std::int64_t> pieces;
    for (int i = 0; i < 4; ++i) pieces.push_back(*a.allocate(30 * kMiB, 0));
    for (const std::int64_t address : pieces) a.free(address);
    a.allocate(120 * kMiB, 0);
    EXPECT_EQ(reserved(a), expandable ? 120 * kMiB : 240 * kMiB);
  }
  CachingAllocator a({.expandable_segments = true, .capacity = 100 * kMiB});
  const auto kept = a.allocate(10 * kMiB, 0), cached = a.allocate(90 * kMiB, 0);
  a.free(*cached);
  ASSERT_TRUE(kept);
  EXPECT_TRUE(a.allocate(60 * kMiB, 1)) << "pages at the end went back";
  EXPECT_LE(reserved(a), 100 * kMiB);
}

TEST(CachingAllocator, NothingHasNoAddressAndIsFreedForNothing) {
  CachingAllocator a({});
  EXPECT_EQ(a.allocate(0, 0), 0);
  a.free(0);
  EXPECT_EQ(reserved(a), 0);
  EXPECT_THROW(a.free(4096), std::logic_error);
  const auto once = a.allocate(5, 0);
  a.free(*once);
  EXPECT_THROW(a.free(*once), std::logic_error);
}

// Whatever is asked for: blocks tile their segments, none overlap, sums are the statistics.
TEST(CachingAllocator, KeepsItsBooksThroughRandomRequests) {
  for (const bool expandable : {false, true}) {
    CachingAllocator a({.expandable_segments = expandable, .capacity = 900 * kMiB});
    std::mt19937 random(7);
    std::vector<std::int64_t> live;
    for (int i = 0; i < 4000; ++i) {
      if (!live.empty() && random() % 2 == 0) {
        const std::size_t at = random() % live.size();
        a.free(live[at]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      } else if (const auto address = a.allocate(std::int64_t{1} << random() % 26 | random() % 999,
                                                 static_cast<int>(random() % 3))) {
        live.push_back(*address);
      }
      if (i % 100 != 0) continue;
      std::int64_t held = 0, allocated = 0;
      std::size_t count = 0;
      for (const CachingAllocator::Segment& segment : a.segments()) {
        std::int64_t at = segment.address;
        bool was_free = false;
        for (const CachingAllocator::Block& block : segment.blocks) {
          EXPECT_EQ(block.address, at);
          EXPECT_FALSE(was_free && !block.allocated) << "free neighbours";
          was_free = !block.allocated;
          at += block.bytes;
          if (!block.allocated) continue;
          allocated += block.bytes;
          ++count;
          EXPECT_LE(block.requested, block.bytes);
        }
        EXPECT_EQ(at, segment.address + segment.bytes);
        held += segment.bytes;
      }
      EXPECT_EQ(held, a.statistics().reserved);
      EXPECT_EQ(allocated, a.statistics().allocated);
      EXPECT_EQ(count, live.size());
      EXPECT_LE(held, 900 * kMiB);
    }
  }
}

}  // namespace
}  // namespace orrery
