// orrery: each subcommand has its own file. Exit codes: 0 done; 2 the input cannot be used; 1 anything else, such as a
// step that does not end; 3 a comparison or a history of benchmarks without a verdict.
#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/sibling.h"
#include "sim/des/engine.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  orrery simulate llama-3-70b-512-h100
  orrery simulate scenario.json --set plan.tensor_parallel=4 --set cluster.nodes=8
  orrery simulate scenario.json --json - --trace step.json --svg schedule.svg
  orrery simulate straggler --engine des
  orrery run small-gpt --predict
  orrery compare scenario.json --set-b plan.virtual_pipeline=1 --set-b plan.pipeline_schedule=1f1b
  orrery plan llama-3-70b-60-days
  orrery list models
  orrery show dgx-h100

Exit codes: 0 done; 2 the input cannot be used (one line on standard error says why); 1 the answer is no
(run --check: ranks differ; plan: nothing meets all constraints; search: no plan fits; compare: a point of a database
moved; validate --baseline, bench compare, bench drift: something is worse), a step, a rank or a sweep's point does not
end well, no GPU where one is asked for, or an internal error; 3 bench compare or drift could tell nothing of any
benchmark; 128 and the signal's number: a sweep was interrupted.)";

}  // namespace

int main(int argc, char** argv) {
  const orrery::CommandLine line("How long a training step of a deep network takes on a cluster, and why", kExamples,
                                 "orrery " ORRERY_VERSION);
  const orrery::Command app = line.command();
  orrery::add_simulate(app);
  orrery::add_compare(app);
  orrery::add_search(app);
  orrery::add_sweep(app);
  orrery::add_collective(app);
  orrery::add_plan(app);
  orrery::add_pack(app);
  orrery::add_galvatron(app);
  orrery::add_validate(app);
  orrery::add_run(app);
  orrery::add_calibrate(app);
  orrery::add_bench(app);
  orrery::add_list(app);
  orrery::add_show(app);
  orrery::add_schema(app);
  orrery::add_completion(app);
  orrery::add_manual(app);
  return orrery::run_command_line("orrery", [&] {
    orrery::become_program_for(argv);
    try {
      line.parse(argc, argv);
    } catch (const orrery::StalledError& error) {  // may list the waiting ranks line by line
      fmt::print(stderr, "orrery: error: {}\n", error.what());
      throw orrery::Exit{1};
    }
  });
}
