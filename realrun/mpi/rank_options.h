// The options that every program of ranks has.
#pragma once

#include "cli/command.h"

namespace orrery {

struct TrainingRun;

// SCENARIO and all that TrainingRun says; `run` outlives the command.
void add_rank_options(Command command, TrainingRun& run);

}  // namespace orrery
