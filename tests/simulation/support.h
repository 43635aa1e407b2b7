#pragma once

#include "sim/analytical/engine.h"
#include "sim/cost/calibration.h"
#include "sim/cost/collective_calibration.h"
#include "strategies/framework/framework.h"
#include "tests/strategies/support.h"

namespace orrery {

inline Report simulate(const Scenario& scenario, bool interference = true) {
  Program program;
  lower(scenario, program);
  Calibration kernels = find_calibration(scenario.cluster.device);
  use_attention_kernel(kernels, framework::attention_kernel(scenario.plan));
  if (!interference) kernels.overlap_slowdown = 0;
  const CollectiveCalibration collectives = find_collective_calibration(scenario.cluster);
  AnalyticalEngine engine(scenario.cluster, kernels, collectives);
  Report report;
  engine.evaluate(program, scenario.plan.precision.compute(), {}, report);
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
