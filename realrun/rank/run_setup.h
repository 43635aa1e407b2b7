// What is run: the same for all ranks of a run.
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/executor.h"
#include "realrun/layout.h"

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
};

inline constexpr std::int64_t kOfStep = -1;  // in place of a micro-batch

}  // namespace orrery::realrun
