#include "study/search/layer_programme.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace orrery {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Instance {
  std::vector<LayerKind> kinds;
  std::vector<std::int32_t> layers;
  std::int64_t budget = 0;
};

double entering(const LayerKind& kind, std::size_t choices, std::size_t from, std::size_t to) {
  return kind.entering.empty() ? 0 : kind.entering[from * choices + to];
}

// The cost of a plan in the order in which the recurrence adds; infinite if it does not fit.
double cost_of(const Instance& its, const std::vector<std::int32_t>& plan) {
  double cost = 0;
  std::int64_t held = 0;
  for (std::size_t l = 0; l < plan.size(); ++l) {
    const LayerKind& kind = its.kinds[its.layers[l]];
    const LayerOption& option = kind.options[plan[l]];
    held += option.memory;
    if (held + option.transient > its.budget) return kNever;
    cost = cost +
           (l == 0 ? 0
                   : entering(kind, kind.options.size(), static_cast<std::size_t>(plan[l - 1]),
                              static_cast<std::size_t>(plan[l]))) +
           option.cost;
  }
  return cost;
}

// All plans, one by one.
double least_cost(const Instance& its) {
  std::vector<std::int32_t> plan(its.layers.size(), 0);
  const auto choices = static_cast<std::int32_t>(its.kinds[0].options.size());
  double least = kNever;
  while (true) {
    least = std::min(least, cost_of(its, plan));
    std::size_t l = 0;
    while (l < plan.size() && ++plan[l] == choices) plan[l++] = 0;
    if (l == plan.size()) return least;
  }
}

// The recurrence as it is written, with all of its cells.
std::vector<std::int32_t> plain(const Instance& its) {
  const std::size_t layers = its.layers.size(), choices = its.kinds[0].options.size(), units = its.budget + 1;
  std::vector<std::vector<double>> f(units, std::vector<double>(choices, 0));
  std::vector<std::vector<std::vector<std::int32_t>>> mark(layers);
  for (std::size_t l = 0; l < layers; ++l) {
    const LayerKind& kind = its.kinds[its.layers[l]];
    auto next = f;
    mark[l].assign(units, std::vector<std::int32_t>(choices, 0));
    for (std::size_t e = 0; e < units; ++e)
      for (std::size_t s = 0; s < choices; ++s) {
        next[e][s] = kNever;
        const std::int64_t left = static_cast<std::int64_t>(e) - kind.options[s].memory;
        for (std::size_t from = 0; left >= 0 && from < choices; ++from) {
          const double cost = (f[left][from] + (l == 0 ? 0 : entering(kind, choices, from, s))) + kind.options[s].cost;
          if (cost < next[e][s]) next[e][s] = cost, mark[l][e][s] = static_cast<std::int32_t>(from);
        }
      }
    f = next;
  }
  const auto last = std::ranges::min_element(f[its.budget]);
  if (*last == kNever) return {};
  std::vector<std::int32_t> plan(layers, static_cast<std::int32_t>(last - f[its.budget].begin()));
  std::int64_t e = its.budget;
  for (std::size_t l = layers - 1; l > 0; --l) {
    plan[l - 1] = mark[l][e][plan[l]];
    e -= its.kinds[its.layers[l]].options[plan[l]].memory;
  }
  return plan;
}

class Drawn {
 public:
  explicit Drawn(unsigned seed) : random_(seed) {}
  std::int64_t upto(std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random_); }

  // Costs of few different values, so that plans tie.
  Instance instance(std::int64_t layers, std::int64_t choices, bool transients) {
    Instance its;
    its.kinds.resize(1 + upto(2));
    const std::int64_t memory = 1 + upto(12);
    for (LayerKind& kind : its.kinds) {
      for (std::int64_t s = 0; s < choices; ++s)
        kind.options.push_back(
            {upto(12) == 0 ? kNever : 0.1 * static_cast<double>(upto(6)), upto(memory), transients ? upto(memory) : 0});
      if (upto(3) > 0)
        for (std::int64_t i = 0; i < choices * choices; ++i)
          kind.entering.push_back(0.1 * static_cast<double>(upto(2)));
    }
    for (std::int64_t l = 0; l < layers; ++l)
      its.layers.push_back(static_cast<std::int32_t>(upto(static_cast<std::int64_t>(its.kinds.size()) - 1)));
    its.budget = upto(memory * layers + 3);
    return its;
  }

 private:
  std::mt19937 random_;
};

TEST(LayerProgramme, IsNeverBeatenByAnyPlan) {
  Drawn drawn(1);
  int fit = 0, none = 0;
  for (int i = 0; i < 2000; ++i) {
    const Instance its = drawn.instance(1 + drawn.upto(4), 1 + drawn.upto(4), i % 2 == 1);
    const std::optional<LayerPlan> found = LayerProgramme(its.kinds, its.layers, its.budget).cheapest();
    const double least = least_cost(its);
    ASSERT_EQ(found.has_value(), least < kNever) << i;
    ++(found ? fit : none);
    if (!found) continue;
    EXPECT_EQ(found->cost, cost_of(its, found->choices)) << i;  // it is the cost of its choices, and they fit
    EXPECT_NEAR(found->cost, least, 1e-12) << i;
    std::int64_t memory = 0;
    for (std::size_t l = 0; l < its.layers.size(); ++l)
      memory += its.kinds[its.layers[l]].options[found->choices[l]].memory;
    EXPECT_EQ(found->memory, memory);
  }
  EXPECT_GT(fit, 500);
  EXPECT_GT(none, 100);
}

TEST(LayerProgramme, BreaksTiesAsThePlainRecurrence) {
  Drawn drawn(2);
  for (int i = 0; i < 600; ++i) {
    const Instance its = drawn.instance(1 + drawn.upto(12), 1 + drawn.upto(8), false);
    const std::optional<LayerPlan> found = LayerProgramme(its.kinds, its.layers, its.budget).cheapest();
    EXPECT_EQ(found ? found->choices : std::vector<std::int32_t>{}, plain(its)) << i;
  }
}

TEST(LayerProgramme, OneSearchAnswersForSmallerBudgets) {
  Drawn drawn(3);
  for (int i = 0; i < 100; ++i) {
    Instance its = drawn.instance(1 + drawn.upto(10), 1 + drawn.upto(6), false);
    const LayerProgramme large(its.kinds, its.layers, its.budget);
    for (; its.budget >= 0; --its.budget) {
      const std::optional<LayerPlan> found = large.cheapest(its.budget);
      EXPECT_EQ(found ? found->choices : std::vector<std::int32_t>{}, plain(its)) << i;
    }
  }
}

// More units than are searched at once, and costs that differ in their last bits by the order of sums.
TEST(LayerProgramme, IsThePlainRecurrenceWhereMemoryHasManyUnits) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> cost(0.9, 1.1);
  std::uniform_int_distribution<std::int64_t> memory(20, 300);
  for (int i = 0; i < 6; ++i) {
    Instance its{.kinds = std::vector<LayerKind>(2), .layers = {}, .budget = 1500 + 100 * i};
    for (LayerKind& kind : its.kinds) {
      for (int s = 0; s < 7; ++s) kind.options.push_back({cost(random), memory(random)});
      for (int s = 0; s < 49; ++s) kind.entering.push_back(s % 8 == 0 ? 0 : 0.01 * cost(random));
    }
    for (int l = 0; l < 24; ++l) its.layers.push_back(l < 9 ? 0 : 1);
    const std::optional<LayerPlan> found = LayerProgramme(its.kinds, its.layers, its.budget).cheapest();
    EXPECT_EQ(found ? found->choices : std::vector<std::int32_t>{}, plain(its)) << i;
  }
}

}  // namespace
}  // namespace orrery
