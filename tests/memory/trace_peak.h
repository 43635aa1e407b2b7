#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/memory/allocation_trace.h"

namespace orrery {

// The most bytes alive at one instant, with each allocation rounded up to a multiple of `granule` (0: not rounded).
inline std::int64_t peak_bytes(const AllocationTrace& trace, std::int64_t granule) {
  std::int64_t now = 0, most = 0;
  for (const AllocationTrace::Event& event : trace.events) {
    std::int64_t bytes = trace.allocations[event.allocation].bytes;
    if (granule > 0) bytes = (bytes + granule - 1) / granule * granule;
    now += event.frees ? -bytes : bytes;
    most = std::max(most, now);
  }
  return most;
}

}  // namespace orrery
