// The gate of noise and temperature (Router::gumbel_temperature), and rows of experts that have copies.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "realrun/random_draws.h"
#include "strategies/dts_gate/options.h"
#include "tests/realrun/kernel_devices.h"

namespace orrery::cpu {
namespace {

using enum OpKind;

Op gate_op(Router router) {
  Op op = op_of(route);
  op.router = router;
  return op;
}

Tensor gate_numbers(std::int64_t tokens, std::int64_t width) { return shaped({{tokens, Axis::sequence}, {width}}); }
Tensor gate_choices(std::int64_t tokens, std::int64_t k) {
  return shaped({{tokens, Axis::sequence}, {k}}, Category::activation, Dtype::int32);
}

// Probabilities of one token, whose first logit is that number of the whole.
std::vector<double> naive_probabilities(std::span<const float> logits, double temperature, std::uint64_t stream,
                                        std::uint64_t first) {
  std::vector<double> p;
  double sum = 0;
  for (std::size_t e = 0; e < logits.size(); ++e) {
    const double u = uniform(1, stream, first + e) + 0.5 / 4294967296.0;
    p.push_back(std::exp((static_cast<double>(logits[e]) - std::log(-std::log(u))) / temperature));
    sum += p.back();
  }
  for (double& x : p) x /= sum;
  return p;
}

KERNEL_TEST(GumbelRouteKernel, ChoosesTheMostLikelyThatAreAboveTheThreshold) {
  constexpr std::int64_t kTokens = 13, kExperts = 9;
  constexpr std::uint64_t kStream = 5;
  const Values logits = random_values(kTokens * kExperts, 3, 1.0);
  KernelContext context;
  context.seed = 1;
  context.dropout_stream = kStream;
  for (const auto& [temperature, threshold, k, padded] :
       {std::tuple{0.5, 0.05, 9, false}, std::tuple{0.5, 0.05, 9, true}, std::tuple{1.0, 0.1, 4, false},
        std::tuple{0.3, 0.0, 1, false}}) {
    Op op = gate_op({.scale = 1.5f,
                     .gumbel_temperature = static_cast<float>(temperature),
                     .threshold = static_cast<float>(threshold),
                     .padded = padded});
    const std::vector<Values> actual = call(op, {{gate_numbers(kTokens, kExperts), logits}},
                                            {gate_numbers(kTokens, k), gate_choices(kTokens, k)}, context);
    std::int64_t none = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::span<const float> row(logits.data() + t * kExperts, static_cast<std::size_t>(kExperts));
      const std::vector<double> p =
          naive_probabilities(row, temperature, kStream, static_cast<std::uint64_t>(t * kExperts));
      std::vector<std::size_t> order(p.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      std::ranges::sort(order, std::greater<>(), [&](std::size_t e) { return p[e]; });
      for (std::int64_t j = 0; j < k; ++j) {
        const std::size_t expert = order[static_cast<std::size_t>(j)], at = static_cast<std::size_t>(t * k + j);
        const bool active = p[expert] > threshold;
        ASSERT_NEAR(actual[0][at], active ? 1.5 * p[expert] : 0.0, kFp32) << "token " << t << ", choice " << j;
        ASSERT_EQ(actual[1][at], active || padded ? static_cast<float>(expert) : -1.0f) << "token " << t;
        none += active ? 0 : 1;
      }
    }
    EXPECT_EQ(none > 0, threshold > 0) << "the threshold decides something";
  }
}

// A rank that has every other position draws what one rank draws for them.
KERNEL_TEST(GumbelRouteKernel, APartOfTheTokensDrawsWhatTheWholeDoes) {
  constexpr std::int64_t kBatch = 2, kSequence = 6, kExperts = 5;
  const auto shape = [](std::int64_t sequence, std::int64_t width, Dtype dtype) {
    return shaped({{kBatch, Axis::batch}, {sequence, Axis::sequence}, {width}}, Category::activation, dtype);
  };
  Op op = gate_op({.gumbel_temperature = 0.7f, .threshold = 0.02f});
  const Values logits = random_values(kBatch * kSequence * kExperts, 4, 1.0);
  KernelContext context;
  context.seed = 7;
  context.dropout_stream = 11;
  const std::vector<Values> whole =
      call(op, {{shape(kSequence, kExperts, Dtype::fp32), logits}},
           {shape(kSequence, kExperts, Dtype::fp32), shape(kSequence, kExperts, Dtype::int32)}, context);
  const std::vector<std::int64_t> positions{4, 1, 5};
  Values part;
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (const std::int64_t s : positions)
      part.insert(part.end(), logits.begin() + (b * kSequence + s) * kExperts,
                  logits.begin() + (b * kSequence + s + 1) * kExperts);
  context.query_positions = positions;
  context.whole_sizes = {kBatch, kSequence, kExperts};
  const std::vector<Values> own = call(op, {{shape(3, kExperts, Dtype::fp32), part}},
                                       {shape(3, kExperts, Dtype::fp32), shape(3, kExperts, Dtype::int32)}, context);
  for (std::int64_t b = 0; b < kBatch; ++b)
    for (std::size_t i = 0; i < positions.size(); ++i)
      for (std::int64_t j = 0; j < kExperts; ++j) {
        const auto at = static_cast<std::size_t>((b * 3 + static_cast<std::int64_t>(i)) * kExperts + j),
                   in_whole = static_cast<std::size_t>((b * kSequence + positions[i]) * kExperts + j);
        EXPECT_EQ(own[1][at], whole[1][in_whole]);
        EXPECT_EQ(own[0][at], whole[0][in_whole]);
      }
}

// With their noise half a unit apart, so that no difference changes an order or passes the threshold.
void set_noisy_apart(Values& logits, std::int64_t experts) {
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const std::size_t token = i / static_cast<std::size_t>(experts), e = i % static_cast<std::size_t>(experts);
    const double u = uniform(0, 0, i) + 0.5 / 4294967296.0;
    const auto place = static_cast<double>((e * 5 + token) % static_cast<std::size_t>(experts));
    logits[i] = static_cast<float>(0.5 * place + std::log(-std::log(u)));
  }
}

KERNEL_TEST(GumbelRouteKernel, DerivativesAreSlopes) {
  constexpr std::int64_t kTokens = 5, kExperts = 6;
  for (const std::int64_t k : {kExperts, std::int64_t{3}, std::int64_t{1}})
    for (const bool padded : {false, true}) {
      Op op = gate_op({.scale = 1.5f, .gumbel_temperature = 0.8f, .threshold = 0.03f, .padded = padded});
      Tensor logits = gate_numbers(kTokens, kExperts);
      logits.category = Category::parameter;
      expect_derivative(machine_of(op, {logits}, {gate_numbers(kTokens, k), gate_choices(kTokens, k)}),
                        [](Machine& machine) { set_noisy_apart(machine.values(0), kExperts); });
    }
}

double mean_active(std::int64_t experts, double temperature, double deviation) {
  constexpr std::int64_t kTokens = 4096;
  KernelContext context;
  context.seed = 2;
  context.dropout_stream = 3;
  const Values logits = deviation > 0 ? random_values(kTokens * experts, 9, deviation)
                                      : Values(static_cast<std::size_t>(kTokens * experts));
  const Values choices = call(gate_op({.gumbel_temperature = static_cast<float>(temperature), .threshold = 0.001f}),
                              {{gate_numbers(kTokens, experts), logits}},
                              {gate_numbers(kTokens, experts), gate_choices(kTokens, experts)}, context)[1];
  return static_cast<double>(std::ranges::count_if(choices, [](float e) { return e >= 0; })) /
         static_cast<double>(kTokens);
}

// Sampled of the gate's definition elsewhere, threshold 0.001, equal logits. Means of some thousand tokens, here and
// there: at 64 experts they scatter by 1 to 2 %.
TEST(GumbelRouteKernel, AsManyExpertsAreActiveAsTheGateSays) {
  constexpr std::array kTemperatures{1.0, 0.7, 0.5, 0.3, 0.2, 0.1};
  const std::vector<std::pair<std::int64_t, std::array<double, 6>>> kActive{
      {4, {3.99, 3.91, 3.64, 2.87, 2.26, 1.59}},
      {8, {7.95, 7.54, 6.40, 4.10, 2.88, 1.78}},
      {16, {15.74, 13.95, 10.04, 5.13, 3.23, 1.85}},
      {32, {30.63, 23.47, 13.97, 5.88, 3.45, 1.91}},
      {64, {56.05, 33.34, 16.24, 6.34, 3.62, 1.93}}};
  for (const auto& [experts, expected] : kActive) {
    const dts_gate::SampledGate sampled(experts, 1 << 12, 1);
    for (std::size_t i = 0; i < kTemperatures.size(); ++i) {
      const double active = mean_active(experts, kTemperatures[i], 0);
      EXPECT_NEAR(active, expected[i], 0.03 * expected[i]) << experts << " at " << kTemperatures[i];
      EXPECT_NEAR(active, sampled.active_experts(kTemperatures[i], 0.001, 0), 0.03 * expected[i]);
      // The closed form (tests/strategies/dts_gate_test.cpp) counts too many, by less the less there are.
      const double a = std::pow(0.001, -kTemperatures[i]), others = static_cast<double>(experts) - 1;
      const double closed = 1 + others * (a - 1) / (others + a);
      EXPECT_GT(closed, 0.98 * active);
      if (experts == 4) {
        EXPECT_NEAR(closed, active, 0.025 * active);
      }
    }
    for (const double deviation : {1.0, 3.0})
      EXPECT_NEAR(mean_active(experts, 0.5, deviation), sampled.active_experts(0.5, 0.001, deviation),
                  0.04 * sampled.active_experts(0.5, 0.001, deviation))
          << experts << " with logits of " << deviation;
  }
}

// ---- copies -----------------------------------------------------------------------------------------------------

constexpr std::int64_t kCopyTokens = 300, kCopyWidth = 5, kCopySlots = 200, kCopyK = 2;

// Three experts of which tokens choose two, or one: -1 is none.
Values choices_of_copies() {
  Values choices;
  for (std::int64_t t = 0; t < kCopyTokens; ++t) {
    choices.push_back(static_cast<float>(t * 7 % 3));
    choices.push_back(t % 5 == 0 ? -1.0f : static_cast<float>((t * 7 + 1 + t % 2) % 3));
  }
  return choices;
}

KERNEL_TEST(PermuteKernel, CopiesOfAnExpertGetItsRowsInTurn) {
  const std::vector<std::int64_t> expert_of_slot{0, 2, 1, 0, 0};
  const Values choices = choices_of_copies(), x = random_values(kCopyTokens * kCopyWidth, 1);
  const Tensor rows = shaped({{5, Axis::experts}, {kCopySlots, Axis::slots}, {kCopyWidth}}),
               tokens = gate_numbers(kCopyTokens, kCopyWidth);
  KernelContext context;
  context.expert_of_slot = expert_of_slot;
  context.first_copy = 4;
  const Values permuted =
      call(op_of(permute), {{tokens, x}, {gate_choices(kCopyTokens, kCopyK), choices}}, {rows}, context)[0];
  // Copies of expert 0 are the slots 0, 3, 4: its row number n goes to copy (4 + n) % 3.
  Values expected(permuted.size());
  const std::array<std::vector<std::int64_t>, 3> copies{{{0, 3, 4}, {2}, {1}}};
  std::array<std::int64_t, 3> taken{};
  for (std::int64_t choice = 0; choice < kCopyK; ++choice)
    for (std::int64_t t = 0; t < kCopyTokens; ++t) {
      const float expert = choices[static_cast<std::size_t>(t * kCopyK + choice)];
      if (expert < 0) continue;
      const auto e = static_cast<std::size_t>(expert);
      const auto n = static_cast<std::int64_t>(copies[e].size()), row = taken[e]++;
      if (row / n >= kCopySlots) continue;
      const std::int64_t at = copies[e][static_cast<std::size_t>((4 + row) % n)] * kCopySlots + row / n;
      std::copy_n(x.begin() + t * kCopyWidth, kCopyWidth, expected.begin() + at * kCopyWidth);
    }
  EXPECT_EQ(permuted, expected);
  EXPECT_GT(taken[0], 3 * 50) << "each copy has something to do";

  // And back: each token as often as it has an expert.
  const Values back =
      call(op_of(unpermute), {{rows, permuted}, {gate_choices(kCopyTokens, kCopyK), choices}}, {tokens}, context)[0];
  for (std::int64_t t = 0; t < kCopyTokens; ++t)
    for (std::int64_t c = 0; c < kCopyWidth; ++c) {
      const auto at = static_cast<std::size_t>(t * kCopyWidth + c);
      ASSERT_NEAR(back[at], (t % 5 == 0 ? 1 : 2) * x[at], 1e-6) << "token " << t;
    }
}

KERNEL_TEST(UnpermuteKernel, DerivativesOfCopiesAreSlopes) {
  static const std::vector<std::int64_t> expert_of_slot{1, 0, 1, 2};
  Machine m = machine_of(op_of(unpermute),
                         {shaped({{4, Axis::experts}, {4, Axis::slots}, {5}}, Category::parameter), gate_choices(6, 2),
                          shaped({{6, Axis::sequence}, {2}}, Category::parameter)},
                         {gate_numbers(6, 5)});
  m.context.expert_of_slot = expert_of_slot;
  m.context.first_copy = 1;
  expect_derivative(std::move(m),
                    [](Machine& machine) { machine.values(1) = {0, 1, 1, 2, 1, -1, 1, 0, -1, -1, 2, 1}; });
}

}  // namespace
}  // namespace orrery::cpu
