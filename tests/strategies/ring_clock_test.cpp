// A ring's ranks have unequal work in its steps: is the time of the whole what the clock takes, the steps of the rank
// that has the most in all of them together?
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "strategies/lower.h"
#include "strategies/read_scenario.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

constexpr std::int64_t kLength = 960;  // twice two, four and eight ranks divide it

struct RingWork {
  std::vector<std::vector<double>> by_rank;  // [rank][step], pairs
  std::vector<double> charged;               // by step, as FLOPs count them
};

RingWork work_of(std::int64_t ranks, const std::string& deal, std::int64_t window, bool causal) {
  nlohmann::json document = nlohmann::json::parse(R"({
    "model": {"layers": 1, "hidden": 8, "heads": 2, "vocab": 512, "max_positions": 960, "dropout": 0},
    "cluster": {"node": "dgx-h100", "nodes": 2}, "workload": {"sequence_length": 960, "global_batch_size": 1},
    "plan": {"data_parallel": 1}})");
  document["plan"]["context_parallel"] = ranks;
  document["plan"]["context_parallel_balance"] = deal;
  if (window > 0) document["model"]["sliding_window"] = window;
  if (!causal) document["model"].update({{"kind", "encoder"}, {"token_types", 2}, {"pooler", false}});
  Program p;
  lower(read_scenario(document, {}), p);
  const Piece& layer = piece_named(p, "layer");
  RingWork work;
  work.charged.resize(static_cast<std::size_t>(count_ops(layer.forward, OpKind::ring_shift)) + 1);
  work.by_rank.assign(static_cast<std::size_t>(ranks), work.charged);
  for (const Op& op : layer.forward.ops) {
    if (op.kind != OpKind::attention) continue;
    const auto step = static_cast<std::size_t>(op.keys_before);
    work.charged[step] = attended_pairs(op, layer.tensors).counted;
    for (std::size_t r = 0; r < work.by_rank.size(); ++r)
      work.by_rank[r][step] = attended_pairs(op, layer.tensors, static_cast<std::int64_t>(r)).counted;
  }
  return work;
}

// The clock's: in each step a transfer beside the attention.
double clock_of(const std::vector<double>& steps, double transfer) {
  double total = 0;
  for (std::size_t j = 0; j < steps.size(); ++j) total += std::max(steps[j], j + 1 < steps.size() ? transfer : 0);
  return total;
}

// Of a layer among many: ranks attend to their own pairs, as soon as they have the keys. A transfer begins when both
// neighbours have the keys before it and have issued the attention before the last (Op::free_running is false).
double seconds_of_layer(const RingWork& work, double transfer) {
  constexpr int kLayers = 60, kWarm = 20;
  const std::size_t ranks = work.by_rank.size(), steps = work.charged.size();
  std::vector<double> free(ranks);  // when its kernels are done
  double warm = 0;
  for (int layer = 0; layer < kLayers; ++layer) {
    if (layer == kWarm) warm = *std::max_element(free.begin(), free.end());
    std::vector<double> keys = free, issued = free;
    for (std::size_t j = 0; j < steps; ++j) {
      std::vector<double> next(ranks);
      for (std::size_t r = 0; r < ranks; ++r) {
        const std::size_t before = (r + ranks - 1) % ranks;
        next[r] = std::max({keys[r], keys[before], issued[r], issued[before]}) + transfer;
      }
      for (std::size_t r = 0; r < ranks; ++r) free[r] = std::max(free[r], keys[r]) + work.by_rank[r][j];
      issued = free;
      keys = std::move(next);
    }
  }
  return (*std::max_element(free.begin(), free.end()) - warm) / (kLayers - kWarm);
}

double sum(const std::vector<double>& v) { return std::accumulate(v.begin(), v.end(), 0.0); }

TEST(RingClock, IsThatOfRanksThatWaitForTheirNeighboursKeysOnly) {
  double of_slowest_steps = 0, slow_network = 0;
  for (const std::int64_t ranks : {2, 4, 8})
    for (const char* deal : {"contiguous", "zigzag", "striped"})
      for (const bool causal : {true, false})
        for (const std::int64_t window : {0, 1, 5, 30, 90, 120, 150, 210, 240, 300, 360, 480, 600, 720}) {
          const RingWork work = work_of(ranks, deal, window, causal);
          const std::size_t steps = work.charged.size();
          const std::string what = std::string(deal) + (causal ? ", causal" : "") + ", window " +
                                   std::to_string(window) + ", " + std::to_string(ranks) + " ranks";
          double most = 0;
          for (const std::vector<double>& own : work.by_rank) most = std::max(most, sum(own));
          EXPECT_EQ(sum(work.charged), most) << what;
          // While a transfer takes no more than half of a step's attention.
          const double mean = most / static_cast<double>(steps);
          for (const double share : {0.0, 0.1, 0.25, 0.5})
            EXPECT_NEAR(clock_of(work.charged, share * mean) / seconds_of_layer(work, share * mean), 1, 1e-9)
                << what << ", transfers of " << share;
          slow_network = std::max(slow_network, 1 - clock_of(work.charged, mean) / seconds_of_layer(work, mean));
          std::vector<double> slowest(steps);
          for (const std::vector<double>& own : work.by_rank)
            for (std::size_t j = 0; j < steps; ++j) slowest[j] = std::max(slowest[j], own[j]);
          of_slowest_steps = std::max(of_slowest_steps, clock_of(slowest, 0) / seconds_of_layer(work, 0) - 1);
        }
  EXPECT_NEAR(slow_network, 0.077, 0.001) << "where transfers take as long as the attention beside them";
  EXPECT_NEAR(of_slowest_steps, 0.70, 0.01) << "if all waited for the slowest rank of each step";
}

}  // namespace
}  // namespace orrery
