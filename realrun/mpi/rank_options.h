// The options that every program of ranks has.
#pragma once

namespace CLI {
class App;
}

namespace orrery {

struct TrainingRun;

// SCENARIO and all that TrainingRun says; `run` outlives the command.
void add_rank_options(CLI::App& command, TrainingRun& run);

}  // namespace orrery
