// Are candidates what their scenarios become on so many devices, with the spares that pay?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/capacity/sized_candidate.h"

namespace orrery {
namespace {

TrainingRun run_with_repairs(double failures_per_node_day, double repair_days) {
  TrainingRun run;
  run.step_seconds = 10;
  run.steps = 500'000;
  run.devices = 2048;
  run.nodes = 256;
  run.failures_per_node_second = failures_per_node_day / 86400;
  run.repair_seconds = repair_days * 86400;
  run.restart_seconds = 300;
  run.checkpoint_bytes = 1e12;
  run.write_bytes_per_second = run.read_bytes_per_second = 1e11;
  return run;
}

TEST(SpareNodes, AreThoseWithTheFewestDeviceHours) {
  for (const auto& [rate, days] : {std::pair(0.0038, 1.0), std::pair(0.0038, 0.1), std::pair(0.02, 3.0)}) {
    TrainingRun run = run_with_repairs(rate, days);
    std::int64_t best = -1;
    double least = std::numeric_limits<double>::infinity();
    for (run.spare_nodes = 0; run.spare_nodes <= 60; ++run.spare_nodes) {
      const double hours = expected_run(run).wall_seconds * static_cast<double>(run.nodes + run.spare_nodes);
      if (hours >= least) continue;
      least = hours;
      best = run.spare_nodes;
    }
    EXPECT_EQ(cheapest_spare_nodes(run), best) << rate << " a node-day, " << days << " days";
    EXPECT_GT(best, 0);
  }
  EXPECT_EQ(cheapest_spare_nodes(run_with_repairs(0.0038, 0)), 0);
  EXPECT_EQ(cheapest_spare_nodes(run_with_repairs(0, 1)), 0);
}

}  // namespace
}  // namespace orrery
