// orrery-gpu: the subcommands of `orrery` that run something, for a machine that has an NVIDIA GPU and the CUDA
// libraries and nothing else. Exit codes are those of orrery.
#include "cli/commands.h"
#include "realrun/mpi/rank_watch.h"

namespace {

constexpr const char* kExamples = R"(Examples:
  orrery-gpu run small-gpt --device cuda --check
  orrery-gpu run small-gpt --device cuda --ranks mpi --set plan.data_parallel=2
  orrery-gpu calibrate --device cuda --output h200.json
  orrery-gpu run gpt2-124m-h200 --device cuda --predict --calibration h200.json
  orrery-gpu bench --device cuda --output kernels.json

Exit codes: 0 done; 2 the input cannot be used (one line on standard error says why); 1 the GPU or a rank failed, or an
internal error.)";

}  // namespace

int main(int argc, char** argv) {
  orrery::end_with_launcher();  // if this is a rank of `orrery run`
  const orrery::CommandLine line("How long training steps and kernels take on a GPU", kExamples,
                                 "orrery-gpu " ORRERY_VERSION);
  const orrery::Command app = line.command();
  orrery::add_run(app);
  orrery::add_rank(app);
  orrery::add_calibrate(app);
  orrery::add_bench(app);
  const int code = orrery::run_command_line("orrery-gpu", [&] { line.parse(argc, argv); });
  orrery::tell_launcher_of_end(code);
  return code;
}
