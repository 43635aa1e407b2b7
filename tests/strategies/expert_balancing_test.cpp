// What FlexMoE is compared with: shadowing, SWIPE, EPLB, SYMI.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "strategies/flexmoe/balancers.h"
#include "tests/traces/drawn_routing.h"

namespace orrery::flexmoe {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

// The defaults of fmoe/fastermoe/shadow_policy.py, 50 Gbit/s, 11.5 TFLOP/s, fp32; and what it says by them.
const ShadowingProfile kFastMoe{2048, 2, 4, 11.5e12, 50e9 / 8};

TEST(Shadowing, ShadowsExpertsWhileThatIsFaster) {
  EXPECT_THAT(shadowed_experts(std::vector<double>{500, 30000, 8000, 40000, 7000, 3000, 2000, 1000}, kFastMoe),
              ElementsAre(3, 1, 2, 4, 5, 6));
  EXPECT_THAT(shadowed_experts(std::vector<double>{12000, 11000, 10000, 9000, 8000, 7500, 7000, 6500}, kFastMoe),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(shadowed_experts(std::vector<double>{12000, 11500, 3000}, kFastMoe), IsEmpty());
  EXPECT_THAT(shadowed_experts(std::vector<double>{100000, 40000, 30000, 20000}, kFastMoe), ElementsAre(0, 1, 2));
  EXPECT_THAT(shadowed_experts(std::vector<double>{100000}, kFastMoe), IsEmpty()) << "there is no other";
  // The mean micro-batch may have less than a token of each.
  EXPECT_THAT(shadowed_experts(std::vector<double>{0.1, 0.9, 0.1}, {1, 0.1, 4, 1e12, 1e9}), ElementsAre(1));
}

TEST(Shadowing, CountsFlopsAndBytesOfTheBusiestWorker) {
  // 3 x 4 x 1000 x 2 x 2048^2 FLOPs and 4 x 1000 x 2048 x 4 bytes.
  EXPECT_DOUBLE_EQ(imbalanced_seconds(1000, kFastMoe), 12e3 * 2 * 2048 * 2048 / 11.5e12 + 4e3 * 2048 * 4 / 6.25e9);
}

TEST(Swipe, TakesWhatThereIsRoomForAndMovesTheRest) {
  std::vector<std::int64_t> room{8, 8, 8};
  // Worker 0 has room for the 6 of source 0 and 2 of source 1's 5; source 1's 3 and source 2's 4 go to 0, 1, ...: 0 is
  // full.
  const SwipePass pass = swipe_once({3, 3, {6, 1, 1, 5, 2, 1, 4, 1, 3}}, room);
  EXPECT_THAT(pass.tokens.tokens, ElementsAre(6, 1, 1, 2, 5, 1, 0, 2, 6));
  EXPECT_EQ(pass.moved, 7);
  EXPECT_THAT(room, Each(0));
}

TEST(Swipe, LeavesEveryWorkerWithAsManyTokens) {
  RoutingGenerator g = generator_of(ExpertRouting::young_router);
  g.experts = g.source_ranks = 16;
  g.tokens = 1000;
  const RoutingCounts counts = drawn_routing(g, 2);  // the first and the second choice
  std::vector<std::int64_t> room(16, 2000);
  std::vector<std::int64_t> of_workers(16);
  for (const std::size_t choice : {0u, 1u}) {
    const RoutingMatrix tokens = counts.matrix(choice, 0);
    const SwipePass pass = swipe_once(tokens, room);
    std::int64_t gained = 0;
    for (std::int64_t w = 0; w < 16; ++w)
      of_workers[static_cast<std::size_t>(w)] += pass.tokens.by_expert()[static_cast<std::size_t>(w)];
    for (std::size_t i = 0; i < 256; ++i) gained += std::max<std::int64_t>(0, pass.tokens.tokens[i] - tokens.tokens[i]);
    EXPECT_EQ(pass.moved, gained);
    for (std::int64_t s = 0; s < 16; ++s) {
      std::int64_t sent = 0;
      for (std::int64_t w = 0; w < 16; ++w) sent += pass.tokens.at(s, w);
      EXPECT_EQ(sent, 1000) << "no token is lost";
    }
  }
  EXPECT_THAT(of_workers, Each(2000));
  EXPECT_THROW(swipe_once(counts.matrix(0, 0), room), InputError) << "no room is left";
}

// The example of its README: two layers of 12 experts in 4 groups, 16 replicas on 2 nodes of 4 GPUs.
TEST(Eplb, PlacesTheExampleOfItsAuthors) {
  const std::vector<std::int64_t> first{90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86},
      second{20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
  EXPECT_THAT(eplb(first, 16, 4, 2, 8), ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(eplb(second, 16, 4, 2, 8), ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
}

// 64 experts of Zipf's popularities on 8 ranks, each expert once: what packing can do, and no more where one expert
// alone is more than a rank's share.
TEST(Eplb, PacksAsWellAsExpertsLetIt) {
  for (const auto& [s, ratio] : {std::pair{0.5, 1.11}, {0.8, 1.43}, {1.0, 1.88}, {1.2, 2.46}, {1.5, 3.43}}) {
    RoutingGenerator g;
    g.experts = 64;
    g.zipf_exponent = s;
    std::vector<std::int64_t> loads;
    const std::vector<double> popularity = routing_popularity(g, 0).front();
    for (const double share : popularity) loads.push_back(std::llround(share * 1e9));
    EXPECT_NEAR(balance_ratio({64, 8, 8, eplb(loads, 64, 1, 1, 8)}, loads), ratio, 0.01) << s;
  }
}

TEST(Eplb, BalancesRanks) {
  RoutingGenerator g;
  g.experts = 64;
  g.tokens = 1 << 16;
  g.zipf_exponent = 1;
  const std::vector<std::int64_t> loads = drawn_routing(g).matrix(0, 0).tokens;
  const auto ratio = [&](std::int64_t replicas, std::int64_t groups, std::int64_t nodes) {
    return balance_ratio({64, 8, replicas / 8, eplb(loads, replicas, groups, nodes, 8)}, loads);
  };
  EXPECT_NEAR(ratio(64, 1, 1), 1.88, 0.03) << "each expert once: the most popular alone is 1.69 of a rank's mean";
  EXPECT_LT(ratio(80, 1, 1), 1.05);
  EXPECT_LT(ratio(80, 1, 1), ratio(80, 8, 2)) << "groups that stay on a node leave less choice";
  EXPECT_EQ(ratio(80, 3, 2), ratio(80, 1, 1)) << "nodes that do not divide groups are one";
}

TEST(Eplb, RefusesWhatDoesNotDivide) {
  const std::vector<std::int64_t> loads(12, 1);
  EXPECT_THROW(eplb(loads, 16, 5, 1, 8), InputError);
  EXPECT_THROW(eplb(loads, 15, 4, 2, 8), InputError);
  EXPECT_THROW(eplb(loads, 16, 4, 2, 3), InputError);
  EXPECT_THROW(eplb(loads, 8, 4, 2, 8), InputError);
  EXPECT_THROW(eplb(loads, 16, 4, 0, 8), InputError);
}

TEST(PlacementByPopularity, GivesSlotsInProportionAndOneToAll) {
  EXPECT_THAT(slots_by_popularity(std::vector<std::int64_t>{400, 200, 200, 0}, 9), ElementsAre(4, 2, 2, 1));
  EXPECT_THAT(slots_by_popularity(std::vector<std::int64_t>{700, 290, 10, 0}, 8), ElementsAre(5, 1, 1, 1));
  EXPECT_THAT(slots_by_popularity(std::vector<std::int64_t>{0, 0}, 4), ElementsAre(2, 2));
  EXPECT_THROW(slots_by_popularity(std::vector<std::int64_t>{1, 1}, 1), InputError);
  EXPECT_THAT(place_by_popularity(std::vector<std::int64_t>{400, 200, 200, 0}, 3, 3).ranks_of(0), ElementsAre(0, 1));
}

// Placing anew in every iteration, by the iteration before: near balance where popularities drift, and always better
// than what was best 50 iterations ago.
TEST(PlacementByPopularity, FollowsDriftIterationByIteration) {
  RoutingGenerator g = generator_of(ExpertRouting::young_router);
  g.experts = 32;
  g.tokens = 1 << 14;
  g.autocorrelation = 0.97;
  const RoutingCounts counts = drawn_routing(g, 120);
  const auto mean_ratio = [&](std::size_t interval) {
    double sum = 0;
    for (std::size_t step = 50; step < 120; ++step) {
      const std::size_t seen = (step - 1) / interval * interval;
      sum +=
          balance_ratio(place_by_popularity(counts.matrix(seen, 0).tokens, 16, 4), counts.matrix(step, 0).tokens) / 70;
    }
    return sum;
  };
  const double blocks = balance_ratio(ExpertPlacement::in_blocks(32, 16, 4), counts.matrix(60, 0).tokens);
  EXPECT_LT(mean_ratio(1), mean_ratio(10));
  EXPECT_LT(mean_ratio(10), mean_ratio(50));
  EXPECT_LT(mean_ratio(50), blocks);
}

}  // namespace
}  // namespace orrery::flexmoe
