// Facts about a run's machine and software. They are recorded, never changed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"

namespace orrery::bench {

using Facts = std::vector<std::pair<std::string, std::string>>;

// Facts of the backend, and the CPU's model, governor and clock if the system reports them.
Facts machine_facts(const BackendFacts& backend);
// Clocks, temperature and power of the first GPU by nvidia-smi; empty without it. Names begin with `prefix`.
Facts gpu_state(const std::string& prefix);

// The device's peaks, which FLOPs and bytes are compared with.
struct Peaks {
  std::string source;                                      // of both peaks, for people
  double bytes_per_second = 0;                             // of device memory, reads and writes
  double copy_bytes_per_second = 0;                        // to and from the host; 0: not known
  std::vector<std::pair<Dtype, double>> flops_per_second;  // of matrix products

  double flops(Dtype dtype) const;  // 0: not known
};
// Returns the peaks of the device's preset, if it has one: "NVIDIA H200" is H200-SXM5-141GB. Otherwise measures what
// `backend` reaches in a large copy and in the best of a few matrix products, in some tenths of a second.
Peaks peaks_of(Backend& backend);
// Returns the preset for a device's name as its driver gives it: "NVIDIA H100 80GB HBM3" is H100-SXM5-80GB; empty if
// there is none.
std::string preset_named(const std::string& device);

}  // namespace orrery::bench
