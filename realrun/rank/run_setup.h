// The arguments of a run of one Program, the same for all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "realrun/executor.h"
#include "realrun/layout.h"
#include "realrun/rank/carried_state.h"

namespace orrery::realrun {

// Sequence lengths in positions: of the whole model, and of the decoder, which the loss is computed on.
struct SequenceLengths {
  std::int64_t whole = 0, decoder = 0;
};

// REQUIRES: all references outlive the ranks; `program` and `parameters` belong to `scenario`.
struct RunSetup {
  const Scenario& scenario;
  const Program& program;
  const ExecutionOptions& options;
  const std::vector<WholeParameter>& parameters;
  SequenceLengths sequences;
  // If not the run's first Program: the steps before it, warm-up included, and each parameter's number in the last one.
  std::int64_t first_step = 0;
  std::span<const CarriedParameter> carried = {};
};

inline constexpr std::int64_t kOfStep = -1;  // instead of a micro-batch's number: belongs to the step

}  // namespace orrery::realrun
