#include "cli/memory_trace.h"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "sim/memory/memory_snapshot.h"
#include "sim/report/format.h"
#include "sim/simulation/allocator.h"

namespace orrery {

std::string allocator_text(const Simulation& simulation) {
  const AllocationTrace trace = allocations(simulation);
  constexpr std::array<Column, 6> kColumns{
      {{"segments", false}, {"allocated"}, {"reserved"}, {"between"}, {"of reserved"}, {"retries"}}};
  std::vector<std::vector<std::string>> rows;
  for (const bool expandable : {false, true}) {
    const Replay r = replay(trace, allocator_options(simulation, expandable), kAllocatorSteps);
    const CachingAllocator::Statistics& s = r.statistics;
    const auto between = static_cast<double>(s.peak_reserved - s.peak_allocated);
    rows.push_back({expandable ? "expandable" : "fixed", bytes_text(static_cast<double>(s.peak_allocated)),
                    bytes_text(static_cast<double>(s.peak_reserved)), bytes_text(between),
                    s.peak_reserved > 0 ? percent_text(between / static_cast<double>(s.peak_reserved)) : "-",
                    std::to_string(s.retries) + (r.out_of_memory ? ", then out of memory" : "")});
  }
  return fmt::format(
             "PyTorch's caching allocator, pipeline stage {}, peaks of {} steps (without {} of the framework's)\n",
             fullest_stage(simulation).stage, kAllocatorSteps,
             bytes_text(fullest_stage(simulation).memory.framework_bytes)) +
         grid(kColumns, rows);
}

std::string memory_trace(const Simulation& simulation, bool expandable_segments) {
  const AllocationTrace trace = allocations(simulation);
  const CachingAllocator::Options options = allocator_options(simulation, expandable_segments);
  return memory_snapshot(*simulation.program, trace, replay(trace, options, kAllocatorSteps), options);
}

}  // namespace orrery
