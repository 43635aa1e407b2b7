#pragma once

#include "study/prediction/prediction.h"
#include "tests/strategies/support.h"

namespace orrery {

// By kernels and collectives alone: nothing that was fitted on steps.
inline Calibrator& kernels_alone() {
  static const StepCalibration kNone;
  static Calibrator calibrator;
  calibrator.use(kNone);
  return calibrator;
}

// What an engine takes, valid until the next of them is made. Without interference a kernel runs beside a collective
// as fast as alone.
struct PreparedAlone : Prepared {
  explicit PreparedAlone(const Scenario& s, bool interference = true)
      : Prepared(kernels_alone().prepare(s)), own_kernels(*kernels) {
    if (!interference) own_kernels.overlap_slowdown = 0;
    kernels = &own_kernels;
  }
  PreparedAlone(const PreparedAlone&) = delete;
  PreparedAlone& operator=(const PreparedAlone&) = delete;

  Calibration own_kernels;
};

inline Report simulate(const Scenario& scenario, bool interference = true) {
  return predict(PreparedAlone(scenario, interference));
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
