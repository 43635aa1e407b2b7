// Collectives between ranks that are threads of this process (realrun/in_process.h), timed as nccl-tests does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/calibrate/nccl_log.h"

namespace orrery {

struct RankCollective {
  std::string id;  // "collective all_reduce 2 ranks 64 KiB"
  std::string collective;
  OpKind kind = OpKind::all_reduce;
  std::int64_t ranks = 2;
  double bytes = 0;  // as nccl-tests counts them
};

// Returns what to measure: all-reduce, all-gather, reduce-scatter, all-to-all and the exchange of neighbours (each rank
// sends to the next one), from 1 KiB to 16 MiB. Sizes alternate, so that any beginning of the list covers small and
// large ones.
std::vector<RankCollective> rank_collectives(std::int64_t ranks);

// Returns the wall time of one call in seconds, the 10th percentile of repetitions. The ranks begin together, and the
// call lasts until all of them are done.
double time_rank_collective(const RankCollective& collective,
                            const std::function<std::unique_ptr<Backend>()>& make_backend);

}  // namespace orrery
