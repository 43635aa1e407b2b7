// Local updates: groups of data-parallel replicas, the workers, train copies of the model by themselves for some steps,
// and then agree on one. It is for networks on which a sum of gradients in every step takes too long.
//
//   local SGD  the mean of the workers' parameters (Stich 2019, arXiv 1805.09767)
//   SlowMo     a step from the last agreement, the anchor, along the workers' mean displacement, with momentum (Wang et
//              al. 2020, arXiv 1910.00643, algorithm 1)
//   DiLoCo     the same with Nesterov's momentum (Douillard et al. 2023, arXiv 2311.08105, algorithm 1)
//   CO2        SlowMo whose mean is taken beside the next local steps and applied after them (Sun et al. 2024, arXiv
//              2401.16265, algorithm 1)
//
//   Overlap-Local-SGD  each worker is pulled towards the mean of the iteration before, which is taken beside the local
//              steps (Wang et al. 2020, arXiv 2002.09539, section 2)
//
// All are one pass with other fields. The step itself is that of a worker: data parallelism, sharded or not, over the
// worker's replicas (MeshAxis::worker). What the workers do every few steps are tasks of the Program
// (sim/program/task.h).
#pragma once

#include "strategies/scenario.h"

namespace orrery::local_updates {

// Returns the number of workers; 1 without local_steps and without gradient_compression.
std::int64_t workers(const Scenario& scenario);
// Returns the number of data-parallel replicas of one worker.
std::int64_t replicas(const Scenario& scenario);

}  // namespace orrery::local_updates
