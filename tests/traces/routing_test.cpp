// Counts of routed tokens: what is kept comes back, and what is no routing is refused.
#include "traces/routing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace orrery {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal_of(const auto& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RoutingCounts, KeepCountsOfSixtyFourBitsInAsFewBytesAsTheyNeed) {
  const std::int64_t large = std::int64_t{1} << 40;
  RoutingCounts counts({{7}, {3, 5}, 1, 2, 3, 2});
  counts.append(large, std::vector<std::int64_t>{large, large - 1, 1});
  counts.append(0, std::vector<std::int64_t>{0, 0, 0});
  counts.append(100, std::vector<std::int64_t>{100, 0, 100});
  EXPECT_FALSE(counts.complete());
  counts.append(200, std::vector<std::int64_t>{200, 127, 73});
  EXPECT_TRUE(counts.complete());
  EXPECT_THAT(counts.matrix(0, 0).tokens, ElementsAre(large, large - 1, 1, 0, 0, 0));
  EXPECT_THAT(counts.matrix(0, 1).tokens, ElementsAre(100, 0, 100, 200, 127, 73));
  EXPECT_THAT(counts.matrix(0, 1).by_expert(), ElementsAre(300, 127, 173));
  EXPECT_EQ(counts.matrix(0, 1).total(), 600);
}

TEST(RoutingCounts, AddUpMicroBatches) {
  RoutingCounts counts({{0}, {0}, 2, 2, 2, 1});
  for (const std::int64_t first : {1, 2, 3, 4}) counts.append(4, std::vector<std::int64_t>{first, 4 - first});
  EXPECT_THAT(counts.matrix(0, 0, 1).tokens, ElementsAre(3, 1, 4, 0));
  EXPECT_THAT(counts.matrix(0, 0).tokens, ElementsAre(4, 4, 6, 2));
}

TEST(RoutingCounts, RefuseWhatIsNoRouting) {
  const auto appended = [](std::int64_t tokens, std::vector<std::int64_t> of_experts) {
    return refusal_of([&] {
      RoutingCounts counts({{0}, {0}, 1, 1, 3, 2});
      counts.append(tokens, of_experts, {"trace.csv", "line 4"});
    });
  };
  EXPECT_EQ(appended(4, {4, 3, 1}), "accepted");
  EXPECT_EQ(appended(4, {4, 3, 2}),
            "trace.csv: line 4: found counts that add up to 9, expected 8, 2 for each of 4 tokens");
  EXPECT_EQ(appended(4, {4, 5, -1}),
            "trace.csv: line 4: found 5 tokens for expert 1, expected 0 to 4, the tokens that are routed");
  EXPECT_THAT(appended(4, {4, 4, -1}), HasSubstr("found -1 tokens for expert 2"));
  EXPECT_THAT(appended(4, {4, 4}), HasSubstr("found counts of 2 experts, expected counts of 3 experts"));
  EXPECT_THAT(appended(-1, {0, 0, 0}), HasSubstr("found -1 tokens"));
  EXPECT_THAT(refusal_of([] {
                RoutingCounts counts({{0}, {0}, 1, 1, 1, 1});
                counts.append(1, std::vector<std::int64_t>{1});
                counts.append(1, std::vector<std::int64_t>{1});
              }),
              HasSubstr("found another row, expected the 1 rows"));
}

TEST(RoutingCounts, RefuseShapesThatAreNone) {
  const auto made = [](RoutingShape shape) { return refusal_of([&] { shape.check({"trace.csv", "line 1"}); }); };
  EXPECT_EQ(made({{0, 4}, {1}, 1, 1, 2, 2}), "accepted");
  EXPECT_EQ(made({{}, {1}, 1, 1, 2, 2}), "trace.csv: line 1: found no step, expected at least one");
  EXPECT_THAT(made({{0}, {3, 3}, 1, 1, 2, 2}), HasSubstr("found layer 3 after 3"));
  EXPECT_THAT(made({{-1}, {3}, 1, 1, 2, 2}), HasSubstr("found step -1"));
  EXPECT_THAT(made({{0}, {0}, 1, 1, 2, 3}), HasSubstr("found top_k 3, expected 1 to the 2 experts"));
  EXPECT_THAT(made({{0}, {0}, 0, 1, 2, 1}), HasSubstr("found 0 micro_batches"));
  EXPECT_THAT(made({{0, 1, 2}, {0}, std::int64_t{1} << 39, 4, 2, 1}), HasSubstr("at most 1099511627776 rows"));
}

TEST(RoutingCounts, SayHowUnevenLoadsAre) {
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<std::int64_t>{6, 1, 2}), 2);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<double>{0.5, 0.5}), 1);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<std::int64_t>{0, 0}), 0);
  EXPECT_DOUBLE_EQ(max_over_mean(std::vector<std::int64_t>{}), 0);
}

}  // namespace
}  // namespace orrery
