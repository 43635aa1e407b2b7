// The dense-to-sparse gate: its temperature, how many experts a token has, its phases.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "strategies/dts_gate/options.h"

namespace orrery::dts_gate {
namespace {

constexpr double kThreshold = 0.001;
constexpr std::array kTemperatures{1.0, 0.7, 0.5, 0.3, 0.2, 0.1};

// By temperature, of 4 million draws of another generator (std::exponential_distribution, in whose terms exp(-g) is: no
// Gumbel numbers); 10,000 tokens err by 0.6 % (one standard deviation).
struct Row {
  std::int64_t experts;
  std::array<double, 6> active;
};
const std::vector<Row> kSampled{{4, {3.988, 3.904, 3.638, 2.876, 2.261, 1.592}},
                                {8, {7.940, 7.532, 6.406, 4.106, 2.829, 1.758}},
                                {16, {15.715, 13.880, 10.094, 5.176, 3.226, 1.856}},
                                {32, {30.586, 23.198, 13.779, 5.890, 3.456, 1.907}},
                                {64, {55.955, 33.127, 16.560, 6.322, 3.588, 1.935}}};

TEST(DtsGate, HasTheActiveExpertsOfGumbelNoise) {
  for (const Row& row : kSampled) {
    const SampledGate tokens(row.experts, 10000, 1);
    for (std::size_t t = 0; t < kTemperatures.size(); ++t)
      EXPECT_NEAR(tokens.active_experts(kTemperatures[t], kThreshold, 0), row.active[t], 0.02 * row.active[t])
          << row.experts << " experts at " << kTemperatures[t];
  }
}

// The expected number of active experts of a token whose logits are equal: 1 + (E - 1)(a - 1) / (E + a - 1), a =
// threshold^-temperature. The formula compares each expert with the most likely one instead of the sum over all, which
// overestimates: by 1% at 4 experts, by a third at 64.
double active_experts_in_closed_form(std::int64_t experts, double temperature, double threshold) {
  const double a = std::pow(threshold, -temperature), others = static_cast<double>(experts) - 1;
  return 1 + others * (a - 1) / (others + a);
}

TEST(DtsGate, HasAClosedFormForEqualLogits) {
  const std::vector<std::array<double, 3>> all{
      {4, 3.65, 2.90}, {8, 6.55, 4.25}, {16, 10.85, 5.54}, {32, 16.16, 6.53}, {64, 21.39, 7.17}};
  for (const auto& [experts, at_half, at_three_tenths] : all) {
    const auto e = static_cast<std::int64_t>(experts);
    EXPECT_NEAR(active_experts_in_closed_form(e, 0.5, kThreshold), at_half, 0.005);
    EXPECT_NEAR(active_experts_in_closed_form(e, 0.3, kThreshold), at_three_tenths, 0.005);
    EXPECT_GE(active_experts_in_closed_form(e, 0.5, kThreshold),
              SampledGate(e, 10000, 1).active_experts(0.5, kThreshold, 0))
        << "what is left out makes it an upper bound";
  }
  EXPECT_EQ(active_experts_in_closed_form(1, 0.5, kThreshold), 1);
}

// Logits that a gate has learned leave fewer experts; by a Monte Carlo of others, to 2.5 %.
TEST(DtsGate, HasFewerActiveExpertsWhereLogitsDiffer) {
  const SampledGate tokens(16, 10000, 1);
  const std::array temperatures{1.0, 0.5, 0.3, 0.1};
  const std::array<double, 4> one{15.12, 8.30, 4.45, 1.79}, three{9.18, 4.12, 2.57, 1.40};
  for (std::size_t t = 0; t < 4; ++t) {
    EXPECT_NEAR(tokens.active_experts(temperatures[t], kThreshold, 1), one[t], 0.025 * one[t]);
    EXPECT_NEAR(tokens.active_experts(temperatures[t], kThreshold, 3), three[t], 0.025 * three[t]);
  }
}

TEST(DtsGate, SamplesTheSameForTheSameSeed) {
  const double once = SampledGate(16, 1000, 7).active_experts(0.5, kThreshold, 1);
  EXPECT_EQ(once, SampledGate(16, 1000, 7).active_experts(0.5, kThreshold, 1));
  EXPECT_NE(once, SampledGate(16, 1000, 8).active_experts(0.5, kThreshold, 1));
  const SampledGate tokens(16, 1000, 7);
  double before = 0;
  for (const double t : {0.05, 0.1, 0.3, 0.5, 0.9, 2.0}) {
    EXPECT_GT(tokens.active_experts(t, kThreshold, 0), before);
    before = tokens.active_experts(t, kThreshold, 0);
  }
}

Gate gate_of(Decay decay) {
  Gate gate;
  gate.experts = 16;
  gate.seed_steps = 100;
  gate.decay_steps = 400;
  gate.hard_step = 700;
  gate.decay = decay;
  return gate;
}

TEST(DtsGate, CoolsExponentiallyOrLinearly) {
  const Gate exponential = gate_of(Decay::exponential), linear = gate_of(Decay::linear);
  for (const Gate& gate : {exponential, linear}) {
    EXPECT_DOUBLE_EQ(temperature(gate, 0), 1);
    EXPECT_DOUBLE_EQ(temperature(gate, 100), 1) << "the soft phase begins with the first";
    EXPECT_DOUBLE_EQ(temperature(gate, 500), 0.5);
    EXPECT_DOUBLE_EQ(temperature(gate, 650), 0.5) << "and stays at the last";
  }
  EXPECT_DOUBLE_EQ(temperature(exponential, 300), std::sqrt(0.5));
  EXPECT_DOUBLE_EQ(temperature(linear, 300), 0.75);
  Gate sharpening = linear;
  sharpening.last_logit_deviation = 2;
  EXPECT_DOUBLE_EQ(logit_deviation(sharpening, 200), 0.5);
  EXPECT_DOUBLE_EQ(logit_deviation(sharpening, 699), 2);
}

TEST(DtsGate, GoesFromOneExpertOverManyToOne) {
  const SampledGate tokens(16, 4000, 1);
  const Gate gate = gate_of(Decay::exponential);
  const auto active = [&](std::int64_t step) {
    return tokens.active_experts(temperature(gate, step), gate.threshold, logit_deviation(gate, step));
  };
  EXPECT_EQ(phase(gate, 99), Phase::single_expert);
  EXPECT_EQ(phase(gate, 100), Phase::soft);
  EXPECT_NEAR(active(100), 15.74, 0.2);
  EXPECT_EQ(phase(gate, 699), Phase::soft);
  EXPECT_NEAR(active(699), 10.04, 0.2) << "still dense: the step to one is the switch";
  EXPECT_EQ(phase(gate, 700), Phase::hard);
}

}  // namespace
}  // namespace orrery::dts_gate
