// orrery-rank collective: measures collectives over the ranks of an MPI job, as nccl-tests does.
#pragma once

#include <cstdint>
#include <string>

#include "realrun/mpi/mpi_communicator.h"

namespace orrery {

struct CollectiveSweep {
  // One of kCollectiveKinds (sim/cost/published_collectives.h): all_reduce, send_recv, ...
  std::string kind;
  std::string algorithm = "automatic";  // automatic: direct for all_to_all and send_recv, ring for all else
  double least_bytes = 65536, most_bytes = 16777216;
  std::int64_t step_factor = 4;
  // all_to_all: rows_of_text (sim/cost/exchange_skew.h) of a group's members; empty: equal parts.
  std::string rows;
  std::int64_t groups = 1;  // rank r is in group r mod groups; all run at once
  // Hierarchical send_recv: ranks r to r + ranks_per_node - 1 form a node, whose ranks share messages that leave it.
  std::int64_t ranks_per_node = 1;
  std::int64_t samples = 5;
  std::int64_t iterations = 0;  // per sample, back to back; 0: as many as take sample_seconds
  double sample_seconds = 0.2;
  MpiOptions mpi{.watchdog_seconds = 60};  // all but `algorithm`
};

// Call it on every rank. Checks the values of each size, then times it; rank 0 prints one JSON document. A sample is
// the time from the start of the first rank, after a barrier, to the end of the last rank, divided by the iterations;
// ranks must share one machine's clock. `bytes` are counted as in nccl-tests.
// Throws InputError, ExecutionError (also for wrong values).
void run_collective_sweep(const CollectiveSweep& sweep);

}  // namespace orrery
