// Kernels of mixtures of experts: the router, rows in slots, a product for each expert.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "tests/realrun/kernel_devices.h"

namespace orrery::cpu {
namespace {

using enum OpKind;

Tensor choices_of(std::int64_t tokens, std::int64_t k) {
  return shaped({{tokens, Axis::sequence}, {k}}, Category::activation, Dtype::int32);
}

constexpr std::array kScores{RouterScore::softmax, RouterScore::softmax_of_top, RouterScore::sigmoid,
                             RouterScore::sigmoid_of_top};

// --- The router

// One token in double: scores of all, then each choice by looking through what is left.
struct Chosen {
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
};
Chosen naive_route(const Router& router, std::span<const float> logits, std::span<const float> bias, std::int64_t k) {
  const std::size_t n = logits.size();
  const bool softmax = router.score == RouterScore::softmax || router.score == RouterScore::softmax_of_top;
  double all = 0;
  for (const float x : logits) all += std::exp(static_cast<double>(x));
  std::vector<double> score(n), compared(n);
  for (std::size_t e = 0; e < n; ++e) {
    const double power = std::exp(static_cast<double>(logits[e]));
    score[e] = softmax ? power / all : power / (1 + power);
    compared[e] = score[e] + (bias.empty() ? 0.0 : static_cast<double>(bias[e]));
  }
  std::vector<bool> allowed(n, true);
  if (router.groups > 0) {
    const std::size_t size = n / router.groups;
    std::multimap<double, std::size_t, std::greater<>> by_sum;
    for (std::size_t g = 0; g < router.groups; ++g) {
      double best_pair = size == 1 ? compared[g] : -1e9;
      for (std::size_t i = g * size; i < (g + 1) * size; ++i)
        for (std::size_t j = i + 1; j < (g + 1) * size; ++j) best_pair = std::max(best_pair, compared[i] + compared[j]);
      by_sum.emplace(best_pair, g);
    }
    allowed.assign(n, false);
    auto next = by_sum.begin();
    for (int i = 0; i < router.best_groups; ++i, ++next)
      for (std::size_t e = next->second * size; e < (next->second + 1) * size; ++e) allowed[e] = true;
  }
  Chosen chosen;
  double sum = 0;
  for (std::int64_t j = 0; j < k; ++j) {
    std::size_t best = n;
    for (std::size_t e = 0; e < n; ++e)
      if (allowed[e] && (best == n || compared[e] > compared[best])) best = e;
    allowed[best] = false;
    chosen.experts.push_back(static_cast<std::int64_t>(best));
    chosen.weights.push_back(router.score == RouterScore::softmax_of_top ? score[best] * all : score[best]);
    sum += chosen.weights.back();
  }
  const bool of_top = router.score == RouterScore::softmax_of_top || router.score == RouterScore::sigmoid_of_top;
  for (double& w : chosen.weights) w *= static_cast<double>(router.scale) / (of_top ? sum : 1);
  return chosen;
}

void expect_routes(const Router& router, std::int64_t tokens, std::int64_t experts, std::int64_t k, bool biased) {
  Op op = op_of(route);
  op.router = router;
  const Tensor logits = plain({{tokens, Axis::sequence}, {experts}}), weights = plain({{tokens, Axis::sequence}, {k}});
  const Values x = random_values(logits.elements(), 1, 1.5), bias = random_values(experts, 2, 0.2);
  std::vector<Operand> reads{{logits, x}};
  if (biased) reads.push_back({plain({{experts}}), bias});
  const std::vector<Values> actual = call(op, reads, {weights, choices_of(tokens, k)});
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::span<const float> row(x.data() + t * experts, static_cast<std::size_t>(experts));
    const Chosen expected =
        naive_route(router, row, biased ? std::span<const float>(bias) : std::span<const float>(), k);
    for (std::int64_t j = 0; j < k; ++j) {
      const auto at = static_cast<std::size_t>(t * k + j), i = static_cast<std::size_t>(j);
      ASSERT_EQ(actual[1][at], static_cast<float>(expected.experts[i])) << "token " << t << ", choice " << j;
      ASSERT_NEAR(actual[0][at], expected.weights[i], kFp32) << "token " << t << ", choice " << j;
    }
  }
}

KERNEL_TEST(RouteKernel, ChoosesTheLargestScoresAndWeighsByThem) {
  for (const RouterScore score : kScores)
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(std::string(name_of(score)) + (biased ? " with a bias" : ""));
      expect_routes({.score = score, .scale = 1.5f}, 21, 10, 3, biased);
      expect_routes({.score = score}, 5, 70, 40, biased);
      expect_routes({.score = score}, 3, 4, 4, biased);
    }
}

KERNEL_TEST(RouteKernel, ChoosesFromTheBestGroupsAlone) {
  for (const RouterScore score : kScores)
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(std::string(name_of(score)) + (biased ? " with a bias" : ""));
      expect_routes({.score = score, .groups = 4, .best_groups = 2, .scale = 2.5f}, 21, 16, 5, biased);
      expect_routes({.score = score, .groups = 6, .best_groups = 3}, 21, 6, 2, biased);
    }
}

KERNEL_TEST(RouteKernel, OfEqualScoresTheFirstExpertIsChosen) {
  Op op = op_of(route);
  const Operand logits{plain({{2}, {5}}), {1, 2, 2, 1, 2, 0, 0, 0, 0, 0}};
  const Values choices = call(op, {logits}, {plain({{2}, {3}}), choices_of(2, 3)})[1];
  EXPECT_EQ(choices, (Values{1, 2, 4, 0, 1, 2}));
  op.router = {.groups = 5, .best_groups = 3};
  EXPECT_EQ(call(op, {logits}, {plain({{2}, {3}}), choices_of(2, 3)})[1], choices);
}

// A gate is a router of one expert (shared_expert_gate).
KERNEL_TEST(RouteKernel, OfOneExpertIsItsSigmoid) {
  Op op = op_of(route);
  op.router.score = RouterScore::sigmoid;
  const Operand logits{plain({{3}, {1}}), {-2, 0, 30}};
  const Values weights = call(op, {logits}, {plain({{3}, {1}}), choices_of(3, 1)})[0];
  expect_equal(weights, {1 / (1 + std::exp(2.0)), 0.5, 1});
}

// Logits far enough apart that no difference changes a choice.
void set_apart(Values& logits, std::int64_t experts) {
  for (std::size_t i = 0; i < logits.size(); i += static_cast<std::size_t>(experts)) {
    std::vector<std::size_t> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), i);
    std::ranges::sort(order, {}, [&](std::size_t e) { return logits[e]; });
    for (std::size_t place = 0; place < order.size(); ++place)
      logits[order[place]] = 0.1f * static_cast<float>(place * place) - 2;
  }
}

KERNEL_TEST(RouteKernel, DerivativesAreSlopes) {
  for (const RouterScore score : kScores)
    for (const int groups : {0, 4}) {
      SCOPED_TRACE(name_of(score));
      Op op = op_of(route);
      op.router = {.score = score,
                   .groups = static_cast<std::uint16_t>(groups),
                   .best_groups = static_cast<std::uint16_t>(groups / 2),
                   .scale = 1.5f};
      expect_derivative(machine_of(op, {parameter({{7, Axis::sequence}, {8}})},
                                   {plain({{7, Axis::sequence}, {3}}), choices_of(7, 3)}),
                        [](Machine& m) { set_apart(m.values(0), 8); });
    }
}

// --- Routers that no token decides alone

// Zhou et al. 2022 (arXiv 2202.09368), section 3.2.
KERNEL_TEST(RouteKernel, ExpertsChooseTheirBestTokens) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid})
    for (const auto& [tokens, experts, mean] : {std::array{12, 4, 2}, std::array{7, 3, 1}, std::array{300, 5, 5},
                                                std::array{600, 8, 1}, std::array{4, 40, 3}}) {
      SCOPED_TRACE(testing::Message() << name_of(score) << ", " << tokens << " tokens, " << experts << " experts");
      Op op = op_of(route);
      op.router = {.type = RouterType::expert_choice,
                   .score = score,
                   .scale = 1.5f,
                   .experts = static_cast<std::uint16_t>(experts),
                   .choices = static_cast<std::uint16_t>(mean)};
      const Tensor logits = plain({{tokens, Axis::sequence}, {experts}});
      const Values x = random_values(logits.elements(), 4, 1.5);
      const std::vector<Values> actual = call(op, {{logits, x}}, {logits, choices_of(tokens, experts)});
      const int seats = std::min(tokens, (tokens * mean + experts - 1) / experts);
      const auto at = [&](int t, int e) { return static_cast<std::size_t>(t * experts + e); };
      const auto score_of = [&](int t, int e) {
        double all = 0;
        for (int i = 0; i < experts; ++i) all += std::exp(static_cast<double>(x[at(t, i)]));
        const double power = std::exp(static_cast<double>(x[at(t, e)]));
        return score == RouterScore::softmax ? power / all : power / (1 + power);
      };
      for (int e = 0; e < experts; ++e) {
        int chosen = 0;
        double least = 2, most = -1;  // of those that are chosen; of the others
        for (int t = 0; t < tokens; ++t) {
          const double s = score_of(t, e);
          if (actual[1][at(t, e)] == -1) {
            most = std::max(most, s);
            EXPECT_EQ(actual[0][at(t, e)], 0);
            continue;
          }
          ++chosen;
          least = std::min(least, s);
          ASSERT_EQ(actual[1][at(t, e)], static_cast<float>(e));
          ASSERT_NEAR(actual[0][at(t, e)], 1.5 * s, kFp32);
        }
        EXPECT_EQ(chosen, seats);
        EXPECT_GE(least, most - 1e-6);
      }
    }
}

KERNEL_TEST(RouteKernel, OfEqualScoresTheFirstTokenIsChosen) {
  Op op = op_of(route);
  op.router = {.type = RouterType::expert_choice, .score = RouterScore::sigmoid, .choices = 1};
  const Operand logits{plain({{4}, {2}}), {1, 0, 2, 0, 1, 0, 1, 0}};
  EXPECT_EQ(call(op, {logits}, {plain({{4}, {2}}), choices_of(4, 2)})[1], (Values{0, 1, 0, 1, -1, -1, -1, -1}));
}

KERNEL_TEST(RouteKernel, WhatExpertsChooseHasTheirScoresSlopes) {
  for (const RouterScore score : {RouterScore::softmax, RouterScore::sigmoid}) {
    SCOPED_TRACE(name_of(score));
    Op op = op_of(route);
    op.router = {.type = RouterType::expert_choice, .score = score, .scale = 1.5f, .choices = 2};
    const Tensor weights = plain({{6, Axis::sequence}, {4}});
    // By less than the steps of a difference no token changes its place.
    expect_derivative(machine_of(op, {parameter({{6, Axis::sequence}, {4}})}, {weights, choices_of(6, 4)}),
                      [](Machine& m) {
                        for (std::size_t i = 0; i < 24; ++i)
                          m.values(0)[i] = 0.3f * static_cast<float>(i * 7 % 24 % 5) + (i * 5 % 7 < 3 ? -1.0f : 0.8f) +
                                           0.04f * static_cast<float>(i);
                      });
  }
}

// Lewis et al. 2021 (arXiv 2103.16716), section 3.2: of all ways to give each expert as many tokens nearly the best
// one.
KERNEL_TEST(RouteKernel, AnAuctionGivesAllExpertsAsManyTokensForNearlyTheLargestSum) {
  constexpr int kTokens = 6, kExperts = 3;
  Op op = op_of(route);
  op.router = {.type = RouterType::base, .score = RouterScore::sigmoid, .choices = 1};
  for (std::uint32_t seed = 1; seed <= 12; ++seed) {
    const Values x = random_values(kTokens * kExperts, seed, 2);
    const std::vector<Values> actual =
        call(op, {{plain({{kTokens}, {kExperts}}), x}}, {plain({{kTokens}, {1}}), choices_of(kTokens, 1)});
    std::vector<int> owner{0, 0, 1, 1, 2, 2};
    const auto sum_of = [&](auto expert_of) {
      double sum = 0;
      for (int t = 0; t < kTokens; ++t) sum += x[static_cast<std::size_t>(t * kExperts + expert_of(t))];
      return sum;
    };
    double best = -1e9;
    do best = std::max(best, sum_of([&](int t) { return owner[static_cast<std::size_t>(t)]; }));
    while (std::ranges::next_permutation(owner).found);
    const auto chosen = [&](int t) { return static_cast<int>(actual[1][static_cast<std::size_t>(t)]); };
    const auto [least, most] = std::ranges::minmax(x);
    EXPECT_GE(sum_of(chosen), best - kTokens * (most - least) / 50 - 1e-5) << seed;
    for (int e = 0; e < kExperts; ++e) EXPECT_EQ(std::ranges::count(actual[1], static_cast<float>(e)), 2) << seed;
    for (int t = 0; t < kTokens; ++t)
      EXPECT_NEAR(actual[0][static_cast<std::size_t>(t)],
                  1 / (1 + std::exp(-x[static_cast<std::size_t>(t * kExperts + chosen(t))])), kFp32);
  }
}

KERNEL_TEST(RouteKernel, AnAuctionEndsWhateverTheLogits) {
  Op op = op_of(route);
  op.router = {.type = RouterType::base, .score = RouterScore::softmax_of_top, .choices = 1};
  const auto counts = [&](int tokens, int experts, const Values& x) {
    const Values chosen =
        call(op, {{plain({{tokens}, {experts}}), x}}, {plain({{tokens}, {1}}), choices_of(tokens, 1)})[1];
    std::vector<int> of(static_cast<std::size_t>(experts));
    for (const float e : chosen) ++of.at(static_cast<std::size_t>(e));
    return of;
  };
  EXPECT_EQ(counts(8, 4, Values(32, 1.0f)), (std::vector{2, 2, 2, 2}));
  EXPECT_EQ(counts(3, 1, {1, -2, 5}), (std::vector{3}));
  // Seven tokens for three experts: none has more than three.
  for (const int n : counts(7, 3, random_values(21, 3, 2))) EXPECT_LE(n, 3);
  const std::vector<int> lost = counts(4, 2, Values(8, std::numeric_limits<float>::quiet_NaN()));
  EXPECT_EQ(lost, (std::vector{2, 2}));
}

// Roller et al. 2021 (arXiv 2106.04426), section 3.1. Of 0: the first number of SplitMix64 from 0, 0xe220a8397b1dcdaf.
KERNEL_TEST(HashRouteKernel, AnIdHasOneExpertAndExpertsHaveAsManyIds) {
  Op op = op_of(hash_route);
  op.router.experts = 1 << 15;
  const auto ids_of = [](std::int64_t n) {
    return shaped({{n, Axis::sequence}, {1}}, Category::activation, Dtype::int64);
  };
  EXPECT_EQ(call(op, {{ids_of(2), {0, 0}}}, {choices_of(2, 1)})[0], (Values{0x4daf, 0x4daf}));
  op.router.experts = 8;
  constexpr std::int64_t kIds = 16000;
  Values ids(kIds);
  std::iota(ids.begin(), ids.end(), 0.0f);
  const Values chosen = call(op, {{ids_of(kIds), ids}}, {choices_of(kIds, 1)})[0];
  for (int e = 0; e < 8; ++e)
    EXPECT_LT(std::abs(std::ranges::count(chosen, static_cast<float>(e)) - kIds / 8), 5 * 42) << e;  // deviations
}

// --- Noise and losses

KERNEL_TEST(AddNoiseKernel, IsNormalOfTheDeviationThatIsAskedFor) {
  constexpr std::int64_t kTokens = 4000;
  Op op = op_of(add_noise);
  for (const float raw : {-3.0f, 0.0f, 2.0f}) {
    const Tensor t = plain({{kTokens}, {8}});
    const auto n = static_cast<std::size_t>(kTokens * 8);
    const std::vector<Values> made = call(op, {{t, Values(n, 1.5f)}, {t, Values(n, raw)}}, {t, t});
    const double deviation = std::log1p(std::exp(static_cast<double>(raw)));
    double mean = 0, square = 0, fourth = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double z = (static_cast<double>(made[0][i]) - 1.5) / deviation;
      mean += z / static_cast<double>(n);
      square += z * z / static_cast<double>(n);
      fourth += z * z * z * z / static_cast<double>(n);
      EXPECT_NEAR(made[1][i], z / (1 + std::exp(-static_cast<double>(raw))), 1e-4);
    }
    EXPECT_NEAR(mean, 0, 0.02);
    EXPECT_NEAR(square, 1, 0.03);
    EXPECT_NEAR(fourth, 3, 0.25) << "a normal distribution's";
  }
}

KERNEL_TEST(AddNoiseKernel, DerivativesAreSlopes) {
  expect_derivative(machine_of(op_of(add_noise), {parameter({{5}, {4}}), parameter({{5}, {4}})},
                               {plain({{5}, {4}}), plain({{5}, {4}})}));
}

// Switch, eq. 4: of balanced loads and uniform scores the loss is its coefficient, of all tokens to one expert that
// they are sure of as many times it as there are experts.
KERNEL_TEST(RouterLossKernel, IsLeastWhereLoadsAreBalanced) {
  Op op = op_of(router_loss);
  op.router = {.balance = 0.01f, .z = 0.001f};
  const Tensor logits = plain({{1, Axis::batch}, {4, Axis::sequence}, {4}}), counts = plain({{1, Axis::batch}, {4}}),
               losses = plain({{1, Axis::batch}, {4, Axis::sequence}, {2}});
  const Values balanced = call(op, {{logits, Values(16, 0.5f)}, {counts, {2, 2, 2, 2}}}, {losses})[0];
  const double z = 0.5 + std::log(4.0);
  expect_equal(balanced, {0.01, 0.001 * z * z, 0.01, 0.001 * z * z, 0.01, 0.001 * z * z, 0.01, 0.001 * z * z});
  Values sure;
  for (int t = 0; t < 4; ++t) sure.insert(sure.end(), {0, 30, 0, 0});
  EXPECT_NEAR(call(op, {{logits, sure}, {counts, {0, 4, 0, 0}}}, {losses})[0][2], 0.04, 1e-6);
}

// Two sequences that are each sure of one expert: unbalanced one by one, balanced together.
KERNEL_TEST(RouterLossKernel, LoadsAreOfASequenceOrOfAllOfThem) {
  Op op = op_of(router_loss);
  op.router = {.balance = 1};
  const Tensor logits = plain({{2, Axis::batch}, {1, Axis::sequence}, {2}}), counts = plain({{2, Axis::batch}, {2}}),
               losses = plain({{2, Axis::batch}, {1, Axis::sequence}, {2}});
  const std::vector<Operand> reads{{logits, {30, 0, 0, 30}}, {counts, {1, 0, 0, 1}}};
  expect_equal(call(op, reads, {losses})[0], {1, 0, 1, 0});
  op.router.by_sequence = true;
  expect_equal(call(op, reads, {losses})[0], {2, 0, 2, 0});
}

KERNEL_TEST(ExpertCountsKernel, CountsTheChoicesOfEachSequence) {
  Tensor choices = shaped({{2, Axis::batch}, {3, Axis::sequence}, {2}}, Category::activation, Dtype::int32);
  const Values counts = call(op_of(expert_counts), {{choices, {0, 1, 0, 2, 0, 3, 3, 1, 3, 1, 2, 3}}},
                             {plain({{2, Axis::batch}, {4}})})[0];
  expect_equal(counts, {3, 1, 1, 1, 0, 2, 1, 3}, 0);
}

KERNEL_TEST(ExpertCountsKernel, OfAllSequencesTogether) {
  Tensor choices = shaped({{2, Axis::batch}, {3, Axis::sequence}, {2}}, Category::activation, Dtype::int32);
  const Values counts =
      call(op_of(expert_counts), {{choices, {0, 1, 0, 2, 0, 3, 3, 1, 3, 1, 2, 3}}}, {plain({{1}, {4}})})[0];
  expect_equal(counts, {3, 3, 2, 4}, 0);
}

// The loss is the sum over all tokens of what each adds, loads being numbers.
KERNEL_TEST(RouterLossKernel, DerivativeIsTheSlopeOfTheSum) {
  for (const RouterScore score : kScores)
    for (const bool by_sequence : {false, true}) {
      SCOPED_TRACE(name_of(score));
      Op op = op_of(router_loss);
      op.router = {.score = score, .balance = 0.7f, .z = 0.05f, .by_sequence = by_sequence};
      op.scale = 2;
      const Tensor logits = plain({{2, Axis::batch}, {3, Axis::sequence}, {5}}),
                   counts = plain({{2, Axis::batch}, {5}}),
                   losses = plain({{2, Axis::batch}, {3, Axis::sequence}, {2}});
      Values x = random_values(30, 8);
      const Values loads{1, 0, 3, 2, 0, 2, 2, 1, 1, 0};
      const auto sum = [&] {
        const Values each = call(op, {{logits, x}, {counts, loads}}, {losses})[0];
        return std::accumulate(each.begin(), each.end(), 0.0);
      };
      Op backward = op;
      backward.kind = router_loss_backward;
      const Values slopes = call(backward, {{logits, x}, {counts, loads}}, {logits})[0];
      for (std::size_t i = 0; i < x.size(); ++i) {
        constexpr float kStep = 1.0f / 64;
        const float at = x[i];
        x[i] = at + kStep;
        const double above = sum();
        x[i] = at - kStep;
        const double below = sum();
        x[i] = at;
        EXPECT_NEAR(slopes[i], op.scale * (above - below) / (2 * kStep), 2e-3) << i;
      }
    }
}

// --- Rows in slots

// Each token's experts, all different.
Values random_choices(std::int64_t tokens, std::int64_t experts, std::int64_t k, std::uint32_t seed) {
  std::mt19937 generator(seed);
  Values choices;
  std::vector<float> order(static_cast<std::size_t>(experts));
  std::iota(order.begin(), order.end(), 0.0f);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::size_t i = order.size(); i-- > 1;) std::swap(order[i], order[generator() % (i + 1)]);
    choices.insert(choices.end(), order.begin(), order.begin() + k);
  }
  return choices;
}

// Who lies in the slots of each expert, by collecting and sorting.
struct Guest {
  std::int64_t choice, token;
  auto operator<=>(const Guest&) const = default;
};
std::vector<std::vector<Guest>> guests(const Values& choices, std::int64_t experts, std::int64_t k,
                                       std::int64_t slots) {
  std::vector<std::vector<Guest>> all(static_cast<std::size_t>(experts));
  for (std::size_t at = choices.size(); at-- > 0;) {
    const auto i = static_cast<std::int64_t>(at);
    all[static_cast<std::size_t>(choices[at])].push_back({i % k, i / k});
  }
  for (std::vector<Guest>& of_expert : all) {
    std::ranges::sort(of_expert);
    if (static_cast<std::int64_t>(of_expert.size()) > slots) of_expert.resize(static_cast<std::size_t>(slots));
  }
  return all;
}

struct SlotCase {
  std::int64_t tokens, experts, k, slots, width;
};
// With too few slots, with some to spare; with more choices than a block of threads reads at once.
constexpr std::array kSlotCases{SlotCase{9, 4, 2, 3, 5}, SlotCase{9, 4, 2, 9, 5}, SlotCase{16, 8, 3, 8, 16},
                                SlotCase{700, 3, 2, 500, 8}, SlotCase{700, 5, 2, 250, 3}};

KERNEL_TEST(PermuteKernel, PutsFirstChoicesFirstAndTokensInTheirOrder) {
  for (const SlotCase& c : kSlotCases) {
    const Values choices = random_choices(c.tokens, c.experts, c.k, 3), x = random_values(c.tokens * c.width, 4);
    const Values rows = call(
        op_of(permute), {{plain({{c.tokens, Axis::sequence}, {c.width}}), x}, {choices_of(c.tokens, c.k), choices}},
        {plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}, {c.width}})})[0];
    std::vector<double> expected(rows.size());
    const auto all = guests(choices, c.experts, c.k, c.slots);
    for (std::size_t e = 0; e < all.size(); ++e)
      for (std::size_t s = 0; s < all[e].size(); ++s)
        for (std::int64_t i = 0; i < c.width; ++i)
          expected[(e * static_cast<std::size_t>(c.slots) + s) * static_cast<std::size_t>(c.width) +
                   static_cast<std::size_t>(i)] = x[static_cast<std::size_t>(all[e][s].token * c.width + i)];
    expect_equal(rows, expected, 0);
  }
}

KERNEL_TEST(UnpermuteKernel, SumsTheRowsOfATokenByTheirWeights) {
  for (const SlotCase& c : kSlotCases)
    for (const bool weighted : {true, false}) {
      const Values choices = random_choices(c.tokens, c.experts, c.k, 3), weights = random_values(c.tokens * c.k, 5),
                   rows = random_values(c.experts * c.slots * c.width, 6);
      std::vector<Operand> reads{{plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}, {c.width}}), rows},
                                 {choices_of(c.tokens, c.k), choices}};
      if (weighted) reads.push_back({plain({{c.tokens, Axis::sequence}, {c.k}}), weights});
      const Values x = call(op_of(unpermute), reads, {plain({{c.tokens, Axis::sequence}, {c.width}})})[0];
      std::vector<double> expected(x.size());
      const auto all = guests(choices, c.experts, c.k, c.slots);
      for (std::size_t e = 0; e < all.size(); ++e)
        for (std::size_t s = 0; s < all[e].size(); ++s)
          for (std::int64_t i = 0; i < c.width; ++i) {
            const Guest& g = all[e][s];
            const double weight =
                weighted ? static_cast<double>(weights[static_cast<std::size_t>(g.token * c.k + g.choice)]) : 1;
            expected[static_cast<std::size_t>(g.token * c.width + i)] +=
                weight * rows[(e * static_cast<std::size_t>(c.slots) + s) * static_cast<std::size_t>(c.width) +
                              static_cast<std::size_t>(i)];
          }
      expect_equal(x, expected);
    }
}

KERNEL_TEST(PermuteKernel, DerivativesAreSlopes) {
  for (const std::int64_t slots : {3, 9}) {
    Machine m = machine_of(op_of(permute), {parameter({{9, Axis::sequence}, {5}}), choices_of(9, 2)},
                           {plain({{4, Axis::experts}, {slots, Axis::slots}, {5}})});
    expect_derivative(std::move(m), [](Machine& machine) { machine.values(1) = random_choices(9, 4, 2, 3); });
  }
}

KERNEL_TEST(UnpermuteKernel, DerivativesAreSlopes) {
  for (const std::int64_t slots : {3, 9})
    for (const bool weighted : {true, false}) {
      std::vector<Tensor> reads{parameter({{4, Axis::experts}, {slots, Axis::slots}, {5}}), choices_of(9, 2)};
      if (weighted) reads.push_back(parameter({{9, Axis::sequence}, {2}}));
      Machine m = machine_of(op_of(unpermute), reads, {plain({{9, Axis::sequence}, {5}})});
      expect_derivative(std::move(m), [](Machine& machine) { machine.values(1) = random_choices(9, 4, 2, 3); });
    }
}

// GShard (arXiv 2006.16668), algorithm 2: einsum("TEC,TM->ECM") and einsum("TEC,ECM->TM") are what is done by index,
// and so are their derivatives.
KERNEL_TEST(MaskKernels, ComputeWhatIsComputedByIndex) {
  for (const SlotCase& c : {SlotCase{9, 4, 2, 3, 5}, SlotCase{9, 4, 2, 9, 5}, SlotCase{16, 8, 3, 8, 16}}) {
    const Tensor tokens = plain({{c.tokens, Axis::sequence}, {c.width}}),
                 by_row = plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}, {c.width}}),
                 by_choice = plain({{c.tokens, Axis::sequence}, {c.k}}),
                 masks = plain({{c.tokens, Axis::sequence}, {c.experts, Axis::experts}, {c.slots, Axis::slots}});
    const Operand choices{choices_of(c.tokens, c.k), random_choices(c.tokens, c.experts, c.k, 3)},
        x{tokens, random_values(c.tokens * c.width, 4)}, rows{by_row, random_values(c.experts * c.slots * c.width, 5)},
        weights{by_choice, random_values(c.tokens * c.k, 6)};
    const Operand ones{masks, call(op_of(slot_mask), {choices}, {masks})[0]},
        weighted{masks, call(op_of(slot_mask), {choices, weights}, {masks})[0]};
    const auto expect_alike = [](const Values& a, const Values& b) {
      expect_equal(a, std::vector<double>(b.begin(), b.end()), 1e-5);
    };
    expect_alike(call(op_of(mask_permute), {x, ones}, {by_row})[0], call(op_of(permute), {x, choices}, {by_row})[0]);
    expect_alike(call(op_of(mask_unpermute), {rows, weighted}, {tokens})[0],
                 call(op_of(unpermute), {rows, choices, weights}, {tokens})[0]);
    const std::vector<Values> backward =
        call(op_of(unpermute_backward), {x, rows, choices, weights}, {by_row, by_choice});
    expect_alike(call(op_of(mask_permute), {x, weighted}, {by_row})[0], backward[0]);
    const Operand dmask{masks, call(op_of(mask_gradient), {x, rows}, {masks})[0]};
    expect_alike(call(op_of(slot_mask_backward), {dmask, choices}, {by_choice})[0], backward[1]);
  }
}

KERNEL_TEST(UnpermuteKernel, WhatWasDroppedHasNoGradient) {
  // Three tokens, one expert, one slot.
  const Operand dx{plain({{3}, {2}}), {1, 2, 3, 4, 5, 6}}, rows{plain({{1}, {1}, {2}}), {10, 20}},
      choices{choices_of(3, 1), {0, 0, 0}}, weights{plain({{3}, {1}}), {2, 3, 4}};
  const std::vector<Values> d =
      call(op_of(unpermute_backward), {dx, rows, choices, weights}, {plain({{1}, {1}, {2}}), plain({{3}, {1}})});
  EXPECT_EQ(d[0], (Values{2, 4}));
  EXPECT_EQ(d[1], (Values{50, 0, 0}));
}

KERNEL_TEST(PermuteWeightsKernel, PutsTheWeightOfAChoiceWhereItsTokenLies) {
  for (const SlotCase& c : kSlotCases) {
    const Tensor by_token = plain({{c.tokens, Axis::sequence}, {c.k}}),
                 by_row = plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}});
    const Operand choices{choices_of(c.tokens, c.k), random_choices(c.tokens, c.experts, c.k, 3)};
    const Values weights = random_values(c.tokens * c.k, 4), gradients = random_values(c.experts * c.slots, 5);
    const Values rows = call(op_of(permute_weights), {{by_token, weights}, choices}, {by_row})[0],
                 back = call(op_of(unpermute_weights), {{by_row, gradients}, choices}, {by_token})[0];
    std::vector<double> expected(rows.size()), expected_back(back.size());
    const auto all = guests(choices.values, c.experts, c.k, c.slots);
    for (std::size_t e = 0; e < all.size(); ++e)
      for (std::size_t s = 0; s < all[e].size(); ++s) {
        const std::size_t row = e * static_cast<std::size_t>(c.slots) + s,
                          at = static_cast<std::size_t>(all[e][s].token * c.k + all[e][s].choice);
        expected[row] = weights[at];
        expected_back[at] = gradients[row];
      }
    expect_equal(rows, expected, 0);
    expect_equal(back, expected_back, 0);
  }
}

// Where rows are counted nobody reads the slots behind them, which stay as they were.
KERNEL_TEST(PermuteKernel, LeavesSlotsBehindCountedRowsAlone) {
  KernelContext counted;
  counted.rows_are_counted = true;
  for (const SlotCase& c : kSlotCases) {
    const Tensor rows = plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}, {c.width}}),
                 by_row = plain({{c.experts, Axis::experts}, {c.slots, Axis::slots}}),
                 x = plain({{c.tokens, Axis::sequence}, {c.width}}),
                 by_token = plain({{c.tokens, Axis::sequence}, {c.k}});
    const Operand choices{choices_of(c.tokens, c.k), random_choices(c.tokens, c.experts, c.k, 3)},
        tokens{x, random_values(c.tokens * c.width, 4)}, weights{by_token, random_values(c.tokens * c.k, 5)},
        results{rows, random_values(c.experts * c.slots * c.width, 6)};
    const auto all = guests(choices.values, c.experts, c.k, c.slots);
    const auto expect = [&](const Op& op, const std::vector<Operand>& reads, const std::vector<Tensor>& writes) {
      const Values found = call(op, reads, writes, counted)[0], whole = call(op, reads, writes)[0];
      const std::size_t width = found.size() / static_cast<std::size_t>(c.experts * c.slots);
      for (std::size_t i = 0; i < found.size(); ++i) {
        const std::size_t row = i / width, slot = row % static_cast<std::size_t>(c.slots),
                          expert = row / static_cast<std::size_t>(c.slots);
        if (slot < all[expert].size())
          ASSERT_EQ(found[i], whole[i]) << name_of(op.kind) << " " << i;
        else
          ASSERT_TRUE(std::isnan(found[i])) << name_of(op.kind) << " " << i;
      }
    };
    expect(op_of(permute), {tokens, choices}, {rows});
    expect(op_of(unpermute_backward), {tokens, results, choices, weights}, {rows, by_token});
    expect(op_of(permute_weights), {weights, choices}, {by_row});
  }
}

KERNEL_TEST(PermuteWeightsKernel, DerivativesAreSlopes) {
  for (const std::int64_t slots : {3, 9}) {
    Machine m = machine_of(op_of(permute_weights), {parameter({{9, Axis::sequence}, {2}}), choices_of(9, 2)},
                           {plain({{4, Axis::experts}, {slots, Axis::slots}})});
    expect_derivative(std::move(m), [](Machine& machine) { machine.values(1) = random_choices(9, 4, 2, 3); });
  }
}

KERNEL_TEST(PermuteWeightsKernel, WeightsAreThoseOfChoices) {
  const Operand choices{choices_of(3, 1), {0, 0, 0}};
  EXPECT_THROW(call(op_of(permute_weights), {{plain({{3}, {2}}), Values(6)}, choices}, {plain({{1}, {2}})}),
               std::logic_error);
  EXPECT_THROW(call(op_of(permute_weights), {{plain({{3}, {1}}), Values(3)}, choices}, {plain({{1}, {2}, {1}})}),
               std::logic_error);
  EXPECT_THROW(call(op_of(unpermute_weights), {{plain({{1}, {2}}), Values(2)}, choices}, {plain({{3}, {2}})}),
               std::logic_error);
}

// Weighing rows before the second product, which is linear, is weighing what is put together behind it.
KERNEL_TEST(ActivationKernel, WeighsEachRow) {
  for (const bool gated : {false, true}) {
    Op op = op_of(activation);
    op.function = gated ? ActivationFunction::swiglu : ActivationFunction::gelu;
    const Tensor x = gated ? plain({{3}, {4}, {2}, {5}}) : plain({{3}, {4}, {5}}), y = plain({{3}, {4}, {5}});
    const Values inputs = random_values(x.elements(), 1), weights = random_values(12, 2);
    const Values alone = call(op, {{x, inputs}}, {y})[0],
                 weighed = call(op, {{x, inputs}, {}, {plain({{3}, {4}}), weights}}, {y})[0];
    std::vector<double> expected;
    for (std::size_t i = 0; i < alone.size(); ++i)
      expected.push_back(static_cast<double>(weights[i / 5]) * static_cast<double>(alone[i]));
    expect_equal(weighed, expected);
    EXPECT_THROW(call(op, {{x, inputs}, {}, {plain({{3}, {3}}), Values(9)}}, {y}), std::logic_error);
  }
}

KERNEL_TEST(ActivationKernel, DerivativesOfWeighedRowsAreSlopes) {
  using enum ActivationFunction;
  for (const ActivationFunction f : {gelu, swiglu, geglu, relu2})
    for (const std::int64_t width : {5, 16, 600}) {
      Op op = op_of(activation);
      op.function = f;
      const bool gated = f == swiglu || f == geglu;
      const Tensor x = gated ? parameter({{2}, {3}, {2}, {width}}) : parameter({{2}, {3}, {width}}),
                   bias = gated ? parameter({{2}, {width}}) : parameter({{width}});
      for (const Tensor& added : {Tensor{}, bias})
        expect_derivative(machine_of(op, {x, added, parameter({{2}, {3}})}, {plain({{2}, {3}, {width}})}));
    }
}

// --- A product for each expert

Values slice(const Values& values, std::int64_t part, std::int64_t parts) {
  const auto n = static_cast<std::ptrdiff_t>(values.size()) / parts;
  return {values.begin() + part * n, values.begin() + (part + 1) * n};
}

KERNEL_TEST(GroupedLinearKernel, IsAProductForEachExpert) {
  constexpr std::int64_t kExperts = 3;
  for (const bool transposed : {false, true}) {
    Op op = op_of(linear), alone = op;
    op.group_dims = 1;
    op.transposed_weight = alone.transposed_weight = transposed;
    const Tensor w = transposed ? plain({{kExperts}, {2}, {7}, {5}}) : plain({{kExperts}, {5}, {2}, {7}});
    const Tensor own_w = transposed ? plain({{2}, {7}, {5}}) : plain({{5}, {2}, {7}});
    const Values x = random_values(kExperts * 4 * 5, 1), weight = random_values(w.elements(), 2),
                 bias = random_values(kExperts * 14, 3);
    const Values y = call(op, {{plain({{kExperts}, {4}, {5}}), x}, {w, weight}, {plain({{kExperts}, {2}, {7}}), bias}},
                          {plain({{kExperts}, {4}, {2}, {7}})})[0];
    for (std::int64_t e = 0; e < kExperts; ++e)
      EXPECT_EQ(slice(y, e, kExperts), call(alone,
                                            {{plain({{4}, {5}}), slice(x, e, kExperts)},
                                             {own_w, slice(weight, e, kExperts)},
                                             {plain({{2}, {7}}), slice(bias, e, kExperts)}},
                                            {plain({{4}, {2}, {7}})})[0]);
  }
}

KERNEL_TEST(GroupedLinearKernel, DerivativesAreSlopes) {
  Op op = op_of(linear);
  op.group_dims = 1;
  expect_derivative(
      machine_of(op, {parameter({{3}, {4}, {5}}), parameter({{3}, {5}, {2}, {3}}), parameter({{3}, {2}, {3}})},
                 {plain({{3}, {4}, {2}, {3}})}));
  op.transposed_weight = true;
  op.inner_dims = 2;
  expect_derivative(
      machine_of(op, {parameter({{3}, {4}, {5}, {2}}), parameter({{3}, {7}, {5}, {2}})}, {plain({{3}, {4}, {7}})}));
}

KERNEL_TEST(GroupedBiasGradientKernel, SumsTheRowsOfEachExpert) {
  for (const auto& [experts, slots, width] : {std::array<std::int64_t, 3>{3, 5, 7}, {2, 300, 40}, {1, 9, 16}}) {
    Op op = op_of(bias_gradient);
    op.group_dims = 1;
    const Values dy = random_values(experts * slots * width, 1);
    const Values db = call(op, {{plain({{experts}, {slots}, {width}}), dy}}, {plain({{experts}, {width}})})[0];
    std::vector<double> expected(static_cast<std::size_t>(experts * width));
    for (std::int64_t i = 0; i < experts * slots * width; ++i)
      expected[static_cast<std::size_t>(i / (slots * width) * width + i % width)] += dy[static_cast<std::size_t>(i)];
    expect_equal(db, expected, 5 * kFp32);
  }
}

// --- A gate

KERNEL_TEST(MultiplyKernel, OneNumberMayMultiplyARow) {
  const Operand a{plain({{2}, {3}}), {1, 2, 3, 4, 5, 6}}, b{plain({{2}, {1}}), {10, -1}};
  EXPECT_EQ(call(op_of(multiply), {a, b}, {plain({{2}, {3}})})[0], (Values{10, 20, 30, -4, -5, -6}));
  const Operand c{plain({{2}, {3}}), {1, 1, 2, 2, 1, 1}};
  EXPECT_EQ(call(op_of(multiply), {a, c}, {plain({{2}, {1}})})[0], (Values{9, 19}));
  for (const std::int64_t width : {1, 5, 16, 600})
    expect_derivative(machine_of(op_of(multiply), {parameter({{4}, {3}, {width}}), parameter({{4}, {3}, {1}})},
                                 {plain({{4}, {3}, {width}})}));
}

}  // namespace
}  // namespace orrery::cpu
