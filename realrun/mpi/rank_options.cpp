#include "realrun/mpi/rank_options.h"

#include "realrun/mpi/rank_run.h"

namespace orrery {

void add_rank_options(Command command, RankTraining& run) {
  command.add_option("SCENARIO", run.scenario, "As for orrery simulate").required();
  command.add_option("--set", run.sets, "Override a field: plan.tensor_parallel=2").one_value_each();
  command.add_option("--steps", run.steps, "Measured steps").capture_default();
  command.add_option("--warmup", run.warmup, "Steps before them").capture_default();
  command.add_option("--seed", run.seed, "Of parameters and inputs").capture_default();
  command.add_option("--watchdog-seconds", run.watchdog_seconds, "For one wait").capture_default();
  command.add_flag("--check", run.check, "Compare with the one-rank Program instead of measuring");
  command.add_flag("--bf16-storage", run.round_to_bf16, "CPU: tensors of bf16 hold what bf16 can");
  command.add_option("--results", run.results, "Write all ranks' results there, for orrery run, instead of printing")
      .type_name("FILE");
  command.add_flag("--alone", run.alone, "Every rank runs the scenario on one rank by itself, all at the same time");
}

}  // namespace orrery
