// Do tokens that travel once to a node take what drawing them says, and what DeepEP has measured?
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "sim/cost/collective_calibration.h"
#include "sim/cost/exchange_skew.h"
#include "sim/hardware/read_cluster.h"
#include "sim/program/tensor.h"

namespace orrery {
namespace {

Router deepseek() { return {.groups = 8, .best_groups = 4, .experts = 256, .choices = 8}; }

// Of tokens drawn one by one: the mean number of ranks, and of nodes, that a token goes to.
std::pair<double, double> drawn(const Router& router, std::int64_t ranks, std::int64_t nodes) {
  std::mt19937_64 random(7);
  const auto choose = [&](std::vector<std::int64_t> from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) std::swap(from[i], from[i + random() % (from.size() - i)]);
    from.resize(count);
    return from;
  };
  const std::int64_t groups = std::max<std::int64_t>(1, router.groups), in_group = router.experts / groups;
  std::vector<std::int64_t> all(static_cast<std::size_t>(groups));
  std::iota(all.begin(), all.end(), 0);
  constexpr int kTokens = 20000;
  double met_ranks = 0, met_nodes = 0;
  for (int t = 0; t < kTokens; ++t) {
    std::vector<std::int64_t> experts;
    for (const std::int64_t g : choose(all, router.groups == 0 ? 1 : router.best_groups))
      for (std::int64_t e = 0; e < in_group; ++e) experts.push_back(g * in_group + e);
    std::vector<bool> rank(static_cast<std::size_t>(ranks)), node(static_cast<std::size_t>(nodes));
    for (const std::int64_t e : choose(experts, router.choices)) {
      rank[static_cast<std::size_t>(e * ranks / router.experts)] = true;
      node[static_cast<std::size_t>(e * nodes / router.experts)] = true;
    }
    met_ranks += static_cast<double>(std::count(rank.begin(), rank.end(), true));
    met_nodes += static_cast<double>(std::count(node.begin(), node.end(), true));
  }
  return {met_ranks / kTokens, met_nodes / kTokens};
}

TEST(TokenExchange, SharesAreThoseOfDrawnTokens) {
  for (const Router& router : {deepseek(), Router{.experts = 128, .choices = 8}, Router{.experts = 8, .choices = 2},
                               Router{.groups = 4, .best_groups = 1, .experts = 64, .choices = 6}})
    for (const auto& [ranks, nodes] : {std::pair{8, 1}, {8, 2}, {16, 2}, {32, 4}, {64, 8}}) {
      if (router.experts % ranks != 0) continue;
      const TokenShares shares = token_shares(router, ranks, nodes);
      const auto [met_ranks, met_nodes] = drawn(router, ranks, nodes);
      const double choices = router.choices;
      EXPECT_NEAR(shares.to_rank * choices * static_cast<double>(ranks) / met_ranks, 1, 0.01) << ranks;
      EXPECT_NEAR(shares.to_node * choices * static_cast<double>(nodes) / met_nodes, 1, 0.01) << nodes;
    }
}

// README of DeepEP, normal kernels, H800: 4,096 tokens of 7,168 in fp8, GB/s of received tokens over NVLink (EP8) and
// over RDMA with those of the own node (EP16 to EP64). EP8 and EP64 are what the shares were taken from. Bytes of a
// token are those that travel, scales included: fp8_factor = (1 + 4 / 128) / 2 of DeepEP's tests/test_internode.py.
TEST(TokenExchange, MeetsTheRatesThatDeepEpPublishes) {
  struct Row {
    std::int64_t ranks;
    double bytes_per_second;
    double tolerance;
  };
  Cluster cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 8}}, {});
  cluster.node.intra_bytes_per_second = 200e9;
  const CollectiveModel model(cluster, find_collective_calibration(cluster));
  for (const Row& row : {Row{8, 153e9, 0.1}, Row{16, 43e9, 0.15}, Row{32, 58e9, 0.1}, Row{64, 51e9, 0.1}}) {
    const std::int64_t nodes = row.ranks / 8;
    Router router = deepseek();
    if (nodes < 4) router.best_groups = static_cast<std::uint16_t>(std::max<std::int64_t>(nodes, 1) * 8 / nodes);
    const auto token = static_cast<double>(bytes_of(Dtype::fp8_blocks, 7168));
    const double rows = 4096 * 8 * token;
    const TokenShares shares = token_shares(router, row.ranks, nodes);
    const double counted = nodes == 1 ? shares.to_rank * 8 * rows : shares.to_node * static_cast<double>(nodes) * rows;
    const CollectiveCost cost = model.token_exchange(
        rows, router, {.ranks = row.ranks, .ranks_per_node = 8, .nodes = nodes, .groups_sharing_nics = 1});
    EXPECT_NEAR(counted / cost.seconds / row.bytes_per_second, 1, row.tolerance) << row.ranks;
    EXPECT_EQ(cost.algorithm, CollectiveAlgorithm::by_token);
  }
}

TEST(TokenExchange, TakesLessThanRowsOneByOne) {
  const Cluster cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 8}}, {});
  const CollectiveModel model(cluster, find_collective_calibration(cluster));
  const GroupSpan span{.ranks = 64, .ranks_per_node = 8, .nodes = 8, .groups_sharing_nics = 1};
  const double bytes = 4096.0 * 8 * 7168 * 2;
  const CollectiveCost by_token = model.token_exchange(bytes, deepseek(), span),
                       by_row = model.cost(OpKind::all_to_all, bytes, span);
  EXPECT_LT(by_token.seconds, 0.7 * by_row.seconds);
  EXPECT_LT(by_token.inter_bytes, 0.51 * by_row.inter_bytes);  // four groups of eight instead of eight experts
  EXPECT_EQ(model.token_exchange(0, deepseek(), span).seconds, 0);
}

}  // namespace
}  // namespace orrery
