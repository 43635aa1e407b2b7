// The options that all programs with ranks share.
#include "realrun/mpi/rank_run.h"

namespace orrery {

void add_rank_options(Command command, RankTraining& run) {
  command.add_option("SCENARIO", run.scenario, "A scenario, as for orrery simulate").required();
  command.add_option("--set", run.sets, "Override a field: plan.tensor_parallel=2").one_value_each();
  command.add_option("--steps", run.steps, "Number of measured steps").capture_default();
  command.add_option("--warmup", run.warmup, "Number of steps before the measured ones").capture_default();
  command.add_option("--seed", run.seed, "Seed of parameters and inputs").capture_default();
  command.add_option("--watchdog-seconds", run.watchdog_seconds, "Longest wait").capture_default();
  command.add_flag("--check", run.check, "Compare with the one-rank Program instead of measuring");
  command.add_flag("--bf16-storage", run.round_to_bf16, "CPU: round bf16 tensors to bf16");
  command
      .add_option("--results", run.results,
                  "Write all ranks' results to this file, for orrery run, instead of printing them")
      .type_name("FILE");
  command.add_flag("--alone", run.alone, "Every rank runs the scenario on one rank, all at the same time");
}

}  // namespace orrery
