// Unequal routing: what it does to times and memory, in both engines.
#include "traces/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "sim/analytical/pipeline_walk.h"
#include "sim/cost/exchange_skew.h"
#include "sim/des/plan.h"
#include "sim/program/check.h"
#include "strategies/pipeline_parallel/schedules.h"
#include "strategies/read_scenario.h"
#include "tests/des/support.h"
#include "tests/traces/routing_csv.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

// Mixtral 8x7B on two DGX H100, an expert a rank.
Scenario mixtral(std::int64_t nodes = 2) {
  Scenario s = scenario_of("mixtral-8x7b", "dgx-h100", nodes);
  s.workload.sequence_length = 4096;
  s.workload.global_batch_size = 8 * nodes;
  s.plan.expert.degree = 8;
  s.plan.data.zero_stage = 1;
  return s;
}

// All layers from `layer` on route by these counts of one source, of which every token has two.
struct LayerCounts {
  std::int64_t layer = 0;
  std::vector<std::int64_t> counts;
};
std::shared_ptr<const RoutingCounts> recorded(const std::vector<LayerCounts>& all, std::int64_t top_k = 2) {
  RoutingShape shape;
  shape.steps = {0};
  for (const LayerCounts& l : all) shape.layers.push_back(l.layer);
  shape.experts = static_cast<std::int64_t>(all.front().counts.size());
  shape.top_k = top_k;
  auto counts = std::make_shared<RoutingCounts>(shape);
  for (const LayerCounts& l : all)
    counts->append(std::accumulate(l.counts.begin(), l.counts.end(), std::int64_t{0}) / top_k, l.counts);
  return counts;
}
// The first expert has `times` the mean of 8, up to 4; the others share what is left.
std::vector<std::int64_t> hot(std::int64_t times) {
  std::vector<std::int64_t> counts(8, 8 - times);
  counts[0] = 7 * times;
  return counts;
}

Program lowered(const Scenario& s) {
  Program program;
  lower(s, program);
  return program;
}

// Multiply-adds of an instance of a piece's products by expert.
double expert_products(const Piece& piece) {
  double all = 0;
  for (const Block* block : {&piece.forward, &piece.backward})
    for (const Op& op : block->ops)
      if (is_matmul(op.kind) && op.group_dims > 0) all += flops(op, piece.tensors);
  return all;
}

const Piece& first_layer(const Program& program) {
  const auto run =
      std::ranges::find_if(program.line, [&](const orrery::PieceRun& r) { return program.pieces[r.piece].layers > 0; });
  return program.pieces[run->piece];
}

std::string violations(const Program& program) {
  std::string text;
  for (const Violation& v : check(program)) text += v.text + "\n";
  return text;
}

TEST(UnequalRouting, BalancedCountsChangeNothingBitForBit) {
  const Scenario plain = mixtral();
  Scenario counted = plain;
  counted.workload.recorded_routing = recorded({{0, std::vector<std::int64_t>(8, 100)}});
  const Report a = simulate(plain), b = simulate(counted);
  EXPECT_EQ(a.figure("routing"), nullptr);
  ASSERT_NE(b.figure("routing"), nullptr);
  EXPECT_EQ(b.figure("routing", "busiest_rank_over_mean")->value, 1);
  EXPECT_EQ(a.step_seconds, b.step_seconds);
  EXPECT_EQ(a.memory_peak_bytes, b.memory_peak_bytes);
  EXPECT_EQ(a.hfu, b.hfu);
  EXPECT_EQ(a.stages.front().time.matmul, b.stages.front().time.matmul);
  EXPECT_EQ(simulate_des(plain).step_seconds, simulate_des(counted).step_seconds);
}

TEST(UnequalRouting, ExpertsTakeTheBusiestRanksRows) {
  Scenario s = mixtral();
  const Program balanced = lowered(s);
  const double products = expert_products(first_layer(balanced));
  Report before = simulate(s);
  for (const std::int64_t times : {2, 3, 4}) {
    s.workload.recorded_routing = recorded({{0, hot(times)}});
    const Program program = lowered(s);
    EXPECT_EQ(violations(program), "");
    ASSERT_EQ(program.loads.size(), 1u);
    EXPECT_EQ(program.loads.front().busiest_rank, static_cast<double>(times));
    EXPECT_DOUBLE_EQ(expert_products(first_layer(program)) / products, static_cast<double>(times));
    const Report after = simulate(s);
    EXPECT_GT(after.step_seconds, before.step_seconds) << times;
    EXPECT_GT(after.memory_peak_bytes, before.memory_peak_bytes) << times;
    // What all ranks execute stays the same.
    EXPECT_NEAR(after.hfu * after.step_seconds, before.hfu * before.step_seconds,
                1e-9 * before.hfu * before.step_seconds);
    EXPECT_EQ(after.figure("routing", "busiest_rank_over_mean")->value, static_cast<double>(times));
    before = after;
  }
}

TEST(UnequalRouting, LayersHaveLoadsOfTheirOwn) {
  Scenario s = mixtral();
  s.workload.recorded_routing = recorded({{0, hot(2)}, {20, hot(4)}});
  const Program program = lowered(s);
  ASSERT_EQ(program.loads.size(), 2u);
  EXPECT_EQ(program.loads[0].layers, 20);
  EXPECT_EQ(program.loads[1].layers, 12);
  std::vector<double> products;
  std::vector<std::int64_t> layers;
  for (const orrery::PieceRun& run : program.line)
    if (program.pieces[run.piece].layers > 0) {
      products.push_back(expert_products(program.pieces[run.piece]));
      layers.push_back(run.count);
    }
  EXPECT_EQ(layers, (std::vector<std::int64_t>{20, 12}));
  EXPECT_DOUBLE_EQ(products[1] / products[0], 2);

  const auto step_with = [&](const std::vector<LayerCounts>& counts) {
    s.workload.recorded_routing = recorded(counts);
    return simulate(s).step_seconds;
  };
  const double less = step_with({{0, hot(2)}}), more = step_with({{0, hot(4)}}),
               both = step_with({{0, hot(2)}, {20, hot(4)}});
  EXPECT_NEAR(both, (20 * less + 12 * more) / 32, 0.005 * both);
}

TEST(UnequalRouting, ManyUnlikeLayersBecomeAFewLoads) {
  Scenario s = mixtral();
  std::vector<LayerCounts> counts;
  double busiest = 0;
  for (std::int64_t layer = 0; layer < 32; ++layer) {
    std::vector<std::int64_t> of_layer(8, 1000 - 10 * layer);
    of_layer[static_cast<std::size_t>(layer % 8)] += 80 * layer;
    busiest += static_cast<double>(of_layer[static_cast<std::size_t>(layer % 8)]) / 1000 / 32;
    counts.push_back({layer, of_layer});
  }
  s.workload.recorded_routing = recorded(counts);
  const Program program = lowered(s);
  EXPECT_EQ(violations(program), "");
  EXPECT_EQ(program.loads.size(), 4u);
  double mean = 0;
  for (const Load& load : program.loads) mean += load.busiest_rank * static_cast<double>(load.layers) / 32;
  EXPECT_NEAR(mean, busiest, 0.05);
}

TEST(UnequalRouting, SlotsOfFixedNumberGrowNothingAndDropTheRest) {
  Scenario s = mixtral();
  s.plan.expert.capacity_factor = 2;
  const Report balanced = simulate(s);
  s.workload.recorded_routing = recorded({{0, hot(4)}});
  const Report skewed = simulate(s);
  EXPECT_EQ(skewed.step_seconds, balanced.step_seconds);
  EXPECT_EQ(skewed.memory_peak_bytes, balanced.memory_peak_bytes);
  ASSERT_NE(skewed.figure("routing"), nullptr);
  EXPECT_EQ(skewed.figure("routing", "busiest_expert_over_mean")->value, 4);
  EXPECT_DOUBLE_EQ(skewed.figure("routing", "dropped_share")->value, 0.25);  // half of four eighths
}

TEST(UnequalRouting, EnginesAgreeOnOneHotRank) {
  for (const auto dispatcher : {expert_parallel::Dispatcher::alltoall, expert_parallel::Dispatcher::hierarchical,
                                expert_parallel::Dispatcher::flex}) {
    Scenario s = mixtral();
    s.plan.expert.dispatcher = dispatcher;
    for (const std::int64_t times : {1, 2, 4}) {
      s.workload.recorded_routing = recorded({{0, hot(times)}});
      const double closed = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
      EXPECT_NEAR(events / closed, 1, 0.03) << "dispatcher " << static_cast<int>(dispatcher) << ", " << times;
    }
  }
}

// Over two nodes: 64 experts on 16 ranks.
TEST(UnequalRouting, EnginesAgreeWhereTokensLeaveNodes) {
  Scenario s = scenario_of("deepseek-v2-lite", "dgx-h100", 2);
  s.workload.sequence_length = 4096;
  s.workload.global_batch_size = 16;
  s.plan.expert.degree = 16;
  s.plan.data.zero_stage = 1;
  for (const auto dispatcher : {expert_parallel::Dispatcher::alltoall, expert_parallel::Dispatcher::hierarchical,
                                expert_parallel::Dispatcher::flex}) {
    s.plan.expert.dispatcher = dispatcher;
    for (const std::int64_t hottest : {12, 24, 48}) {
      std::vector<std::int64_t> counts(64, 12);
      std::fill(counts.begin(), counts.begin() + 4, hottest);
      s.workload.recorded_routing = recorded({{1, counts}}, 6);
      const double closed = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
      EXPECT_NEAR(events / closed, 1, 0.03) << "dispatcher " << static_cast<int>(dispatcher) << ", " << hottest;
    }
  }
}

TEST(UnequalRouting, OtherRanksWaitForTheHotOne) {
  Scenario s = mixtral();
  s.workload.recorded_routing = recorded({{0, hot(4)}});
  const Report report = simulate_des(s);
  ASSERT_TRUE(report.discrete_event.has_value());
  EXPECT_EQ(simulate_des(mixtral()).discrete_event->rank_classes, 1);
  EXPECT_EQ(report.discrete_event->rank_classes, 2);  // the hot rank, and all others
  ASSERT_FALSE(report.discrete_event->waits.empty());
  EXPECT_NE(report.discrete_event->waits.front().op.find("combine"), std::string::npos)
      << report.discrete_event->waits.front().op;
}

// What the formulas say of the busiest rank are the bytes of its flows.
TEST(UnequalRouting, ExchangesAreAsSkewedAsTheirFlows) {
  constexpr std::int64_t kRanks = 16, kPerNode = 4;
  Load load;
  load.ranks = kRanks;
  for (std::int64_t from = 0; from < kRanks; ++from)
    for (std::int64_t to = 0; to < kRanks; ++to) {
      double rows = 0.5;
      if (to == 5) rows += 4;
      if (from == 9) rows *= 1.5;
      if (to / kPerNode == 2) rows *= 2;
      load.rows.push_back(rows);
    }
  const TokenShares tokens = token_shares({.experts = 64, .choices = 6}, kRanks, kRanks / kPerNode);
  std::vector<std::int64_t> devices(kRanks);
  std::iota(devices.begin(), devices.end(), 0);
  const auto busiest = [&](CollectiveAlgorithm algorithm, std::span<const double> rows, bool between) {
    FlowGraph graph;
    collective_flows(OpKind::all_to_all, algorithm,
                     {.devices = devices, .devices_per_node = kPerNode, .tokens = tokens, .rows = rows}, {}, graph);
    std::vector<double> sent(kRanks), got(kRanks);
    for (const FlowEdge& e : graph.edges)
      if ((e.from.member / kPerNode != e.to.member / kPerNode) == between) {
        sent[static_cast<std::size_t>(e.from.member)] += e.bytes;
        got[static_cast<std::size_t>(e.to.member)] += e.bytes;
      }
    return std::max(*std::ranges::max_element(sent), *std::ranges::max_element(got));
  };
  using Algorithm = CollectiveAlgorithm;
  for (const Algorithm algorithm : {Algorithm::direct, Algorithm::hierarchical, Algorithm::by_token}) {
    const ExchangeSkew skew = exchange_skew(load, kPerNode, algorithm, tokens);
    EXPECT_GT(skew.inside, 1.5);
    EXPECT_GT(skew.between, 1.1);
    EXPECT_NEAR(skew.inside, busiest(algorithm, load.rows, false) / busiest(algorithm, {}, false), 1e-9)
        << name_of(algorithm);
    EXPECT_NEAR(skew.between, busiest(algorithm, load.rows, true) / busiest(algorithm, {}, true), 1e-9)
        << name_of(algorithm);
  }
}

// Of documents most rows may stay where they are: then an exchange takes less than one of all with all.
TEST(UnequalRouting, OfDocumentsThatMoveLittleAnExchangeIsShorter) {
  constexpr std::int64_t kRanks = 16, kPerNode = 4;
  Load load;
  load.of = RowsOf::positions;
  load.ranks = kRanks;
  for (std::int64_t from = 0; from < kRanks; ++from)
    for (std::int64_t to = 0; to < kRanks; ++to) load.rows.push_back(from == to ? kRanks : 0);
  load.rows[0 * kRanks + 0] = 10;
  load.rows[0 * kRanks + 1] = 2;  // of the node
  load.rows[0 * kRanks + 9] = 4;
  const ExchangeSkew skew = exchange_skew(load, kPerNode, CollectiveAlgorithm::direct, {});
  EXPECT_NEAR(skew.inside, 2.0 / (kPerNode - 1), 1e-12);
  EXPECT_NEAR(skew.between, 4.0 / (kRanks - kPerNode), 1e-12);
}

TEST(UnequalRouting, LargeGroupsFoldToAFewKindsOfRanks) {
  constexpr std::int64_t kRanks = 64, kPerNode = 8;
  Load load;
  load.ranks = kRanks;
  for (std::int64_t from = 0; from < kRanks; ++from)
    for (std::int64_t to = 0; to < kRanks; ++to) load.rows.push_back(0.5 + static_cast<double>(to) / (kRanks - 1));
  const FoldedLoad folded = folded_loads({&load, 1}, kPerNode, false).front();
  std::vector<double> kinds = folded.of_ranks;
  std::ranges::sort(kinds);
  EXPECT_EQ(kinds.back(), 1);
  kinds.erase(std::unique(kinds.begin(), kinds.end()), kinds.end());
  EXPECT_EQ(kinds.size(), 9u);
  EXPECT_NEAR(std::accumulate(folded.rows.begin(), folded.rows.end(), 0.0), kRanks * kRanks, 1e-6);
  EXPECT_NEAR(*std::ranges::max_element(folded.rows), 1.5, 1e-12);

  // Ranks that send unlike much, to all alike: the one that sends the most is there as it is.
  Load ragged = load;
  for (std::int64_t from = 0; from < kRanks; ++from)
    for (std::int64_t to = 0; to < kRanks; ++to)
      ragged.rows[static_cast<std::size_t>(from * kRanks + to)] = 0.5 + static_cast<double>(from) / (kRanks - 1);
  const FoldedLoad sources = folded_loads({&ragged, 1}, kPerNode, false).front();
  EXPECT_THAT(sources.of_ranks, testing::Each(testing::DoubleNear(1, 1e-12)));
  EXPECT_NEAR(sources.rows.front(), 1.5, 1e-9);
  EXPECT_NEAR(std::accumulate(sources.rows.begin(), sources.rows.end(), 0.0), kRanks * kRanks, 1e-6);
  std::vector<double> levels;
  for (std::size_t from = 0; from < kRanks; ++from) levels.push_back(sources.rows[from * kRanks]);
  std::ranges::sort(levels);
  levels.erase(std::unique(levels.begin(), levels.end(), [](double a, double b) { return std::abs(a - b) < 1e-9; }),
               levels.end());
  EXPECT_EQ(levels.size(), 9u);
}

// The busiest of each load by itself, with what it has in the others.
TEST(UnequalRouting, TheBusiestOfEachLoadIsExactInAllOfThem) {
  constexpr std::int64_t kRanks = 32, kPerNode = 8;
  const auto load_with = [](std::int64_t hot) {
    Load load;
    load.ranks = kRanks;
    for (std::int64_t from = 0; from < kRanks; ++from)
      for (std::int64_t to = 0; to < kRanks; ++to)
        load.rows.push_back(to == hot ? 5 : 1 + 0.1 * static_cast<double>((to + hot) % 8));
    return load;
  };
  const std::vector<Load> loads{load_with(3), load_with(20)};
  const std::vector<FoldedLoad> folded = folded_loads(loads, kPerNode, false);
  std::vector<std::size_t> busiest;
  for (std::size_t l = 0; l < 2; ++l) {
    const auto& has = folded[l].of_ranks;
    busiest.push_back(static_cast<std::size_t>(std::ranges::max_element(has) - has.begin()));
    double sum = 0;
    for (std::int64_t r = 0; r < kRanks; ++r) sum += loads[l].of_rank(r) / 5;
    EXPECT_NEAR(std::accumulate(has.begin(), has.end(), 0.0), sum, 1e-9);
    const std::vector<FoldedLoad> exact = folded_loads(loads, kPerNode, true);
    EXPECT_EQ(exact[l].rows, loads[l].rows);
  }
  EXPECT_NE(busiest[0], busiest[1]);
  EXPECT_DOUBLE_EQ(folded[1].of_ranks[busiest[0]], loads[1].of_rank(3) / 5);
  EXPECT_DOUBLE_EQ(folded[0].of_ranks[busiest[1]], loads[0].of_rank(20) / 5);
}

// Four nodes' experts in one group: what folding the loads costs of a step (and lockstep). In two stages weight
// gradients of several layers, whose busiest ranks differ, run without a meeting between them.
TEST(UnequalRouting, FoldedLoadsTakeAboutTheStepOfExactOnes) {
  for (const auto routing : {ExpertRouting::trained_with_auxiliary_loss, ExpertRouting::young_router,
                             ExpertRouting::worst, ExpertRouting::hot_expert})
    for (const std::int64_t stages : {1, 2}) {
      Scenario s = scenario_of("deepseek-v2-lite", "dgx-h100", 4 * stages);
      s.workload.sequence_length = 4096;
      s.workload.global_batch_size = 128;
      s.workload.routing = routing;
      if (routing == ExpertRouting::hot_expert) s.workload.routing_skew = 0.3;
      s.plan.expert.degree = 32;
      s.plan.expert.dispatcher = expert_parallel::Dispatcher::flex;
      s.plan.data.zero_stage = 1;
      s.plan.pipeline.degree = stages;
      if (stages > 1) s.plan.pipeline.schedule = pipeline_parallel::ScheduleKind::dualpipe_v;
      s.plan.expert.overlap_pairs = stages == 1;
      const Report folded = simulate_des(s, {.most_exact_works = 0}), exact = simulate_des(s, {.fold = false});
      const std::string what = fmt::format("{}, {} stages", static_cast<int>(routing), stages);
      EXPECT_NEAR(folded.step_seconds / exact.step_seconds, 1, 0.003) << what;
      EXPECT_LT(folded.discrete_event->rank_classes, exact.discrete_event->rank_classes / (stages == 1 ? 2 : 1) + 1)
          << what;
    }
}

TEST(UnequalRouting, PatternsAreAsSkewedAsAskedFor) {
  Scenario s = mixtral();
  s.workload.routing = ExpertRouting::hot_rank;
  s.workload.routing_skew = 0.3;
  const Program hot_rank = lowered(s);
  for (const Load& load : hot_rank.loads) EXPECT_GT(load.busiest_rank, 1.5);
  double before = 1;
  s.workload.routing = ExpertRouting::zipf;
  for (const double exponent : {0.3, 0.8, 1.5}) {
    s.workload.routing_skew = exponent;
    const Program program = lowered(s);
    EXPECT_EQ(violations(program), "");
    double busiest = 0;
    for (const Load& load : program.loads) busiest = std::max(busiest, load.busiest_rank);
    EXPECT_GT(busiest, before);
    before = busiest;
  }
}

// A trace of one layer: [micro-batch][source rank][expert].
std::shared_ptr<const RoutingCounts> recorded_in_parts(
    const std::vector<std::vector<std::vector<std::int64_t>>>& of_micro_batches) {
  RoutingShape shape;
  shape.steps = shape.layers = {0};
  shape.micro_batches = static_cast<std::int64_t>(of_micro_batches.size());
  shape.source_ranks = static_cast<std::int64_t>(of_micro_batches.front().size());
  shape.experts = static_cast<std::int64_t>(of_micro_batches.front().front().size());
  shape.top_k = 2;
  auto counts = std::make_shared<RoutingCounts>(shape);
  for (const auto& ranks : of_micro_batches)
    for (const auto& row : ranks) counts->append(std::accumulate(row.begin(), row.end(), std::int64_t{0}) / 2, row);
  return counts;
}

// In each micro-batch another rank is the busiest: together they are alike, and all wait all the same.
TEST(UnequalRouting, MicroBatchesWaitForTheBusiestRankOfTheirOwn) {
  Scenario s = mixtral();
  std::vector<std::int64_t> first = hot(4), second = hot(4);
  std::rotate(second.begin(), second.begin() + 4, second.end());
  s.workload.recorded_routing = recorded_in_parts({{first}, {second}});
  Scenario one = s;
  one.workload.recorded_routing = recorded({{0, hot(4)}});
  const Program by_parts = lowered(s), whole = lowered(one);
  EXPECT_DOUBLE_EQ(by_parts.loads.front().busiest_rank, 4);
  EXPECT_DOUBLE_EQ(whole.loads.front().busiest_rank, 4);
  EXPECT_NEAR(simulate(s).step_seconds, simulate(one).step_seconds, 1e-9);
  // Unlike micro-batches: their mean.
  s.workload.recorded_routing = recorded_in_parts({{hot(2)}, {second}});
  EXPECT_DOUBLE_EQ(lowered(s).loads.front().busiest_rank, 3);
  EXPECT_EQ(violations(lowered(s)), "");
}

// Two expert groups of eight: the step ends with the busier one.
TEST(UnequalRouting, StepsEndWithTheSlowestGroup) {
  Scenario s = mixtral(2);
  Scenario one = s;
  one.workload.recorded_routing = recorded({{0, hot(3)}});
  std::vector<std::vector<std::int64_t>> groups(8, std::vector<std::int64_t>(8, 7));
  groups.resize(16, hot(3));
  s.workload.recorded_routing = recorded_in_parts({groups});
  EXPECT_NEAR(lowered(s).loads.front().busiest_rank, 3, 1e-9);
  EXPECT_NEAR(simulate(s).step_seconds, simulate(one).step_seconds, 1e-9);
  // Beside a group of three times its tokens.
  for (std::size_t rank = 0; rank < 8; ++rank) groups[rank] = std::vector<std::int64_t>(8, 21);
  s.workload.recorded_routing = recorded_in_parts({groups});
  EXPECT_NEAR(lowered(s).loads.front().busiest_rank, 1.5, 1e-9)
      << "or the other group's, which has as many rows on each rank";
  std::vector<std::vector<std::int64_t>> odd(5, hot(3));
  s.workload.recorded_routing = recorded_in_parts({odd});
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("of all 2 groups"));
}

// Ranks whose own tokens are more send more; experts have as many as ever.
TEST(UnequalRouting, RaggedRanksAreAsUnlikeAsAskedForAndLengthenTheExchange) {
  Scenario s = mixtral();
  const Report even = simulate(s);
  const double even_events = simulate_des(s).step_seconds;
  s.workload.routing = ExpertRouting::ragged;
  double before = even.step_seconds, events_before = even_events;
  for (const double part : {0.2, 0.6}) {
    s.workload.routing_skew = part;
    const Program program = lowered(s);
    EXPECT_EQ(violations(program), "");
    const Load& load = program.loads.front();
    EXPECT_NEAR(load.busiest_rank, 1, 1e-3);
    double least = 2, most = 0, all = 0;
    for (std::int64_t from = 0; from < load.ranks; ++from) {
      double sent = 0;
      for (std::int64_t to = 0; to < load.ranks; ++to) sent += load.at(from, to) / static_cast<double>(load.ranks);
      least = std::min(least, sent);
      most = std::max(most, sent);
      all += sent;
    }
    EXPECT_NEAR(all, static_cast<double>(load.ranks), 1e-9);
    EXPECT_GT(most - least, 0.5 * part);
    EXPECT_LT(most - least, 2 * part * 1.5);
    const Report ragged = simulate(s);
    EXPECT_GT(ragged.step_seconds, before);
    before = ragged.step_seconds;
    const double events = simulate_des(s).step_seconds;
    EXPECT_GT(events, events_before);
    events_before = events;
  }
  // Drawn anew in each step.
  const std::vector<double> first = lowered(s).loads.front().rows;
  s.workload.step = 1;
  EXPECT_NE(lowered(s).loads.front().rows, first);
}

TEST(UnequalRouting, RefusesWhatDoesNotFit) {
  const auto refusal = [](const auto& change) {
    Scenario s = mixtral();
    change(s);
    return refusal_of(s);
  };
  EXPECT_NE(refusal([](Scenario& s) { s.workload.routing_skew = 1; }).find("/workload/routing_skew"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.model.router_type = RouterType::expert_choice;
              s.workload.routing = ExpertRouting::zipf;
              s.workload.routing_skew = 1;
            }).find("which gives all experts equally many tokens"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.workload.routing = ExpertRouting::hot_rank;
              s.workload.routing_skew = 1;
            }).find("a share above 0 and below 1"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.workload.routing = ExpertRouting::hot_rank;
              s.workload.routing_skew = 0.5;
              s.plan.expert.degree = 1;
            }).find("/workload/routing"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.workload.recorded_routing = recorded({{0, {2, 2, 2}}});
            }).find("counts of the model's 8 experts"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.workload.recorded_routing = recorded({{0, std::vector<std::int64_t>(8, 1)}}, 1);
            }).find("the model's 2 experts per token"),
            std::string::npos);
  EXPECT_NE(refusal([](Scenario& s) {
              s.workload.recorded_routing = recorded({{0, hot(2)}});
              s.workload.routing = ExpertRouting::worst;
            }).find("\"balanced\" with \"routing_file\""),
            std::string::npos);
  Scenario dense = scenario_of("llama-3-8b", "dgx-h100", 1);
  dense.workload.global_batch_size = 8;
  dense.workload.routing = ExpertRouting::worst;
  EXPECT_NE(refusal_of(dense).find("without experts"), std::string::npos);
}

class RoutingFile : public testing::Test {
 protected:
  RoutingFile() : folder_(std::filesystem::temp_directory_path() / ("orrery_routing_" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~RoutingFile() override { std::filesystem::remove_all(folder_); }
  void write(const char* name, const std::string& text) const { std::ofstream(folder_ / name) << text; }
  Scenario read(const Json& workload) const {
    const Json document{{"model", "mixtral-8x7b"},
                        {"cluster", {{"node", "dgx-h100"}}},
                        {"workload", workload},
                        {"plan", {{"expert_parallel", 8}}}};
    return read_scenario(document, {(folder_ / "scenario.json").string(), {}});
  }
  std::string refusal(const Json& workload) const {
    try {
      read(workload);
    } catch (const InputError& error) {
      return error.what();
    }
    return "nothing";
  }
  std::filesystem::path folder_;
};

TEST_F(RoutingFile, LiesBesideTheScenario) {
  write("routing.csv", routing_csv(*recorded({{0, hot(2)}, {16, hot(3)}})));
  const Scenario s = read({{"global_batch_size", 8}, {"routing_file", "routing.csv"}});
  const Program program = lowered(s);
  ASSERT_EQ(program.loads.size(), 2u);
  EXPECT_EQ(program.loads[0].busiest_rank, 2);
  EXPECT_EQ(program.loads[1].busiest_rank, 3);
}

TEST_F(RoutingFile, ErrorsNameTheFieldOrTheLine) {
  EXPECT_NE(refusal({{"routing_file", "absent.csv"}}).find("/workload/routing_file"), std::string::npos);
  std::string text = routing_csv(*recorded({{0, hot(2)}}));
  text.replace(text.rfind("14"), 2, "99");
  write("wrong.csv", text);
  const std::string why = refusal({{"routing_file", "wrong.csv"}});
  EXPECT_NE(why.find("wrong.csv"), std::string::npos) << why;
  EXPECT_NE(refusal({{"routing", "zipff"}}).find("zipf"), std::string::npos);
}

// What is dropped is of all micro-batches, in whichever of them.
TEST(UnequalRouting, SlotsThatOneMicroBatchLacksAreDroppedInTheMean) {
  for (const auto& [first, second] : {std::pair{4, 1}, {1, 4}}) {
    Scenario s = mixtral();
    s.workload.global_batch_size *= 2;
    s.plan.expert.capacity_factor = 2;
    s.workload.recorded_routing = recorded_in_parts({{hot(first)}, {hot(second)}});
    EXPECT_DOUBLE_EQ(simulate(s).figure("routing", "dropped_share")->value, 0.25 / 2) << first;
  }
}

// Balanced rows find no slot, too, where there are fewer slots than rows; slots are executed whether they are filled.
TEST(UnequalRouting, SlotsAreCountedWhereRoutingIsBalanced) {
  Scenario s = mixtral();
  const Report dropless = simulate(s);
  s.plan.expert.capacity_factor = 0.5;
  const Report half = simulate(s);
  ASSERT_NE(half.figure("routing"), nullptr);
  EXPECT_NEAR(half.figure("routing", "dropped_share")->value, 0.5, 1e-12);
  EXPECT_LT(half.hfu / half.mfu, 0.9);
  s.plan.expert.capacity_factor = 2;
  const Report twice = simulate(s);
  EXPECT_EQ(twice.figure("routing"), nullptr);
  EXPECT_NEAR(dropless.hfu / dropless.mfu, 1, 1e-9);
  EXPECT_GT(twice.hfu / twice.mfu, 1.3);
}

TEST(UnequalRouting, SkewsOfNothingAndLayersWithoutExpertsAreRefused) {
  Scenario s = mixtral();
  s.workload.routing = ExpertRouting::zipf;
  EXPECT_THROW(simulate(s), InputError);
  s = mixtral();
  s.workload.recorded_routing = recorded({{s.model.layers, hot(4)}});
  EXPECT_THROW(simulate(s), InputError);
}

// Four stages whose micro-batches take those of the trace in turn.
Scenario pipeline_of(const std::vector<std::vector<std::int64_t>>& of_micro_batches) {
  Scenario s = mixtral(4);
  s.plan.pipeline.degree = 4;
  s.workload.global_batch_size = 8 * 8;
  std::vector<std::vector<std::vector<std::int64_t>>> rows;
  for (const std::vector<std::int64_t>& counts : of_micro_batches) rows.push_back({counts});
  s.workload.recorded_routing = recorded_in_parts(rows);
  return s;
}

TEST(UnlikeMicroBatches, AreClassesOfTheProgram) {
  const Scenario s = pipeline_of({hot(1), hot(4), hot(1), hot(2)});
  const Program program = lowered(s);
  EXPECT_EQ(violations(program), "");
  EXPECT_EQ(program.micro_batch_class, (std::vector<std::uint8_t>{0, 1, 0, 2, 0, 1, 0, 2}));
  EXPECT_EQ(program.micro_batches_of(0), 4);
  const auto products = [&](std::size_t of_class) {
    double all = 0;
    for (const auto& stage : program.stages_of(of_class))
      for (const Chunk& chunk : stage)
        for (const orrery::PieceRun& run : chunk.runs)
          all += static_cast<double>(run.count) * expert_products(program.pieces[run.piece]);
    return all;
  };
  EXPECT_DOUBLE_EQ(products(1) / products(0), 4);
  EXPECT_DOUBLE_EQ(products(2) / products(0), 2);

  Program bad = program;
  bad.micro_batch_class.pop_back();
  EXPECT_NE(violations(bad).find("classes of 7 micro-batches"), std::string::npos) << violations(bad);
  bad = program;
  bad.micro_batch_class.front() = 3;
  EXPECT_NE(violations(bad).find("micro-batch 0 is of class 3"), std::string::npos) << violations(bad);
  bad = program;
  --bad.other_classes.front().stages[1][0].runs.front().count;
  EXPECT_NE(violations(bad).find("class 1 have other layers"), std::string::npos) << violations(bad);
}

TEST(UnlikeMicroBatches, WhereAllAreAlikeNothingChangesBitForBit) {
  const Scenario parts = pipeline_of({hot(3), hot(3), hot(3), hot(3)}), one = pipeline_of({hot(3)});
  const Program program = lowered(parts);
  EXPECT_TRUE(program.micro_batch_class.empty());
  EXPECT_EQ(program.loads.front().rows, lowered(one).loads.front().rows);
  const Report a = simulate(parts), b = simulate(one);
  EXPECT_EQ(a.step_seconds, b.step_seconds);
  EXPECT_EQ(a.memory_peak_bytes, b.memory_peak_bytes);
  EXPECT_EQ(a.hfu, b.hfu);
}

TEST(UnlikeMicroBatches, EnginesAgree) {
  for (const auto& counts : {std::vector<std::vector<std::int64_t>>{hot(1), hot(4), hot(1), hot(1)},
                             std::vector<std::vector<std::int64_t>>{hot(4), hot(2), hot(3), hot(1), hot(1)}}) {
    const Scenario s = pipeline_of(counts);
    const double closed = simulate(s).step_seconds, events = simulate_des(s).step_seconds;
    EXPECT_NEAR(events / closed, 1, 0.03);
  }
}

// The order of micro-batches decides how long stages wait for each other, not what they do.
TEST(UnlikeMicroBatches, TheirOrderChangesTheStepAndNotTheWork) {
  const Report first = simulate(pipeline_of({hot(4), hot(4), hot(1), hot(1), hot(1), hot(1), hot(1), hot(1)})),
               apart = simulate(pipeline_of({hot(1), hot(1), hot(4), hot(1), hot(1), hot(4), hot(1), hot(1)})),
               mean = simulate(pipeline_of({hot(1)}));
  EXPECT_GT(std::abs(first.step_seconds / apart.step_seconds - 1), 0.005);
  EXPECT_GT(apart.step_seconds, mean.step_seconds);
  ASSERT_EQ(first.stages.size(), apart.stages.size());
  for (std::size_t i = 0; i < first.stages.size(); ++i)
    EXPECT_NEAR(first.stages[i].time.matmul, apart.stages[i].time.matmul, 1e-9 * apart.stages[i].time.matmul);
}

// On one stage micro-batches follow each other: the sum of what each takes.
TEST(UnlikeMicroBatches, OnOneStageTheStepIsTheirSum) {
  const auto step_of = [](const std::vector<std::vector<std::int64_t>>& counts) {
    Scenario s = pipeline_of(counts);
    s.plan.pipeline.degree = 1;
    s.workload.global_batch_size = 32 * 8;
    return simulate(s).step_seconds;
  };
  const double least = step_of({hot(1)}), most = step_of({hot(4)});
  EXPECT_NEAR(step_of({hot(1), hot(4)}), (least + most) / 2, 2e-3 * most);
}

TEST(UnlikeMicroBatches, MemoryIsOfThoseThatAreInFlightTogether) {
  const double least = simulate(pipeline_of({hot(1)})).memory_peak_bytes,
               most = simulate(pipeline_of({hot(4)})).memory_peak_bytes,
               some = simulate(pipeline_of({hot(1), hot(1), hot(4), hot(1), hot(1), hot(1), hot(1), hot(1)}))
                          .memory_peak_bytes;
  EXPECT_GT(some, least);
  EXPECT_LT(some, most);
}

TEST(UnlikeMicroBatches, NoiseByMicroBatchIsDrawn) {
  Scenario s = mixtral(4);
  s.plan.pipeline.degree = 4;
  s.workload.global_batch_size = 8 * 8;
  s.workload.routing = ExpertRouting::trained_with_auxiliary_loss;
  const double alike = simulate(s).step_seconds;
  s.workload.routing_micro_batch_noise = 0.3;
  const Program program = lowered(s);
  EXPECT_EQ(violations(program), "");
  EXPECT_GT(program.micro_batch_classes(), 2u);
  EXPECT_LE(program.loads.size(), 8u);
  EXPECT_GT(simulate(s).step_seconds, alike);
  EXPECT_EQ(simulate(s).step_seconds, simulate(s).step_seconds);
  s.plan.expert.capacity_factor = 1.5;
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("/workload/routing_micro_batch_noise: found 0.3, expected 0 with "
                                                "moe_expert_capacity_factor"));
  s.plan.expert.capacity_factor = 0;
  s.workload.routing = ExpertRouting::balanced;
  EXPECT_THAT(refusal_of(s), testing::HasSubstr("/workload/routing_micro_batch_noise: found 0.3, expected 0 with "
                                                "\"routing\": \"balanced\""));
}

// Two stages, 1F1B: forwards of 1 s, backwards of 2; one micro-batch takes three times as long.
//   stage 0  F0 0-1, F1 1-4, B0 4-6, F2 6-7,           B1 13-19, B2 19-21
//   stage 1  F0 1-2, B0 2-4, F1 4-7, B1 7-13, F2 13-14, B2 14-16
TEST(UnlikeMicroBatches, TwoStagesWaitForTheSlowOne) {
  Schedule schedule;
  pipeline_parallel::build_schedule(pipeline_parallel::ScheduleKind::one_f_one_b, 2, 1, 3, schedule, false);
  const std::vector<std::int32_t> stage_class{0, 0};
  const auto of = [](double f, double b) { return ChunkSeconds{SlotSeconds{f, f, f}, SlotSeconds{b, b, b}, {}}; };
  const std::vector<ChunkSeconds> seconds{of(1, 2), of(3, 6)};
  const std::vector<double> hops{0, 0};
  const auto makespan = [&](std::vector<std::uint8_t> classes) {
    PipelineClock clock;
    PipelineWalker().walk(schedule, {stage_class, seconds, hops, {}, classes, 2}, clock);
    EXPECT_DOUBLE_EQ(clock.stages[0].busy_seconds, 15);
    return clock.makespan;
  };
  EXPECT_DOUBLE_EQ(makespan({0, 1, 0}), 21);
  EXPECT_DOUBLE_EQ(makespan({0, 0, 1}), 24);
  EXPECT_DOUBLE_EQ(makespan({1, 0, 0}), 24);
}

}  // namespace
}  // namespace orrery
