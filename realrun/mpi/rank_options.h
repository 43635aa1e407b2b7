// The options that all programs with ranks share.
#pragma once

#include "cli/command.h"

namespace orrery {

struct RankTraining;

// Adds SCENARIO and an option for each member of RankTraining. `run` must outlive the command.
void add_rank_options(Command command, RankTraining& run);

}  // namespace orrery
