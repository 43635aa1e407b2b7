// What a run was made on and with: recorded, never changed.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"

namespace orrery::bench {

using Facts = std::vector<std::pair<std::string, std::string>>;

// Backend::facts, the CPU's model, governor and clock where the system says them.
Facts machine_facts(const BackendFacts& backend);
// Clocks, temperature and power of the first GPU, as nvidia-smi reports them just now; empty without it. The names
// begin with `prefix`.
Facts gpu_state(const std::string& prefix);

// What FLOPs and bytes are held against.
struct Peaks {
  std::string source;                                      // of both, for people
  double bytes_per_second = 0;                             // of device memory, reads and writes
  double copy_bytes_per_second = 0;                        // to and from the host; 0: not known
  std::vector<std::pair<Dtype, double>> flops_per_second;  // of matrix products

  double flops(Dtype dtype) const;  // 0: not known
};
// Of the device's preset, if it has one: "NVIDIA H200" is H200-SXM5-141GB. Otherwise what `backend` reaches in a large
// copy and in the best of a few matrix products, measured in some tenths of a second.
Peaks peaks_of(Backend& backend);
// The preset that a device's own name means; empty if none does.
std::string preset_named(const std::string& device);

}  // namespace orrery::bench
