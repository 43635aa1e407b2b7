// orrery-gpu rank: this process is one rank of a scenario's training steps, on a GPU and over NCCL.
#include <cstdlib>
#include <memory>

#include "cli/commands.h"
#include "realrun/cuda/nccl_communicator.h"
#include "realrun/mpi/rank_run.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr const char* kRunRankExamples = R"(Examples:
  mpirun -n 2 orrery-gpu rank small-gpt --set plan.data_parallel=2 --id-directory $(mktemp -d)
  srun -N 2 --gpus-per-node 8 --ntasks-per-node 8 orrery-gpu rank scenario.json --id-directory $(mktemp -d -p /shared)
  torchrun --no-python --nproc-per-node 2 orrery-gpu rank scenario.json --id-directory $(mktemp -d)
`orrery run SCENARIO --device cuda --ranks mpi` starts ranks on this machine by itself, and predicts and compares.)";

void run(const RankTraining& training, const std::string& id_directory) {
  if (!built_with_nccl())
    throw InputError({"orrery-gpu rank", ""}, "a program built without NCCL", "a build where nccl.h and libnccl are");
  const std::optional<RankOfJob> place = rank_of_environment();
  if (!place)
    throw InputError({"orrery-gpu rank", ""}, "no rank in the environment", "mpirun, srun or torchrun to start it");
  const PreparedRun prepared = prepare(training);
  require_ranks(prepared, place->ranks);
  if (place->ranks > 1 && id_directory.empty())
    throw InputError({"--id-directory", ""}, "nothing", "an empty folder that all ranks see");
  // If there are more streams than GPU queues, streams share queues: one that waits for another rank could then block
  // what that rank waits for. Set before the GPU is first used; 32 is CUDA's maximum.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  const std::vector<std::string> devices = cuda_devices();
  const std::size_t device = place->local_rank % devices.size();
  const std::unique_ptr<Backend> backend = make_cuda_backend(static_cast<int>(device), /*tf32=*/!training.check);
  NcclOptions options{.rank = place->rank,
                      .ranks = place->ranks,
                      .id_directory = id_directory,
                      .watchdog_seconds = training.options.watchdog_seconds};
  options.one_device = ranks_share_a_device(options, devices[device]);
  std::vector<RankResult> results;
  {
    const std::unique_ptr<Communicator> communicator = make_nccl_communicator(*backend, options);
    results = execute_with_peers(prepared, *backend, *communicator);
  }  // it ends on all ranks, so no rank waits for rank 0's comparison
  if (place->rank == 0) report_results(prepared, backend->facts(), results);
}

}  // namespace

void add_rank(Command app) {
  struct Arguments {
    RankTraining training;
    std::string id_directory;
  };
  const auto [command, arguments] = app.declare<Arguments>(
      "rank", "What one rank of a training step does on a GPU, over NCCL; mpirun, srun or torchrun starts all",
      kRunRankExamples, [](const Arguments& given) { run(given.training, given.id_directory); });
  add_rank_options(command, arguments.training);
  command.add_option("--id-directory", arguments.id_directory,
                     "Where ranks meet: an empty folder that all of them see, new for every run", "FOLDER");
}

}  // namespace orrery
