// Do flows that start at once fare as by hand?
#include "sim/des/fair_flows.h"

#include <gmock/gmock.h>

namespace orrery {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::Pointwise;

struct Flows {
  explicit Flows(std::vector<double> rates) : binds(rates.size(), 1) {
    for (const double rate : rates) links.emplace_back().bytes_per_second = rate;
  }
  void add(double of_bytes, std::vector<LinkTraffic> loads) {
    numbers.push_back(static_cast<std::uint32_t>(classes.size()));
    classes.emplace_back().loads = std::move(loads);
    bytes.push_back(of_bytes);
  }
  FairFlows made() const { return {classes, links, binds, numbers, bytes}; }

  std::vector<LinkClass> links;
  std::vector<char> binds;
  std::vector<FlowClass> classes;
  std::vector<std::uint32_t> numbers;
  std::vector<double> bytes;
};

auto are(std::vector<double> values) { return Pointwise(testing::DoubleEq(), std::move(values)); }

TEST(FairFlows, TheShorterOfTwoLeavesItsHalfToTheOther) {
  Flows flows({2});
  flows.add(1, {{0, 1}});
  flows.add(3, {{0, 1}});
  const FairFlows fair = flows.made();
  EXPECT_TRUE(fair.share());
  std::vector<double> left, seconds;
  fair.run(left, seconds);
  EXPECT_THAT(seconds, are({1, 2}));
  fair.run(1.5, left, seconds);
  EXPECT_THAT(left, ElementsAre(0, DoubleNear(1, 1e-12)));
  EXPECT_EQ(seconds[0], 1);
  fair.run(0.25, left, seconds);
  EXPECT_THAT(left, are({0.75, 2.75}));
}

// Bound by the narrow link, the second leaves the third more of the wide one.
TEST(FairFlows, ShareMaxMinFairly) {
  Flows flows({1, 2});
  flows.add(1, {{0, 1}});
  flows.add(1, {{0, 1}, {1, 1}});
  flows.add(6, {{1, 1}});
  std::vector<double> left, seconds;
  flows.made().run(left, seconds);
  EXPECT_THAT(seconds, are({2, 2, 3.5}));  // 0.5, 0.5 and 1.5; then 2
}

// A class of four flows takes four shares, and links that never bind take none.
TEST(FairFlows, OfAClassPassALinkAsOftenAsItSays) {
  Flows flows({5, 1});
  flows.binds[1] = 0;
  flows.add(1, {{0, 4}, {1, 1}});
  flows.add(2, {{0, 1}});
  const FairFlows fair = flows.made();
  EXPECT_THAT(fair.links(), ElementsAre(0u));
  std::vector<double> left, seconds;
  fair.run(left, seconds);
  EXPECT_THAT(seconds, are({1, 1.2}));
}

// Two flows that another link holds to half of its rate each take 1 of 5; the third has what is left.
TEST(FairFlows, OfAClassLeaveWhatTheyDoNotTake) {
  Flows flows({1, 5});
  flows.add(1, {{0, 2}, {1, 2}});
  flows.add(8, {{1, 1}});
  std::vector<double> left, seconds;
  flows.made().run(left, seconds);
  EXPECT_THAT(seconds, are({2, 2}));
}

TEST(FairFlows, ThatMeetNowhereAreToldApart) {
  Flows flows({1, 1});
  flows.add(1, {{0, 1}});
  flows.add(1, {{1, 3}});
  EXPECT_FALSE(flows.made().share());
}

}  // namespace
}  // namespace orrery
