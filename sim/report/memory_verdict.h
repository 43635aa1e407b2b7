// Does a plan fit the memory, as far as can be told from a prediction?
#pragma once

#include <optional>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// does_not_fit: a device (out of memory); does_not_fit_node: what the devices of a node keep in host memory or storage.
enum class MemoryVerdict { fits, tight, does_not_fit, does_not_fit_node };

// Of a predicted peak: a published one in ten was less than kPeakLow times it, one in ten more than kPeakHigh times
// (results/published/steps, peak_allocated_bytes and peak_reserved_bytes; a source of more than 30 counts as 30, as for
// intervals of steps): what allocators reserve beyond what is allocated is a part of it.
// tests/validation holds them to that.
inline constexpr double kPeakLow = 0.98, kPeakHigh = 1.14;
struct PeakInterval {
  double low_bytes, high_bytes;
};
// Four of five; nothing of what was measured.
inline std::optional<PeakInterval> peak_interval(const Report& report) {
  if (report.engine == "measured") return std::nullopt;
  return PeakInterval{kPeakLow * report.memory_peak_bytes, kPeakHigh * report.memory_peak_bytes};
}

// A node's host memory may have to hold this many times the predicted bytes of tensors and processes: PyTorch rounds
// pinned buffers up to powers of two (CachingHostAllocator.h; github.com/pytorch/pytorch/issues/95823), data that is
// loaded or copied is there twice for a while, and the system caches files. The factor is DeepSpeed's: it is
// additional_buffer_factor in the memory estimators by which DeepSpeed tells its users to plan
// (deepspeed.readthedocs.io/en/latest/memory.html).
inline constexpr double kHostHigh = 1.5;

// In a device's memory, and in what a node's devices share.
inline bool fits_everywhere(const Report& report) {
  return report.memory_peak_bytes <= report.memory_capacity_bytes && report.host_memory.fits() && report.storage.fits();
}

// True where the predicted bytes fit, but kPeakHigh (the device) or kHostHigh (the host) times these do not. A measured
// step has run, so it is never tight.
inline bool device_is_tight(const Report& report) {
  return report.engine != "measured" && report.memory_peak_bytes <= report.memory_capacity_bytes &&
         kPeakHigh * report.memory_peak_bytes > report.memory_capacity_bytes;
}
inline bool host_is_tight(const Report& report) {
  const SharedMemory& host = report.host_memory;
  return report.engine != "measured" && host.capacity_bytes > 0 && host.fits() &&
         kHostHigh * host.node_bytes > host.capacity_bytes;
}

// The verdict is tight where the device or the host is.
inline MemoryVerdict memory_verdict(const Report& report) {
  if (!report.memory_fits)
    return report.memory_peak_bytes > report.memory_capacity_bytes ? MemoryVerdict::does_not_fit
                                                                   : MemoryVerdict::does_not_fit_node;
  return device_is_tight(report) || host_is_tight(report) ? MemoryVerdict::tight : MemoryVerdict::fits;
}

// "fits", "tight", "does not fit", "does not fit the node".
inline std::string_view name_of(MemoryVerdict verdict) {
  constexpr std::string_view kNames[] = {"fits", "tight", "does not fit", "does not fit the node"};
  return kNames[static_cast<int>(verdict)];
}

}  // namespace orrery
