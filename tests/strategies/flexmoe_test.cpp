// FlexMoE: what a placement is, what it costs, and whether the scheduler makes layers faster by it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "strategies/flexmoe/placement.h"
#include "tests/traces/drawn_routing.h"

namespace orrery::flexmoe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using Kind = Adjustment::Kind;

std::string refused(const auto& act) {
  try {
    act();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

RoutingMatrix skewed(std::int64_t ranks, std::int64_t experts, double zipf_exponent, std::uint64_t seed = 1) {
  RoutingGenerator g;
  g.source_ranks = ranks;
  g.experts = experts;
  g.tokens = 4096;
  g.top_k = 2;
  g.zipf_exponent = zipf_exponent;
  g.seed = seed;
  return drawn_routing(g).matrix(0, 0);
}

// Nodes of four ranks, links of 200 and 25 GB/s.
LayerProfile profile() {
  LayerProfile p;
  p.tokens_per_second = 5e6;
  p.token_bytes = 4096;
  p.gradient_bytes = 32e6;
  p.bytes_per_second = [](std::int64_t from, std::int64_t to) { return from / 4 == to / 4 ? 200e9 : 25e9; };
  p.all_reduced_bytes_per_second = [](const std::vector<std::int64_t>& ranks) {
    return ranks.front() / 4 == ranks.back() / 4 ? 100e9 : 20e9;
  };
  return p;
}

TEST(ExpertPlacement, PutsBlocksOfExpertsOnRanks) {
  const ExpertPlacement p = ExpertPlacement::in_blocks(6, 3, 4);
  EXPECT_THAT(p.ranks_of(0), ElementsAre(0));
  EXPECT_THAT(p.ranks_of(5), ElementsAre(2));
  EXPECT_EQ(p.free_slots(1), 2);
  EXPECT_THAT(refused([] { ExpertPlacement::in_blocks(6, 4, 4); }),
              HasSubstr("found 6 experts, expected a multiple of 4"));
  EXPECT_THAT(refused([] { ExpertPlacement(7, 3, 2); }), HasSubstr("at least one slot for each of 7 experts"));
}

TEST(ExpertPlacement, DividesAnExpertsTokensEvenlyAmongItsVExperts) {
  ExpertPlacement p = ExpertPlacement::in_blocks(3, 3, 3);
  p.expand(0, 1);
  p.expand(0, 1);
  EXPECT_THAT(rank_loads(p, std::vector<std::int64_t>{90, 10, 20}), ElementsAre(30, 70, 20));
  EXPECT_DOUBLE_EQ(balance_ratio(p, std::vector<std::int64_t>{90, 10, 20}), 70.0 / 40);
  p.shrink(0, 0);
  EXPECT_THAT(p.ranks_of(0), ElementsAre(1));
  EXPECT_THAT(rank_loads(p, std::vector<std::int64_t>{90, 10, 20}), ElementsAre(0, 100, 20));
  p.migrate(0, 1, 2, 2);
  EXPECT_THAT(p.ranks_of(0), ElementsAre(1, 2));
  EXPECT_THAT(p.ranks_of(2), ElementsAre(1));
  EXPECT_THAT(rank_loads(p, std::vector<std::int64_t>{90, 10, 20}), ElementsAre(0, 75, 45));
}

TEST(ExpertPlacement, RefusesExpertsWithoutAReplica) {
  EXPECT_THAT(refused([] {
                ExpertPlacement(3, 2, 2, std::vector<std::int64_t>{0, 1, 1, -1});
              }),
              HasSubstr("found no replica of expert 2, expected at least one of every expert"));
  const ExpertPlacement empty(3, 2, 2);
  EXPECT_THAT(refused([&] {
                rank_loads(empty, std::vector<std::int64_t>{1, 1, 1});
              }),
              HasSubstr("no replica of expert 0"));
  EXPECT_THAT(refused([&] { cost_of(profile(), 2)(empty, skewed(2, 3, 1)); }), HasSubstr("no replica of expert 0"));
  EXPECT_THAT(refused([] {
                ExpertPlacement(3, 2, 2, std::vector<std::int64_t>{0, 1, 2, 3});
              }),
              HasSubstr("expert 3 in slot 3"));
}

TEST(ExpertPlacement, RefusesChangesThatCannotBe) {
  ExpertPlacement p = ExpertPlacement::in_blocks(2, 2, 1);
  const ExpertPlacement before = p;
  EXPECT_THAT(refused([&] { p.expand(0, 1); }), HasSubstr("no free slot for expert 0 on rank 1"));
  EXPECT_THAT(refused([&] { p.shrink(0, 0); }), HasSubstr("the last vExpert of expert 0"));
  EXPECT_THAT(refused([&] { p.shrink(0, 1); }), HasSubstr("no vExpert of expert 0 on rank 1"));
  EXPECT_THAT(refused([&] { p.migrate(0, 0, 1, 0); }), HasSubstr("no vExpert of expert 1 on rank 0"));
  EXPECT_EQ(p, before);
}

TEST(ExpertPlacement, SaysWhichWeightsAChangeSends) {
  const ExpertPlacement from(3, 2, 3, std::vector<std::int64_t>{0, 1, -1, 2, -1, -1});
  const ExpertPlacement to(3, 2, 3, std::vector<std::int64_t>{0, 0, 2, 2, 0, 1});
  EXPECT_THAT(new_copies(from, to), ElementsAre(Pair(0, 1), Pair(1, 1), Pair(2, 0)));
  EXPECT_THAT(new_copies(to, to), IsEmpty());
}

// Graham 1969: jobs of 5 5 4 4 3 3 3 on three machines take 11 by longest first, 9 at best.
// Equations 5 and 7 to 9, by hand: expert 0 on both ranks, expert 1 on rank 1.
TEST(ExpertPlacement, CostsWhatItsSlowestRankDoes) {
  const ExpertPlacement p(2, 2, 2, std::vector<std::int64_t>{0, -1, 0, 1});
  const RoutingMatrix tokens{2, 2, {600, 100, 200, 300}};
  LayerProfile one;
  one.tokens_per_second = 1000;
  one.token_bytes = 10;
  one.gradient_bytes = 5000;
  one.bytes_per_second = [](auto, auto) { return 1e4; };
  one.all_reduced_bytes_per_second = [](const auto& ranks) { return 1e4 * static_cast<double>(ranks.size()) / 2; };
  // Rank 1: computes 3 (400 + 400) / 1000, receives 4 (300 + 100) 10 / 1e4, reduces 5000 / 1e4.
  EXPECT_DOUBLE_EQ(cost_of(one, 2)(p, tokens), 2.4 + 1.6 + 0.5);
  EXPECT_THAT(refused([&] { cost_of(one, 3)(p, tokens); }), HasSubstr("found a placement on 2 ranks"));
  EXPECT_THAT(refused([&] { cost_of(one, 2)(p, skewed(3, 2, 1)); }), HasSubstr("tokens of 3 ranks for 2 experts"));
}

TEST(FlexMoe, ExpandsThePopularAndShrinksTheUnpopular) {
  // Expert 0 has nearly all tokens; every slot is taken, expert 2 has two of them.
  const ExpertPlacement p(3, 2, 2, std::vector<std::int64_t>{0, 1, 2, 2});
  RoutingMatrix tokens{2, 3, {1000, 10, 10, 1000, 10, 10}};
  LayerProfile cheap = profile();
  cheap.gradient_bytes = 0;
  EXPECT_THAT(make_plan(p, tokens, cost_of(cheap, 2)),
              ElementsAre(Adjustment{Kind::shrink, 2, 1}, Adjustment{Kind::expand, 0, 1}));
  cheap.gradient_bytes = 1e12;  // to be all-reduced once two ranks have the expert
  EXPECT_THAT(make_plan(p, tokens, cost_of(cheap, 2)), IsEmpty());
}

TEST(FlexMoe, ExpandsWithinTheNodeWhereAllReducingIsCheaper) {
  const ExpertPlacement p = ExpertPlacement::in_blocks(8, 8, 2);
  RoutingMatrix tokens{8, 8, std::vector<std::int64_t>(64, 100)};
  for (std::int64_t rank = 0; rank < 8; ++rank) tokens.tokens[static_cast<std::size_t>(rank * 8 + 5)] = 5000;
  const std::vector<Adjustment> plan = make_plan(p, tokens, cost_of(profile(), 8));
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan.front().kind, Kind::expand);
  EXPECT_EQ(plan.front().expert, 5);
  EXPECT_EQ(plan.front().rank / 4, 1);
}

TEST(FlexMoe, SchedulesUntilRanksAreBalancedOrNothingIsGained) {
  for (const double s : {0.8, 1.3, 2.4})
    for (const std::uint64_t seed : {1u, 2u, 3u}) {
      const RoutingMatrix tokens = skewed(8, 16, s, seed);
      const ExpertPlacement before = ExpertPlacement::in_blocks(16, 8, 4);
      const PlacementCost cost = cost_of(profile(), 8);
      const PlacementChange made = schedule(before, tokens, cost, 1.2);
      ASSERT_FALSE(made.adjustments.empty());
      ExpertPlacement replayed = before;
      double seconds = cost(before, tokens);
      for (std::size_t i = 0; i < made.adjustments.size(); ++i) {
        apply(made.adjustments[i], replayed);
        if (made.adjustments[i].kind == Kind::shrink) continue;  // the other half of a plan
        EXPECT_LT(cost(replayed, tokens), seconds) << i;
        seconds = cost(replayed, tokens);
      }
      EXPECT_EQ(replayed, made.placement);
      EXPECT_EQ(seconds, cost(made.placement, tokens));
      made.placement.check();
      EXPECT_LT(made.balance_after, made.balance_before);
      EXPECT_TRUE(made.balance_after <= 1.2 || make_plan(made.placement, tokens, cost).empty());
      EXPECT_THAT(schedule(before, tokens, cost, made.balance_before).adjustments, IsEmpty()) << "not triggered";
    }
  EXPECT_THAT(
      refused([] { schedule(ExpertPlacement::in_blocks(2, 2, 1), skewed(2, 2, 1), cost_of(profile(), 2), 0.9); }),
      HasSubstr("at least 1"));
}

// Two experts of one rank, neither of which has the most tokens of all.
TEST(FlexMoe, FindsTheBusiestRanksExpertWhereThePaperDoesNot) {
  const ExpertPlacement p(4, 3, 3, std::vector<std::int64_t>{0, -1, -1, 1, 2, -1, 3, -1, -1});
  RoutingMatrix tokens{3, 4, {}};
  for (std::int64_t rank = 0; rank < 3; ++rank)
    for (const std::int64_t t : {1000, 800, 900, 100}) tokens.tokens.push_back(t);
  LayerProfile free = profile();
  free.gradient_bytes = 0;
  const PlacementCost cost = cost_of(free, 3);
  EXPECT_THAT(make_plan(p, tokens, cost), IsEmpty()) << "expert 0 has the most, and rank 1 is as slow";
  EXPECT_THAT(make_plan(p, tokens, cost, true), ElementsAre(Adjustment{Kind::expand, 2, 2}));
  EXPECT_LT(schedule(p, tokens, cost, 1.2, true).balance_after, schedule(p, tokens, cost, 1.2).balance_after);
}

TEST(FlexMoe, LeavesBalancedRoutingAlone) {
  const RoutingMatrix tokens{4, 8, std::vector<std::int64_t>(32, 50)};
  const PlacementChange made = schedule(ExpertPlacement::in_blocks(8, 4, 3), tokens, cost_of(profile(), 4), 1.2);
  EXPECT_THAT(made.adjustments, IsEmpty());
  EXPECT_EQ(made.balance_before, 1);
}

TEST(FlexMoe, GathersReplicasWhereTheyAreReducedFaster) {
  // Experts 0 and 1 lie on rank 0 and on rank 4 of the other node each: exchanged, neither is all-reduced at all.
  std::vector<std::int64_t> slots{0, 1, 2, -1, 3, -1, 4, -1, 0, 1, 5, -1, 6, -1, 7, -1};
  ExpertPlacement p(8, 8, 2, slots);
  const RoutingMatrix tokens{8, 8, std::vector<std::int64_t>(64, 100)};
  const PlacementCost cost = cost_of(profile(), 8);
  const double before = cost(p, tokens);
  EXPECT_THAT(gather_replicas(p, tokens, cost), ElementsAre(Adjustment{Kind::migrate, 0, 0, 1, 4}));
  EXPECT_LT(cost(p, tokens), before);
  EXPECT_THAT(p.ranks_of(0), ElementsAre(4));
  EXPECT_THAT(p.ranks_of(1), ElementsAre(0));
}

}  // namespace
}  // namespace orrery::flexmoe
