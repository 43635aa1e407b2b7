// orrery-rank run: this process is one rank of a scenario's training steps, over MPI and on this machine's CPU.
#pragma once

#include "realrun/mpi/rank_run.h"

namespace orrery {

// Call it on every rank; rank 0 reports (report_results). Throws InputError. Other failures end the job
// (MpiCommunicator::fail), also a layout that computes something else.
void run_training(const RankTraining& run);

}  // namespace orrery
