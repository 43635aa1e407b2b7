// Is generated routing what it says: its sums, its skew, its drift, and the same on every machine?
#include "traces/routing_generator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "tests/traces/drawn_routing.h"

namespace orrery {
namespace {

using testing::Each;
using testing::ElementsAre;

RoutingGenerator small_generator(ExpertRouting pattern) {
  RoutingGenerator g = generator_of(pattern);
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

const std::vector<ExpertRouting> kAll{ExpertRouting::balanced, ExpertRouting::zipf,   ExpertRouting::hot_expert,
                                      ExpertRouting::hot_rank, ExpertRouting::ragged, ExpertRouting::rotating,
                                      ExpertRouting::burst};

TEST(RoutingGenerator, RoutesEveryTokenOfEveryPattern) {
  for (const ExpertRouting pattern : kAll) {
    RoutingSteps routing(small_generator(pattern));
    const std::int64_t ranks = pattern == ExpertRouting::ragged ? 4 : 1;
    for (std::int64_t step = 0; step < 6; ++step)
      for (const std::vector<RoutingMatrix>& of_layers : routing.by_micro_batch(step)) {
        ASSERT_EQ(of_layers.size(), 2u);
        for (const RoutingMatrix& matrix : of_layers) {
          EXPECT_EQ(matrix.source_ranks, ranks);
          // Each expert's expected number is rounded.
          EXPECT_NEAR(static_cast<double>(matrix.total()), 512 * 2 * static_cast<double>(ranks),
                      8 * static_cast<double>(ranks));
          for (const std::int64_t count : matrix.tokens) {
            EXPECT_GE(count, 0);
            // Ragged ranks have up to half as many more tokens, before the mean is restored.
            EXPECT_LE(count, ranks == 1 ? 512 : 1024) << "no expert twice";
          }
        }
      }
  }
}

TEST(RoutingGenerator, GivesTheSameBitsForTheSameSeed) {
  const auto counts = [](const RoutingGenerator& g) { return RoutingSteps(g).at(5)[1].tokens; };
  for (const ExpertRouting pattern : kAll) {
    RoutingGenerator g = small_generator(pattern);
    const std::vector<std::int64_t> before = counts(g);
    EXPECT_EQ(before, counts(g));
    g.seed = 2;
    EXPECT_EQ(before == counts(g), pattern == ExpertRouting::balanced);
  }
  // On every platform: a golden matrix, of each kind of draw.
  RoutingGenerator g = small_generator(ExpertRouting::ragged);
  g.micro_batch_noise = 0.2;
  RoutingSteps ragged(g);
  EXPECT_THAT(ragged.by_micro_batch(5)[1][1].by_expert(),
              ElementsAre(104, 114, 275, 978, 620, 165, 95, 224, 360, 137, 111, 102, 448, 133, 57, 172));
}

TEST(RoutingGenerator, HasMoreLayersAndMicroBatchesWithoutChangingTheOthers) {
  RoutingGenerator g = small_generator(ExpertRouting::burst);
  g.micro_batch_noise = 0.2;
  RoutingGenerator more = g;
  more.layers += 1;
  more.micro_batches += 1;
  RoutingSteps few(g), many(more);
  for (std::int64_t step = 0; step < 6; ++step)
    for (std::size_t m = 0; m < 2; ++m)
      for (std::size_t layer = 0; layer < 2; ++layer)
        ASSERT_EQ(few.by_micro_batch(step)[m][layer].tokens, many.by_micro_batch(step)[m][layer].tokens);
}

TEST(RoutingGenerator, BalancesToOneToken) {
  RoutingGenerator g = small_generator(ExpertRouting::balanced);
  g.tokens = 101;  // 202 assignments over 16 experts
  const RoutingMatrix matrix = RoutingSteps(g).at(0)[0];
  for (const std::int64_t count : matrix.tokens) EXPECT_TRUE(count == 12 || count == 13) << count;
  EXPECT_EQ(matrix.total(), 202);
}

// Of 64 experts the most popular has 64 / H(64, s) of the mean.
TEST(RoutingGenerator, HasTheSkewOfZipfsLaw) {
  for (const auto& [s, expected] : {std::pair{0.5, 4.4}, {0.8, 9.1}, {1.0, 13.5}, {1.2, 18.7}, {1.5, 27.1}}) {
    RoutingGenerator g;
    g.experts = 64;
    g.tokens = 1 << 18;
    g.zipf_exponent = s;
    EXPECT_NEAR(max_over_mean(RoutingSteps(g).at(0)[0].tokens), expected, 0.01 * expected) << s;
    EXPECT_NEAR(max_over_mean(routing_popularity(g, 0).front()), expected, 0.05) << s;
  }
}

// Two different ones of three whose p goes as 6, 3, 2: pairs go as 18, 12 and 6 of 36.
TEST(RoutingGenerator, GivesATokenDifferentExperts) {
  RoutingGenerator g;
  g.experts = 3;
  g.top_k = 2;
  g.zipf_exponent = 1;
  g.tokens = 1 << 20;
  std::vector<double> p = routing_popularity(g, 0).front();
  std::vector<std::int64_t> counts = RoutingSteps(g).at(0)[0].tokens;
  std::sort(p.begin(), p.end());
  EXPECT_NEAR(p[0], 2.0 / 11, 1e-7);
  std::sort(counts.begin(), counts.end());
  for (const auto& [at, share] : {std::pair{0, 18.0 / 36}, {1, 24.0 / 36}, {2, 30.0 / 36}})
    EXPECT_NEAR(static_cast<double>(counts[static_cast<std::size_t>(at)]) / (1 << 20), share, 2e-6) << at;
  g.top_k = 3;
  EXPECT_THAT(RoutingSteps(g).at(0)[0].tokens, Each(1 << 20));
}

// The correlation of log-popularity a step and five steps apart is rho and rho^5; its standard deviation is `noise`.
TEST(RoutingGenerator, DriftsAsItsAutocorrelationSays) {
  for (const double rho : {0.0, 0.9, 0.99}) {
    RoutingGenerator g;
    g.experts = 64;
    g.noise = 0.5;
    g.autocorrelation = rho;
    std::vector<std::vector<double>> noise = routing_popularity(g, 0, 800);
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
  const std::vector<std::vector<double>> shares = routing_popularity(g, 0, 1060);
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
  RoutingGenerator g = small_generator(ExpertRouting::hot_expert);
  g.top_k = 1;
  g.tokens = 1 << 16;
  g.hot = 5;
  g.hot_share = 0.6;
  const auto share = [&](std::int64_t first, std::int64_t end) {
    const RoutingMatrix matrix = RoutingSteps(g).at(3)[1];
    const std::int64_t sum =
        std::accumulate(matrix.tokens.begin() + first, matrix.tokens.begin() + end, std::int64_t{0});
    return static_cast<double>(sum) / static_cast<double>(matrix.total());
  };
  EXPECT_NEAR(share(5, 6), 0.6, 0.005);
  g.pattern = ExpertRouting::hot_rank;
  g.hot = 2;
  EXPECT_NEAR(share(8, 12), 0.6, 0.005);
}

TEST(RoutingGenerator, MakesSourceRanksRagged) {
  RoutingGenerator g = small_generator(ExpertRouting::ragged);
  g.source_ranks = 64;
  g.raggedness = 0.4;
  g.experts = g.top_k = 2;  // every token goes to both: counts are the rank's tokens
  RoutingSteps routing(g);
  const std::vector<RoutingMatrix>& of_layers = routing.by_micro_batch(1)[1];
  std::vector<std::int64_t> tokens;
  for (std::int64_t rank = 0; rank < 64; ++rank) {
    tokens.push_back(of_layers[0].at(rank, 0));
    EXPECT_EQ(tokens.back(), of_layers[1].at(rank, 1)) << "layers route the same tokens";
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
  RoutingGenerator g = small_generator(ExpertRouting::rotating);
  g.noise = 0;
  const auto p = routing_popularity(g, 0, 3 * 16 + 1);
  std::vector<int> times(16);
  for (std::size_t step = 0; step < 48; ++step) ++times[hottest(p[step])];
  EXPECT_THAT(times, Each(3)) << "each in turn is the most popular for a period";
  EXPECT_EQ(p[0], p[2]);
  EXPECT_NE(p[0], p[3]);
  EXPECT_EQ(p[0], p[48]);
}

TEST(RoutingGenerator, BurstsAtTheEndOfAPeriod) {
  RoutingGenerator g = small_generator(ExpertRouting::burst);
  g.noise = 0;
  g.period = 6;
  g.burst_steps = 2;
  g.hot_share = 0.9;
  const auto p = routing_popularity(g, 1, 60);
  std::vector<std::size_t> hot;
  for (std::size_t step = 0; step < 60; ++step) {
    const double largest = p[step][hottest(p[step])];
    if (step % 6 < 4)
      EXPECT_LT(largest, 0.4) << step;
    else
      EXPECT_NEAR(largest, 0.9, 1e-6) << step;
    if (step % 6 == 5) {
      EXPECT_EQ(hottest(p[step]), hottest(p[step - 1])) << "one expert a burst";
      hot.push_back(hottest(p[step]));
    }
  }
  std::sort(hot.begin(), hot.end());
  EXPECT_GT(std::unique(hot.begin(), hot.end()) - hot.begin(), 3) << "and another in the next";
}

TEST(RoutingGenerator, HasPresetsOfMeasuredRouting) {
  EXPECT_EQ(generator_of(ExpertRouting::young_router).zipf_exponent, 1.3);
  EXPECT_EQ(generator_of(ExpertRouting::worst).zipf_exponent, 2.4);
  const RoutingGenerator trained = generator_of(ExpertRouting::trained_with_auxiliary_loss);
  EXPECT_GE(trained.zipf_exponent, 0.3);
  EXPECT_LE(trained.zipf_exponent, 0.5);
  EXPECT_EQ(trained.autocorrelation, 0.99);
  EXPECT_EQ(generator_of(ExpertRouting::burst).noise, 0);
}

// Lazarus (Fig. 2): up to 87 % of tokens to 2 of 16 experts.
TEST(RoutingGenerator, WorstIsAsSkewedAsWasMeasured) {
  RoutingGenerator g = generator_of(ExpertRouting::worst);
  g.noise = 0;
  g.experts = 16;
  std::vector<double> p = routing_popularity(g, 0).front();
  std::sort(p.rbegin(), p.rend());
  EXPECT_NEAR(p[0] + p[1], 0.87, 0.01);
}

}  // namespace
}  // namespace orrery
