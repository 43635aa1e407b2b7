// Whether a plan fits the memory, as far as a prediction can tell.
#pragma once

#include <optional>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// does_not_fit: a device runs out of memory. does_not_fit_node: the host memory or storage of a node runs out.
enum class MemoryVerdict { fits, tight, does_not_fit, does_not_fit_node };

// The interval around a predicted memory peak: one in ten published peaks was less than kPeakLow times the prediction,
// one in ten more than kPeakHigh times it (results/published/steps, peak_allocated_bytes and peak_reserved_bytes; a
// source of more than 30 points counts as 30, as for step intervals). The excess includes bytes that allocators reserve
// beyond those allocated. tests/validation checks these numbers.
inline constexpr double kPeakLow = 0.98, kPeakHigh = 1.14;
struct PeakInterval {
  double low_bytes, high_bytes;
};
// The interval in which four of five peaks lie; none for a measured report.
inline std::optional<PeakInterval> peak_interval(const Report& report) {
  if (report.engine == "measured") return std::nullopt;
  return PeakInterval{kPeakLow * report.memory_peak_bytes, kPeakHigh * report.memory_peak_bytes};
}

// A node may need this many times the predicted bytes of tensors and processes in host memory. PyTorch rounds pinned
// buffers up to powers of two (CachingHostAllocator.h; github.com/pytorch/pytorch/issues/95823), data that is loaded or
// copied temporarily exists twice, and the operating system caches files. The factor is DeepSpeed's
// additional_buffer_factor, from the memory estimators that DeepSpeed tells its users to plan with
// (deepspeed.readthedocs.io/en/latest/memory.html).
inline constexpr double kHostHigh = 1.5;

// Whether the plan fits the device memory, and the memory and storage that a node's devices share.
inline bool fits_everywhere(const Report& report) {
  return report.memory_peak_bytes <= report.memory_capacity_bytes && report.host_memory.fits() && report.storage.fits();
}

// Whether the predicted bytes fit, but kPeakHigh (device) or kHostHigh (host) times these bytes do not. A measured step
// has run, so it is never tight.
inline bool device_is_tight(const Report& report) {
  return report.engine != "measured" && report.memory_peak_bytes <= report.memory_capacity_bytes &&
         kPeakHigh * report.memory_peak_bytes > report.memory_capacity_bytes;
}
inline bool host_is_tight(const Report& report) {
  const SharedMemory& host = report.host_memory;
  return report.engine != "measured" && host.capacity_bytes > 0 && host.fits() &&
         kHostHigh * host.node_bytes > host.capacity_bytes;
}

// `tight` if the device or the host is tight.
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
