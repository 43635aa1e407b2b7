// In which order are the ops of a line issued, and how does a bucket count its layers?
#include "sim/program/issue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace orrery {
namespace {

TEST(Issue, OpsRunInTheMicroBatchesTheyAreFor) {
  EXPECT_EQ(conditions_of(0, 4), kFirst);
  EXPECT_EQ(conditions_of(2, 4), kUsual);
  EXPECT_EQ(conditions_of(3, 4), kLast);
  EXPECT_EQ(conditions_of(0, 1), kOnly);
}

// Whatever the bucket's size, each instance of a stretch is covered once.
TEST(Issue, BucketsCoverEveryInstanceOnce) {
  for (std::int64_t count = 1; count < 12; ++count)
    for (const std::uint16_t every : {std::uint16_t{1}, std::uint16_t{2}, std::uint16_t{5}, kAllInstances}) {
      std::int64_t covered = 0;
      for (std::int64_t at = 0; at < count; ++at) {
        const std::int64_t now = instances_covered(every, {at, count});
        EXPECT_LE(covered + now, at + 1) << "an instance that has not come yet";
        covered += now;
      }
      EXPECT_EQ(covered, count) << every;
    }
}

// On the way back a line runs the other way, and so do the places in its stretches.
TEST(Issue, ALineRunsBothWays) {
  std::vector<Piece> pieces(4);  // 1 and 2 are the same layers under two plans
  pieces[1].variant_of = pieces[2].variant_of = 1;
  const std::vector<orrery::PieceRun> runs{{0, 1}, {1, 3}, {2, 2}, {1, 1}, {3, 1}};
  using Seen = std::vector<std::tuple<int, std::int64_t, std::int64_t>>;  // piece, before, in the stretch
  const auto line = [&](bool reversed) {
    Seen seen;
    for_each_in_line(pieces, runs, reversed, [&](const orrery::PieceRun& run, PositionInStretch place) {
      seen.emplace_back(run.piece, place.before, place.count);
    });
    return seen;
  };
  EXPECT_EQ(line(false), (Seen{{0, 0, 1}, {1, 0, 6}, {2, 3, 6}, {1, 5, 6}, {3, 0, 1}}));
  EXPECT_EQ(line(true), (Seen{{3, 0, 1}, {1, 0, 6}, {2, 1, 6}, {1, 3, 6}, {0, 0, 1}}));
}

// An op of distance d of instance i comes with the start of instance i - d, or at the beginning: each exactly once.
TEST(Issue, WhatIsIssuedAheadComesOnceAndInTime) {
  constexpr int kLongest = 3;
  for (std::int64_t length = 1; length < 7; ++length)
    for (int distance = 1; distance <= kLongest; ++distance) {
      std::vector<std::int64_t> at(static_cast<std::size_t>(length), -2);
      std::int64_t now = -1;
      const auto issue = [&](std::int64_t instance, int least, int most) {
        if (distance < least || distance > most) return;
        EXPECT_EQ(at[static_cast<std::size_t>(instance)], -2) << "twice";
        at[static_cast<std::size_t>(instance)] = now;
      };
      const IssueAhead order{length, kLongest};
      order.at_beginning(issue);
      for (now = 0; now < length; ++now) order.when_starts(now, issue);
      for (std::int64_t i = 0; i < length; ++i)
        EXPECT_EQ(at[static_cast<std::size_t>(i)], std::max<std::int64_t>(i - distance, -1)) << i << " of " << length;
    }
}

// A gather of what its own instance has yet to make is not issued ahead of it.
TEST(Issue, OnlyWhatNeedsNothingOfItsInstanceIsIssuedAhead) {
  Piece piece;
  const auto tensor = [&] { return piece.add(Tensor{}); };
  const TensorId shard = tensor(), whole = tensor(), again = tensor(), x = tensor(), y = tensor(), made = tensor();
  piece.input = x;
  const auto op = [&](OpKind kind, Stream stream, std::uint16_t prefetch, TensorId read, TensorId write) {
    Op o;
    o.kind = kind;
    o.stream = stream;
    o.prefetch = prefetch;
    o.reads[0] = read;
    o.writes[0] = write;
    o.group = MeshGroup::of_digit(0);
    piece.forward.ops.push_back(o);
  };
  constexpr Stream kGathers = Stream::parameter_communication;
  op(OpKind::all_gather, kGathers, 1, shard, whole);
  op(OpKind::all_gather, kGathers, 2, whole, again);  // of what is issued ahead itself
  op(OpKind::zero_fill, Stream::compute, 0, whole, y);
  op(OpKind::all_gather, kGathers, 1, y, made);  // made here
  op(OpKind::all_gather, kGathers, 1, x, made);  // the block's input
  op(OpKind::all_gather, kGathers, 0, shard, whole);
  op(OpKind::reduce_scatter, kGathers, 1, shard, y);  // and adds to what is made here
  piece.forward.ops.back().accumulate = true;
  Liveness lives;
  lives.find(piece);
  EXPECT_EQ(find_ahead(piece.forward.ops, lives.storage(), boundary_of(piece, kForwardBlock).input),
            (std::vector<std::uint8_t>{1, 1, 0, 0, 0, 0, 0}));
  EXPECT_TRUE(find_ahead(piece.backward.ops, lives.storage(), kNoTensor).empty());
}

}  // namespace
}  // namespace orrery
