#pragma once

#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/framework/framework.h"
#include "tests/strategies/support.h"

namespace orrery {

// A scenario lowered, and its cluster's calibrations.
struct Prepared {
  Program program;
  Calibration kernels;
  CollectiveCalibration collectives;
};
inline Prepared prepare(const Scenario& scenario, bool interference = true) {
  Prepared p{.program = {},
             .kernels = find_calibration(scenario.cluster.device),
             .collectives = find_collective_calibration(scenario.cluster)};
  lower(scenario, p.program);
  use_attention_kernel(p.kernels, framework::attention_kernel(scenario.plan));
  if (!interference) p.kernels.overlap_slowdown = 0;
  return p;
}

inline Report simulate(const Scenario& scenario, bool interference = true) {
  const Prepared p = prepare(scenario, interference);
  AnalyticalEngine engine(scenario.cluster, p.kernels, p.collectives);
  Report report;
  engine.evaluate(p.program, scenario.plan.precision.compute(), {}, report);
  return report;
}

// GPT-3 175B as in Narayanan et al. 2021, table 2: tensor 8, pipeline 12, 1,536 sequences.
inline Scenario gpt3_175b() {
  Scenario s = scenario_of("gpt3-175b", "dgx-a100", 48);
  s.workload = {2048, 0, 1536};
  s.plan.tensor.degree = 8;
  s.plan.tensor.sequence_parallel = true;
  s.plan.pipeline.degree = 12;
  s.plan.data.zero_stage = 1;
  return s;
}

}  // namespace orrery
