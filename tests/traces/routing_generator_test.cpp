// Is drawn routing what it says: its sums, its skew, its drift, and the same on every machine?
#include "traces/routing_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

namespace orrery {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

RoutingGenerator generator_of(RoutingPattern pattern) {
  RoutingGenerator g;
  g.pattern = pattern;
  g.steps = 6;
  g.layers = 2;
  g.micro_batches = 2;
  g.source_ranks = 4;
  g.tokens = 512;
  g.experts = 16;
  g.top_k = 2;
  g.zipf_exponent = 1;
  g.noise = 0.3;
  g.autocorrelation = 0.9;
  g.expert_ranks = 4;
  g.period = 3;
  return g;
}

const std::vector<RoutingPattern> kAll{RoutingPattern::balanced, RoutingPattern::zipf,   RoutingPattern::hot_expert,
                                       RoutingPattern::hot_rank, RoutingPattern::ragged, RoutingPattern::rotating,
                                       RoutingPattern::burst};

// That each row's counts are top_k of each token, no expert has a token twice, and none is negative, append checks.
TEST(RoutingGenerator, RoutesEveryTokenOfEveryPattern) {
  for (const RoutingPattern pattern : kAll) {
    const RoutingGenerator g = generator_of(pattern);
    const RoutingCounts counts = generate_routing(g);
    ASSERT_TRUE(counts.complete());
    for (std::size_t step = 0; step < 6; ++step)
      for (std::size_t layer = 0; layer < 2; ++layer) EXPECT_EQ(counts.matrix(step, layer).total(), 512 * 4 * 2 * 2);
  }
}

TEST(RoutingGenerator, GivesTheSameBitsForTheSameSeed) {
  for (const RoutingPattern pattern : kAll) {
    RoutingGenerator g = generator_of(pattern);
    const RoutingCounts counts = generate_routing(g);
    EXPECT_EQ(counts, generate_routing(g));
    g.seed = 2;
    EXPECT_EQ(counts == generate_routing(g), pattern == RoutingPattern::balanced);
  }
  // On every platform: a golden row of each kind of draw.
  RoutingGenerator g = generator_of(RoutingPattern::ragged);
  const RoutingMatrix matrix = generate_routing(g).matrix(5, 1, 1);
  EXPECT_THAT(matrix.by_expert(),
              ElementsAre(120, 201, 246, 888, 647, 158, 99, 230, 359, 149, 119, 84, 446, 141, 67, 142));
}

TEST(RoutingGenerator, DrawsMoreWithoutChangingWhatItDrewBefore) {
  const RoutingGenerator g = generator_of(RoutingPattern::burst);
  const RoutingCounts counts = generate_routing(g);
  RoutingGenerator more = g;
  more.steps += 2;
  more.layers += 1;
  more.micro_batches += 1;
  more.source_ranks += 3;
  const RoutingCounts larger = generate_routing(more);
  std::vector<std::int64_t> few(16), many(16);
  for (std::size_t step = 0; step < 6; ++step)
    for (std::size_t layer = 0; layer < 2; ++layer)
      for (std::int64_t m = 0; m < 2; ++m)
        for (std::int64_t rank = 0; rank < 4; ++rank) {
          counts.read(step, layer, m, rank, few);
          larger.read(step, layer, m, rank, many);
          ASSERT_EQ(few, many);
        }
}

TEST(RoutingGenerator, BalancesToOneToken) {
  RoutingGenerator g = generator_of(RoutingPattern::balanced);
  g.tokens = 101;  // 202 assignments of a row, 808 of a micro-batch, over 16 experts
  const RoutingMatrix matrix = generate_routing(g).matrix(0, 0, 0);
  for (const std::int64_t count : matrix.tokens) EXPECT_TRUE(count == 12 || count == 13) << count;
  for (const std::int64_t count : matrix.by_expert()) EXPECT_TRUE(count == 50 || count == 51) << count;
}

// Of 64 experts the most popular has 64 / H(64, s) of the mean.
TEST(RoutingGenerator, HasTheSkewOfZipfsLaw) {
  for (const auto& [s, expected] : {std::pair{0.5, 4.4}, {0.8, 9.1}, {1.0, 13.5}, {1.2, 18.7}, {1.5, 27.1}}) {
    RoutingGenerator g;
    g.experts = 64;
    g.tokens = 1 << 18;
    g.source_ranks = 4;
    g.zipf_exponent = s;
    EXPECT_NEAR(max_over_mean(generate_routing(g).matrix(0, 0).by_expert()), expected, 0.01 * expected) << s;
    EXPECT_NEAR(max_over_mean(routing_popularity(g, 0).front()), expected, 0.05) << s;
  }
}

// A multinomial's means and variances, of one draw per token.
TEST(RoutingGenerator, DrawsRowsOfIndependentTokens) {
  RoutingGenerator g;
  g.experts = 8;
  g.zipf_exponent = 1;
  g.tokens = 1000;
  g.source_ranks = 4000;  // as many rows of one popularity
  const RoutingMatrix matrix = generate_routing(g).matrix(0, 0);
  const std::vector<double> p = routing_popularity(g, 0).front();
  for (std::int64_t e = 0; e < 8; ++e) {
    double sum = 0, squares = 0;
    for (std::int64_t row = 0; row < g.source_ranks; ++row) {
      const auto count = static_cast<double>(matrix.at(row, e));
      sum += count;
      squares += count * count;
    }
    const double mean = sum / 4000, variance = squares / 4000 - mean * mean;
    const double share = p[static_cast<std::size_t>(e)], expected = 1000 * share * (1 - share);
    EXPECT_NEAR(mean, 1000 * share, 4 * std::sqrt(expected / 4000)) << e;
    EXPECT_NEAR(variance, expected, 4 * expected * std::sqrt(2.0 / 4000)) << e;
  }
}

// Two different ones of three whose p goes as 6, 3, 2: pairs go as 18, 12 and 6 of 36.
TEST(RoutingGenerator, DrawsDifferentExpertsForAToken) {
  RoutingGenerator g;
  g.experts = 3;
  g.top_k = 2;
  g.zipf_exponent = 1;
  g.tokens = 1 << 20;
  std::vector<double> p = routing_popularity(g, 0).front();
  std::vector<std::int64_t> counts = generate_routing(g).matrix(0, 0).tokens;
  std::sort(p.begin(), p.end());
  EXPECT_NEAR(p[0], 2.0 / 11, 1e-12);
  std::sort(counts.begin(), counts.end());
  for (const auto& [at, share] : {std::pair{0, 18.0 / 36}, {1, 24.0 / 36}, {2, 30.0 / 36}})
    EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(at)]) / (1 << 20), share, 0.002) << at;
  g.top_k = 3;
  EXPECT_THAT(generate_routing(g).matrix(0, 0).tokens, Each(1 << 20));
}

// The correlation of log-popularity a step and five steps apart is rho and rho^5; its standard deviation is `noise`.
TEST(RoutingGenerator, DriftsAsItsAutocorrelationSays) {
  for (const double rho : {0.0, 0.9, 0.99}) {
    RoutingGenerator g;
    g.experts = 64;
    g.steps = 800;
    g.noise = 0.5;
    g.autocorrelation = rho;
    std::vector<std::vector<double>> noise = routing_popularity(g, 0);
    for (std::vector<double>& p : noise) {  // the mean of 64 logarithms goes with their normalisation
      double mean = 0;
      for (double& share : p) mean += (share = std::log(share)) / 64;
      for (double& u : p) u -= mean;
    }
    const auto product = [&](std::size_t lag) {
      double sum = 0;
      for (std::size_t t = 0; t + lag < noise.size(); ++t)
        for (std::size_t e = 0; e < 64; ++e) sum += noise[t][e] * noise[t + lag][e];
      return sum / static_cast<double>((noise.size() - lag) * 63);
    };
    EXPECT_NEAR(std::sqrt(product(0)), 0.5, 0.03) << rho;
    EXPECT_NEAR(product(1) / product(0), rho, 0.01) << rho;
    EXPECT_NEAR(product(5) / product(0), std::pow(rho, 5), 0.02) << rho;
  }
}

// Noise is a chain through all steps, but what a late step has must not cost those before it.
TEST(RoutingGenerator, ALateStepIsWhatItIsWithoutThoseBefore) {
  RoutingGenerator g;
  g.experts = 2;
  g.tokens = 1 << 20;
  g.noise = 0.5;
  for (const double rho : {0.0, 0.9, 0.999}) {
    g.autocorrelation = rho;
    const bool is_short = rho < 0.99;
    const std::int64_t late = is_short ? 2000 : std::int64_t{1} << 40;
    RoutingSteps ascending(g), alone(g);
    for (std::int64_t step = late - (is_short ? 2000 : 3); step < late; ++step) ascending.at(step);
    EXPECT_EQ(alone.at(late).front().tokens, ascending.at(late).front().tokens) << rho;
    EXPECT_EQ(alone.at(late - 1).front().tokens, ascending.at(late - 1).front().tokens) << "backwards, " << rho;
  }
  // The chain that a step has begins somewhere else every few hundred steps, and nobody can tell.
  g.experts = 1024;
  g.autocorrelation = 0.9;
  g.steps = 1060;
  const std::vector<std::vector<double>> shares = routing_popularity(g, 0);
  for (std::size_t step = 1040; step < 1060; ++step) {
    double product = 0, square = 0;
    for (std::size_t e = 0; e < shares[step].size(); ++e) {
      const double mean = std::log(1.0 / 1024), now = std::log(shares[step][e]) - mean,
                   before = std::log(shares[step - 1][e]) - mean;
      product += now * before;
      square += before * before;
    }
    EXPECT_NEAR(product / square, 0.9, 0.05) << step;
  }
}

TEST(RoutingGenerator, HeatsAnExpertOrARanksExperts) {
  RoutingGenerator g = generator_of(RoutingPattern::hot_expert);
  g.top_k = 1;
  g.tokens = 1 << 16;
  g.hot = 5;
  g.hot_share = 0.6;
  const auto share = [&](std::int64_t first, std::int64_t end) {
    const RoutingMatrix matrix = generate_routing(g).matrix(3, 1);
    std::int64_t sum = 0;
    for (std::int64_t e = first; e < end; ++e) sum += matrix.of_expert(e);
    return static_cast<double>(sum) / static_cast<double>(matrix.total());
  };
  EXPECT_NEAR(share(5, 6), 0.6, 0.005);
  g.pattern = RoutingPattern::hot_rank;
  g.hot = 2;
  EXPECT_NEAR(share(8, 12), 0.6, 0.005);
}

TEST(RoutingGenerator, MakesSourceRanksRagged) {
  RoutingGenerator g = generator_of(RoutingPattern::ragged);
  g.source_ranks = 64;
  g.raggedness = 0.4;
  const RoutingCounts counts = generate_routing(g);
  std::vector<std::int64_t> tokens;
  for (std::int64_t rank = 0; rank < 64; ++rank) {
    tokens.push_back(counts.tokens(1, 0, 1, rank));
    EXPECT_EQ(tokens.back(), counts.tokens(1, 1, 1, rank)) << "layers route the same tokens";
  }
  EXPECT_EQ(std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), 64 * 512);
  const auto [least, most] = std::minmax_element(tokens.begin(), tokens.end());
  EXPECT_LT(*least, 512 * 0.75);
  EXPECT_GT(*most, 512 * 1.25);
  EXPECT_GT(*least, 512 * 0.6 * 0.85);
  EXPECT_LT(*most, 512 * 1.4 * 1.15);
}

std::size_t hottest(const std::vector<double>& p) {
  return static_cast<std::size_t>(std::max_element(p.begin(), p.end()) - p.begin());
}

TEST(RoutingGenerator, RotatesTheOrderOfExperts) {
  RoutingGenerator g = generator_of(RoutingPattern::rotating);
  g.noise = 0;
  g.steps = 3 * 16 + 1;
  const auto p = routing_popularity(g, 0);
  std::vector<int> times(16);
  for (std::size_t step = 0; step < 48; ++step) ++times[hottest(p[step])];
  EXPECT_THAT(times, Each(3)) << "each in turn is the most popular for a period";
  EXPECT_EQ(p[0], p[2]);
  EXPECT_NE(p[0], p[3]);
  EXPECT_EQ(p[0], p[48]);
}

TEST(RoutingGenerator, BurstsAtTheEndOfAPeriod) {
  RoutingGenerator g = generator_of(RoutingPattern::burst);
  g.noise = 0;
  g.steps = 60;
  g.period = 6;
  g.burst_steps = 2;
  g.hot_share = 0.9;
  const auto p = routing_popularity(g, 1);
  std::vector<std::size_t> hot;
  for (std::size_t step = 0; step < 60; ++step) {
    const double largest = p[step][hottest(p[step])];
    if (step % 6 < 4)
      EXPECT_LT(largest, 0.4) << step;
    else
      EXPECT_NEAR(largest, 0.9, 1e-12) << step;
    if (step % 6 == 5) {
      EXPECT_EQ(hottest(p[step]), hottest(p[step - 1])) << "one expert a burst";
      hot.push_back(hottest(p[step]));
    }
  }
  std::sort(hot.begin(), hot.end());
  EXPECT_GT(std::unique(hot.begin(), hot.end()) - hot.begin(), 3) << "and another in the next";
}

TEST(RoutingGenerator, HasPresetsOfMeasuredRouting) {
  EXPECT_EQ(routing_preset("young_router").zipf_exponent, 1.3);
  EXPECT_EQ(routing_preset("worst").zipf_exponent, 2.4);
  const RoutingGenerator trained = routing_preset("trained_with_auxiliary_loss");
  EXPECT_GE(trained.zipf_exponent, 0.3);
  EXPECT_LE(trained.zipf_exponent, 0.5);
  EXPECT_EQ(trained.autocorrelation, 0.99);
  EXPECT_EQ(routing_preset("balanced").pattern, RoutingPattern::balanced);
  try {
    routing_preset("young-router");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_EQ(error.nearest(), "young_router");
  }
}

// Lazarus (Fig. 2): up to 87 % of tokens to 2 of 16 experts.
TEST(RoutingGenerator, WorstIsAsSkewedAsWasMeasured) {
  RoutingGenerator g = routing_preset("worst");
  g.noise = 0;
  g.experts = 16;
  std::vector<double> p = routing_popularity(g, 0).front();
  std::sort(p.rbegin(), p.rend());
  EXPECT_NEAR(p[0] + p[1], 0.87, 0.01);
}

TEST(RoutingGenerator, RefusesWhatItCannotDraw) {
  const auto refusal = [](auto change) {
    RoutingGenerator g = generator_of(RoutingPattern::hot_rank);
    change(g);
    try {
      generate_routing(g);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal([](RoutingGenerator&) {}), "accepted");
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.top_k = 17; }), HasSubstr("/top_k: found 17, expected 1 to 16"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.autocorrelation = 1; }), HasSubstr("expected 0 to below 1"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.zipf_exponent = std::nan(""); }), HasSubstr("/zipf_exponent"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.expert_ranks = 3; }), HasSubstr("a divisor of 16 experts"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.hot = 4; }), HasSubstr("/hot: found 4, expected 0 to 3"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.hot_share = 1; }), HasSubstr("/hot_share"));
  EXPECT_THAT(refusal([](RoutingGenerator& g) { g.burst_steps = 4; }),
              HasSubstr("/burst_steps: found 4, expected 1 to 3"));
}

}  // namespace
}  // namespace orrery
