// The options that every program of ranks has.
#pragma once

#include "cli/command.h"

namespace orrery {

struct RankTraining;

// SCENARIO and all that RankTraining says; `run` outlives the command.
void add_rank_options(Command command, RankTraining& run);

}  // namespace orrery
