// orrery-rank: one rank of a job that mpirun starts.
#include <fmt/format.h>
#include <mpi.h>

#include <cstdio>
#include <exception>

#include "cli/command.h"
#include "realrun/mpi/collectives_command.h"
#include "realrun/mpi/mpi_communicator.h"
#include "realrun/mpi/rank_run.h"
#include "realrun/mpi/rank_watch.h"
#include "sim/base/error.h"

namespace orrery {
namespace {

constexpr const char* kExamples = R"(Examples:
  mpirun -n 4 orrery-rank collective all_reduce -b 64K -e 16M
  mpirun -n 8 orrery-rank collective all_to_all --groups 2
  mpirun -n 2 orrery-rank run small-gpt --set plan.data_parallel=2 --steps 10)";

void add_collective(Command app, CollectiveSweep& sweep) {
  const Command command =
      app.add_subcommand("collective", "Check and time a collective over all ranks, as nccl-tests does");
  command
      .add_option("KIND", sweep.kind,
                  "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv, ping_pong")
      .required();
  command.add_option("-b,--minbytes", sweep.least_bytes, "Smallest size").bytes();
  command.add_option("-e,--maxbytes", sweep.most_bytes, "Largest size").bytes();
  command.add_option("-f,--stepfactor", sweep.step_factor, "Factor from each size to the next").capture_default();
  command.add_option("--algorithm", sweep.algorithm, "ring, tree, halving_doubling, direct, hierarchical")
      .capture_default();
  command.add_option("--groups", sweep.groups, "Number of groups at once; ranks are assigned to them in turn");
  command.add_option("--ranks-per-node", sweep.ranks_per_node, "Hierarchical send_recv: number of ranks of a node");
  command
      .add_option("--rows", sweep.rows,
                  "all_to_all with unequal parts: what each rank sends to each other rank, relative to equal parts, "
                  "first rank first")
      .type_name("N,N,...");
  command.add_option("--samples", sweep.samples, "Number of samples").capture_default();
  command.add_option("--iterations", sweep.iterations,
                     "Iterations per sample, back to back; 0: enough for --sample-seconds");
  command.add_option("--sample-seconds", sweep.sample_seconds, "Duration of one sample").capture_default();
  command.add_option("--watchdog-seconds", sweep.mpi.watchdog_seconds, "Longest wait").capture_default();
  command.add_option("--yield-seconds", sweep.mpi.yield_seconds, "Time for which a wait yields before it sleeps");
  command.add_option("--sleep-seconds", sweep.mpi.sleep_seconds, "Time between checks of a sleeping wait");
  command.add_option("--message-bytes", sweep.mpi.message_bytes, "Largest MPI message");
  command.callback([&sweep] { run_collective_sweep(sweep); });
}

// Rank 0 reports. Failures other than InputError end the job, also a layout that computes something else.
void run_training(const RankTraining& run) {
  const PreparedRun prepared = prepare(run);
  MpiOptions options;
  options.watchdog_seconds = run.options.watchdog_seconds;
  const std::unique_ptr<MpiCommunicator> communicator = make_mpi_communicator(options);
  require_ranks(prepared, communicator->ranks());
  try {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    const std::vector<RankResult> results = execute_with_peers(prepared, *backend, *communicator);
    if (communicator->rank() == 0) report_results(prepared, backend->facts(), results);
  } catch (...) {
    communicator->fail(std::current_exception());
  }
}

void add_run(Command app, RankTraining& run) {
  const Command command = app.add_subcommand("run", "One rank of a scenario's training steps, on this CPU");
  add_rank_options(command, run);
  command.callback([&run] { run_training(run); });
}

// Returns the exit code.
int one_rank(int argc, char** argv) {
  const CommandLine line("One rank of a job that mpirun starts", kExamples);
  CollectiveSweep sweep;
  add_collective(line.command(), sweep);
  RankTraining run;
  add_run(line.command(), run);
  try {
    const MpiSession session(&argc, &argv);
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    try {
      line.parse(argc, argv);
    } catch (const Exit& end) {  // thrown on every rank alike, like the errors below
      if (rank == 0) fmt::print("{}", end.text);
      return end.code;
    } catch (const UsageError& error) {
      if (rank == 0) fmt::print(stderr, "orrery-rank: {}\n", error.what());
      return 2;
    } catch (const InputError& error) {
      if (rank == 0) fmt::print(stderr, "orrery-rank: {}\n", error.what());
      return 2;
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "orrery-rank: {}\n", error.what());
    std::fflush(nullptr);
    int started = 0;
    MPI_Initialized(&started);
    if (started != 0) MPI_Abort(MPI_COMM_WORLD, 1);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  orrery::end_with_launcher();
  const int code = orrery::one_rank(argc, argv);
  orrery::tell_launcher_of_end(code);
  return code;
}
