// orrery-rank run: this process is one rank of a scenario's training steps, over MPI and on this machine's CPU.
#pragma once

#include "realrun/mpi/rank_run.h"

namespace orrery {

// On every rank; rank 0 reports (report_results). Throws InputError. Other failures end the job
// (MpiCommunicator::fail), a layout that computes something else too.
void run_training(const RankTraining& run);

}  // namespace orrery
