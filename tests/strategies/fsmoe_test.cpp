// FSMoE: pipeline degrees by the linear models, the four cases, and gradients cut to what links idle.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "sim/base/error.h"
#include "strategies/fsmoe/choices.h"

namespace orrery::fsmoe {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

// Data and work of a layer in FSMoE's layout, as its authors count them (arXiv 2501.10714; tools/optim.py of
// github.com/xpan413/FSMoE): elements for communication, multiply-adds for products. Tensor parallelism and the
// sharding of each expert are over a node's ranks; experts are divided over nodes, one expert per node.
struct LayerSize {
  std::int64_t sequences = 1;  // B, sequences per rank
  std::int64_t length = 1;     // L, tokens per sequence
  std::int64_t hidden = 1;     // M
  std::int64_t ffn = 1;        // H, of one expert
  std::int64_t heads = 1;
  std::int64_t top_k = 1;
  double capacity_factor = 1;        // f; 1 where no token is dropped and routing is balanced
  std::int64_t expert_products = 2;  // n_g: 2, or 3 where the activation is gated (Mixtral)
  bool grouped_query = false;        // keys and values have a quarter of the width (Mixtral)
  std::int64_t node_ranks = 1;       // N_MP = N_ESP
};

// Times fitted to one cluster.
struct ClusterTimes {
  LinearTime all_to_all, all_gather, reduce_scatter, all_reduce;  // by elements
  LinearTime product, attention;                                  // by multiply-adds
};

// Doubles: counts of products beyond 2^53 need not be exact.
struct Sizes {
  explicit Sizes(const LayerSize& s)
      : b(static_cast<double>(s.sequences)),
        l(static_cast<double>(s.length)),
        m(static_cast<double>(s.hidden)),
        h(static_cast<double>(s.ffn)),
        assignments(static_cast<double>(s.top_k) * s.capacity_factor * b * l),
        node(static_cast<double>(s.node_ranks)) {}
  double b, l, m, h, assignments, node;
};

ChunkedTime chunked(const LinearTime& time, double work) { return {time.start_up, work * time.per_unit}; }

// Of a dispatch, or of a combine.
double all_to_all_elements(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m / s.node;
}
// Of an all-gather, or of a reduce-scatter, within the node.
double gather_elements(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m;
}
// Multiply-adds per rank, forward.
double expert_products(const LayerSize& size) {
  const Sizes s(size);
  return s.assignments * s.m * s.h * static_cast<double>(size.expert_products) / s.node;
}
// Multiply-adds per rank, forward, including projections.
double attention_products(const LayerSize& size) {
  const Sizes s(size);
  const auto heads = static_cast<double>(size.heads);
  return s.b * s.l * s.m * s.m * 3 / s.node + 2 * s.b * (heads / s.node) * s.l * s.l * (s.m / heads) +
         s.b * s.l * s.m * s.m / s.node;
}
// Elements per rank that are all-reduced between nodes.
double attention_gradients(const LayerSize& size) {
  const Sizes s(size);
  if (size.grouped_query) return (1.5 * s.m * s.m + s.m * s.m) / s.node;
  return (3 * s.m * s.m + 3 * s.m + s.m * s.m) / s.node + s.m;
}

LayerTimes forward_times(const LayerSize& size, const ClusterTimes& cluster) {
  return {chunked(cluster.all_to_all, all_to_all_elements(size)), chunked(cluster.all_gather, gather_elements(size)),
          chunked(cluster.reduce_scatter, gather_elements(size)), chunked(cluster.product, expert_products(size))};
}

// Returns the seconds of the backward between two layers with experts: attention (twice its forward), and its
// all-gather and reduce-scatter within the node. The link between nodes is idle for this time.
double dense_backward_seconds(const LayerSize& size, const ClusterTimes& cluster) {
  const Sizes s(size);
  const double tokens = s.b * s.l * s.m;
  return 2 * cluster.attention.seconds(attention_products(size)) + cluster.all_gather.seconds(tokens) +
         cluster.reduce_scatter.seconds(tokens);
}

constexpr double kMs = 1e-3;
LinearTime ms(double start_up, double per_unit) { return {start_up * kMs, per_unit * kMs}; }

// Defaults of tools/optim.py (github.com/xpan413/FSMoE); attention at length 1024.
const ClusterTimes kOptim{ms(0.23515350484, 1.8543323833e-6),
                          ms(0.0549, 6.72388e-7),
                          ms(0.0688, 6.70433e-7),
                          ms(0.34099276392, 3.4950701465e-6),
                          ms(0.591943532, 5.6847387697e-11),
                          ms(0.6463, 2.588e-10)};
// Testbeds A and B: start-ups as figure 5 of the paper prints them, slopes that reproduce its table 2 with phi = 2.4
// (strategies/fsmoe/README.md says why not the printed ones).
const ClusterTimes kTestbedA{ms(0.287, 1.94e-6), ms(0.337, 2.16e-7),  ms(0.395, 2.40e-7),
                             ms(0.511, 4.95e-6), ms(0.0426, 7.2e-11), ms(0.6463, 1.59e-10)};
const ClusterTimes kTestbedB{ms(0.175, 1.41e-6),  ms(0.0320, 6.95e-7),  ms(0.0391, 7.1e-7),
                             ms(0.0837, 3.06e-6), ms(0.0924, 1.35e-10), ms(0.6463, 1.84e-10)};

LayerSize mixtral() {
  LayerSize size;
  size.sequences = 4;
  size.length = 1024;
  size.hidden = 4096;
  size.ffn = 14336;
  size.heads = 32;
  size.top_k = 2;
  size.capacity_factor = 1.2;
  size.expert_products = 3;
  size.grouped_query = true;
  size.node_ranks = 8;
  return size;
}

struct Golden {
  std::int64_t degree;
  int bottleneck;
  double milliseconds;
};
void expect_golden(const LayerTimes& times, double all_reduce, const std::vector<Golden>& all, std::int64_t chosen) {
  for (const Golden& g : all) {
    const PipelinedLayer layer = pipelined(times, g.degree, all_reduce);
    EXPECT_EQ(static_cast<int>(layer.bottleneck), g.bottleneck) << g.degree;
    EXPECT_NEAR(layer.seconds / kMs, g.milliseconds, 0.0006) << g.degree;
  }
  EXPECT_EQ(best_degree(times, all_reduce).degree, chosen);
}

// By hand from the formulas, with the constants of optim.py: B 4, L 1024, M 4096, H 14336, three products, phi 2.4,
// nodes of 8.
TEST(FsMoeDegree, IsTheFastestOfFour) {
  const LayerTimes forward = forward_times(mixtral(), kOptim);
  expect_golden(forward, 0, {{1, 2, 86.227}, {2, 4, 64.120}, {4, 4, 59.701}, {8, 4, 57.862}}, 8);
  expect_golden(backward(forward), 0, {{1, 2, 99.124}, {2, 4, 64.120}, {4, 4, 59.701}, {8, 4, 57.862}}, 8);
  expect_golden(backward(forward), 60 * kMs, {{1, 2, 99.124}, {2, 1, 79.607}, {4, 1, 80.548}, {8, 1, 82.429}}, 2);
}

TEST(FsMoeDegree, CountsWorkAsTheAuthorsDo) {
  const LayerSize size = mixtral();
  const double tokens = 4.0 * 1024;
  EXPECT_DOUBLE_EQ(all_to_all_elements(size), 2.4 * tokens * 4096 / 8);
  EXPECT_DOUBLE_EQ(gather_elements(size), 2.4 * tokens * 4096);
  EXPECT_DOUBLE_EQ(expert_products(size), 2.4 * tokens * 4096 * 14336 * 3 / 8);
  EXPECT_DOUBLE_EQ(attention_products(size), 4 * tokens * 4096 * 4096 / 8 + 2 * tokens * 1024 * 4096 / 8);
  EXPECT_DOUBLE_EQ(attention_gradients(size), 2.5 * 4096 * 4096 / 8);
  LayerSize gpt2 = size;
  gpt2.hidden = 1600;
  gpt2.grouped_query = false;
  EXPECT_DOUBLE_EQ(attention_gradients(gpt2), (4.0 * 1600 * 1600 + 3 * 1600) / 8 + 1600);
  EXPECT_DOUBLE_EQ(dense_backward_seconds(size, kOptim), 2 * kOptim.attention.seconds(attention_products(size)) +
                                                             kOptim.all_gather.seconds(tokens * 4096) +
                                                             kOptim.reduce_scatter.seconds(tokens * 4096));
}

// Table 2 of the paper: all-reduces of 26.45 ms (Mixtral) and 5.26 ms (GPT2-XL's 3 M^2 / 8 elements) on testbed A.
TEST(FsMoeDegree, ReducesGradientsAsTestbedADoes) {
  EXPECT_NEAR(kTestbedA.all_reduce.seconds(attention_gradients(mixtral())) / kMs, 26.45, 0.02);
  EXPECT_NEAR(kTestbedA.all_reduce.seconds(3.0 * 1600 * 1600 / 8) / kMs, 5.26, 0.01);
}

// The link between nodes is busy 2 r a2a and idles the rest: an all-reduce takes time where it is longer.
TEST(FsMoeDegree, TakesTheAllReduceIntoWhatTheLinkIdles) {
  std::mt19937_64 random(1);
  const auto draw = [&](double most) { return most * static_cast<double>(random() >> 11) * 0x1p-53; };
  std::array<int, 5> seen{};
  for (int i = 0; i < 4000; ++i) {
    const LayerTimes times{{draw(1), draw(20)}, {draw(1), draw(20)}, {draw(1), draw(20)}, {draw(1), draw(40)}};
    for (const std::int64_t r : kDegrees) {
      const PipelinedLayer alone = pipelined(times, r, 0);
      const double busy = 2 * static_cast<double>(r) * times.all_to_all.of_chunk(static_cast<double>(r));
      const double all_reduce = draw(40);
      const PipelinedLayer both = pipelined(times, r, all_reduce);
      EXPECT_NEAR(both.seconds, busy + std::max(all_reduce, alone.idle_seconds), 1e-9);
      EXPECT_EQ(both.idle_seconds, alone.idle_seconds);
      EXPECT_EQ(both.bottleneck == Bottleneck::inter_node, all_reduce > alone.idle_seconds);
      ++seen[static_cast<std::size_t>(both.bottleneck)];
      // A pipeline is no faster than any of its channels. (Cases tell by all-gathers alone which that is.)
      LayerTimes alike = times;
      alike.reduce_scatter = alike.all_gather;
      const double chunks = static_cast<double>(r), seconds = pipelined(alike, r, 0).seconds + 1e-9;
      EXPECT_GE(seconds, chunks * alike.experts.of_chunk(chunks));
      EXPECT_GE(seconds, 2 * chunks * alike.all_gather.of_chunk(chunks));
      EXPECT_GE(seconds, 2 * chunks * alike.all_to_all.of_chunk(chunks));
    }
  }
  for (int bottleneck = 1; bottleneck <= 4; ++bottleneck) EXPECT_GT(seen[static_cast<std::size_t>(bottleneck)], 100);
}

// Table 4: B, heads, L, M, H / M, f and the kind of FFN.
std::vector<LayerSize> grid(std::int64_t shortest, std::int64_t node_ranks) {
  std::vector<LayerSize> all;
  for (const std::int64_t b : {1, 2, 4})
    for (const std::int64_t heads : {8, 16, 32})
      for (const std::int64_t l : {shortest, 2 * shortest, 4 * shortest})
        for (const std::int64_t m : {1024, 2048, 4096})
          for (const std::int64_t ratio : {2, 3, 4})
            for (const double f : {1.2, 2.4, 1.0})  // "*", no dropping, of balanced routing
              for (const bool is_mixtral : {false, true})
                all.push_back({b, l, m, ratio * m, heads, 2, f, is_mixtral ? 3 : 2, is_mixtral, node_ranks});
  return all;
}

// Of the 1,458 layers 912 have other degrees forward and backward in the paper (section 2.3), measured. The formulas,
// with what a layer leaves all-reduced in the layer itself, have 27 too many on testbed A and 126 too many on B: this
// test keeps both counts, and says nothing of how near the measured one they are.
TEST(FsMoeDegree, DiffersBetweenThePassesOfMoreLayersThanMeasured) {
  constexpr int kMeasured = 912;
  struct Testbed {
    ClusterTimes cluster;
    std::vector<LayerSize> sizes;
    int too_many;
  };
  for (const auto& [cluster, sizes, too_many] :
       {Testbed{kTestbedA, grid(512, 8), 27}, Testbed{kTestbedB, grid(256, 4), 126}}) {
    ASSERT_EQ(sizes.size(), 1458u);
    int differ = 0;
    std::array<int, 9> chosen{};
    for (const LayerSize& size : sizes) {
      const LayerTimes forward = forward_times(size, cluster);
      const PipelinedLayer ahead = best_degree(forward, 0),
                           back = best_degree(backward(forward), cluster.all_reduce.seconds(attention_gradients(size)));
      for (const std::int64_t r : kDegrees) EXPECT_LE(ahead.seconds, pipelined(forward, r, 0).seconds);
      differ += ahead.degree != back.degree;
      ++chosen[static_cast<std::size_t>(ahead.degree)];
    }
    EXPECT_NEAR(differ, kMeasured + too_many, 3) << "ties are a matter of rounding";
    for (const int degree : {2, 4, 8})
      EXPECT_GT(chosen[static_cast<std::size_t>(degree)], 100) << "no one degree will do";
  }
}

GeneralisedLayer layer_of(const LayerSize& size, const ClusterTimes& cluster) {
  return {backward(forward_times(size, cluster)), dense_backward_seconds(size, cluster), attention_gradients(size)};
}

double reduced(const GradientPartition& p) {
  double sum = 0;
  for (const double piece : p.in_dense) sum += piece;
  for (const double piece : p.in_moe) sum += piece;
  return sum;
}

TEST(FsMoeGradients, FillWhatLinksIdle) {
  const std::vector<GeneralisedLayer> layers(8, layer_of(mixtral(), kTestbedA));
  const GradientPartition greedy = greedy_partition(layers, kTestbedA.all_reduce);
  EXPECT_EQ(greedy.in_dense[0] + greedy.in_moe[0], 0) << "no gradient is there before the first layer's";
  EXPECT_NEAR(reduced(greedy) + greedy.after, 8 * layers[0].gradient_elements, 1);
  EXPECT_GT(reduced(greedy), 4 * layers[0].gradient_elements);
  double unhindered = 0;
  for (const GeneralisedLayer& layer : layers) unhindered += layer.dense_seconds + best_degree(layer.moe, 0).seconds;
  EXPECT_NEAR(greedy.seconds, unhindered + greedy.after * kTestbedA.all_reduce.per_unit, 1e-12)
      << "what fits costs nothing";
}

// Against all partitions on a fine grid: three layers, no dense parts, so that two pieces are to be chosen.
TEST(FsMoeGradients, AreCutBestOfAllWays) {
  std::mt19937_64 random(3);
  const auto draw = [&](double most) { return most * static_cast<double>(random() >> 11) * 0x1p-53; };
  int better = 0;
  for (int round = 0; round < 40; ++round) {
    const LinearTime all_reduce{draw(1), 1};
    std::vector<GeneralisedLayer> layers;
    for (int i = 0; i < 3; ++i)
      layers.push_back(
          {{{draw(2), draw(10)}, {draw(1), draw(10)}, {draw(1), draw(10)}, {draw(1), draw(20)}}, 0, draw(30)});
    const GradientPartition greedy = greedy_partition(layers, all_reduce), best = best_partition(layers, all_reduce);
    EXPECT_LE(best.seconds, greedy.seconds);
    better += best.seconds < greedy.seconds - 1e-9;
    constexpr int kSteps = 300;
    const double first = layers[0].gradient_elements, both = first + layers[1].gradient_elements;
    std::vector<double> second(kSteps + 1);
    const auto seconds_with = [&](std::size_t layer, double elements) {
      return best_degree(layers[layer].moe, elements > 0 ? all_reduce.seconds(elements) : 0).seconds;
    };
    for (int j = 0; j <= kSteps; ++j) second[static_cast<std::size_t>(j)] = seconds_with(2, both * j / kSteps);
    double least = INFINITY;
    for (int i = 0; i <= kSteps; ++i) {
      const double one = first * i / kSteps, base = seconds_with(0, 0) + seconds_with(1, one);
      for (int j = 0; j <= kSteps; ++j) {
        const double two = both * j / kSteps;
        if (one + two > both) break;
        least = std::min(least,
                         base + second[static_cast<std::size_t>(j)] + both - one - two + layers[2].gradient_elements);
      }
    }
    EXPECT_LE(best.seconds, least + 1e-9) << round;
    EXPECT_GE(best.seconds, least - 2 * both / kSteps) << round << ": a grid cannot be that far off";
  }
  EXPECT_GT(better, 3) << "there is something to gain over the greedy partition";
}

TEST(FsMoeGradients, AreNeverCutWorseThanGreedily) {
  std::mt19937_64 random(5);
  const auto draw = [&](double most) { return most * static_cast<double>(random() >> 11) * 0x1p-53; };
  for (const std::size_t count : {1u, 2u, 12u, 32u}) {
    for (int round = 0; round < 5; ++round) {
      std::vector<GeneralisedLayer> layers;
      for (std::size_t i = 0; i < count; ++i)
        layers.push_back(
            {{{draw(1), draw(10)}, {draw(1), draw(10)}, {draw(1), draw(10)}, {draw(1), draw(20)}}, draw(5), draw(20)});
      const LinearTime all_reduce{draw(1), 0.5 + draw(1)};
      GradientPartition best = best_partition(layers, all_reduce);
      EXPECT_LE(best.seconds, greedy_partition(layers, all_reduce).seconds);
      const double seconds = best.seconds;
      evaluate(layers, all_reduce, kDegrees, best);  // that no more is reduced than is there
      EXPECT_EQ(best.seconds, seconds);
    }
  }
  EXPECT_EQ(best_partition({}, {0, 1}).seconds, 0);
}

TEST(FsMoeGradients, RefuseWhatIsNotThere) {
  const std::vector<GeneralisedLayer> layers(2, {{{1, 1}, {1, 1}, {1, 1}, {1, 1}}, 1, 10});
  GradientPartition p{{0, 0}, {1, 0}, {}, 0, 0};
  const auto refusal = [](auto act) {
    try {
      act();
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([&] {
                evaluate(layers, {0, 1}, kDegrees, p);
              }),
              HasSubstr("found 1 elements all-reduced in layer 0, expected 0 to the 0 that are left"));
  p.in_moe = {0, 10};
  EXPECT_EQ(refusal([&] { evaluate(layers, {0, 1}, kDegrees, p); }), "accepted");
  EXPECT_EQ(p.after, 10);
  EXPECT_THAT(refusal([&] { best_partition(layers, {0, 0}); }), HasSubstr("without time per element"));
  std::vector<GeneralisedLayer> negative = layers;
  negative[1].gradient_elements = -1;
  EXPECT_THAT(refusal([&] { greedy_partition(negative, {0, 1}); }), HasSubstr("gradient elements of -1"));
}

}  // namespace
}  // namespace orrery::fsmoe
