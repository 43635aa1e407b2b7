// Ranks as processes: mpirun started, awaited and ended from a program that has no MPI in it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/executor.h"

namespace orrery {

enum class RankKind : std::uint8_t {
  cpu,   // `orrery-rank run`, which the same build puts beside the running program: over MPI
  cuda,  // `orrery-gpu rank`, which is the running program: over NCCL, each on the GPU of its local rank in turn
};

struct RankJob {
  std::string scenario;           // as for `orrery run`; not "-": every rank reads it
  std::vector<std::string> sets;  // as --set there
  std::int64_t ranks = 1;         // of the scenario's Program
  RankKind kind = RankKind::cpu;
};

struct JobResults {
  std::vector<RankResult> ranks;
  BackendFacts facts;  // rank 0's
};

// What execute_ranks gives, of ranks that are processes, which mpirun (of the PATH) starts. Of `options` are taken:
// seed, steps, warmup_steps, watchdog_seconds, round_to_bf16, measure, after_step (rank 0's, called here). With
// `measure`, ranks do as `orrery run` does when it measures (no tensors come out); without, as options_to_compare says
// (tensors come out), and `steps` must be its.
//
// No rank outlives the call: not where one fails, not where this process gets SIGINT, SIGTERM or SIGHUP (then the ranks
// end, and this process by the same signal), not where it or mpirun is killed (rank_watch.h). mpirun's own defaults are
// left alone but for two: ranks may outnumber cores, and root may run them (OMPI_MCA_..., OMPI_ALLOW_RUN_AS_ROOT... of
// the environment go first); those on GPUs are not bound to cores either, as NCCL and offloaded updates have threads.
//
// Throws InputError where mpirun or the ranks' program is missing or the ranks end with exit code 2, ExecutionError,
// with what the first rank that failed said, where they end otherwise. For one call at a time, from the main thread.
JobResults execute_ranks_over_mpi(const RankJob& job, const ExecutionOptions& options);

// --- The other end, in the ranks -------------------------------------------------------------------------------------

// Rank 0 hands over the results of all ranks in a file. Both throw ExecutionError.
void write_rank_results(const std::string& path, const JobResults& results);
JobResults read_rank_results(const std::string& path);

// Rank 0 says on standard error which step is done.
void report_step(std::int64_t step);

}  // namespace orrery
