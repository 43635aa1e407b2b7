// What is run, of one Program of a run: the same for all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "realrun/executor.h"
#include "realrun/layout.h"
#include "realrun/rank/carried_state.h"

namespace orrery::realrun {

// Lengths in positions: of the whole model's sequences, and of those that the loss is of.
struct SequenceLengths {
  std::int64_t whole = 0, decoder = 0;
};

// REQUIRES: outlives the ranks; Program and parameters are of the scenario.
struct RunSetup {
  const Scenario& scenario;
  const Program& program;
  const ExecutionOptions& options;
  const std::vector<WholeParameter>& parameters;
  SequenceLengths sequences;
  // Of a Program that is not the run's first: how many steps were before it, warm-up included; of each parameter what
  // it was in the last.
  std::int64_t first_step = 0;
  std::span<const CarriedParameter> carried = {};
};

inline constexpr std::int64_t kOfStep = -1;  // in place of a micro-batch

}  // namespace orrery::realrun
