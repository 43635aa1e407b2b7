// Starts ranks as processes with mpirun, waits for them and ends them, from a program without MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/executor.h"

namespace orrery {

enum class RankKind : std::uint8_t {
  cpu,  // `orrery-rank run`, beside the running program: over MPI
  // `orrery-gpu rank`, which is the running program: over NCCL; ranks take the GPUs in turn by local rank.
  cuda,
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

// Returns what execute_ranks returns, for ranks that are processes, which mpirun (from the PATH) starts. Uses these
// members of `options`: seed, steps, warmup_steps, watchdog_seconds, round_to_bf16, measure, after_step (rank 0's,
// called here). With `measure`, ranks do what `orrery run` does when it measures (results have no tensors). Without it,
// they run with options_to_compare (results have tensors), and `steps` must be the steps of those options.
//
// No rank outlives the call: not if a rank fails, not if this process gets SIGINT, SIGTERM or SIGHUP (the ranks end,
// and this process ends by the same signal), not if this process or mpirun is killed (rank_watch.h). mpirun keeps its
// defaults with two exceptions: ranks may outnumber cores, and root may run them (OMPI_MCA_...,
// OMPI_ALLOW_RUN_AS_ROOT... in the environment take precedence). Ranks on GPUs are not bound to cores either, as NCCL
// and offloaded updates have threads.
//
// Throws InputError if mpirun or the ranks' program is missing or the ranks end with exit code 2; otherwise
// ExecutionError with the message of the first rank that failed. Only one call at a time, from the main thread.
JobResults execute_ranks_over_mpi(const RankJob& job, const ExecutionOptions& options);

// ---- The ranks' side ----

// Rank 0 passes on the results of all ranks in a file. Both functions throw ExecutionError.
void write_rank_results(const std::string& path, const JobResults& results);
JobResults read_rank_results(const std::string& path);

// Rank 0 reports on standard error which step is done.
void report_step(std::int64_t step);

}  // namespace orrery
