// Checks of CUDA runtime calls. A failure becomes a DeviceError that says what to do. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "realrun/backend.h"

namespace orrery::cuda {

// Returns "CUDA 13.0" for 13000.
std::string version_text(int version);

[[noreturn]] void fail(cudaError_t error, const char* what);
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

// Whether the result of a query means "done". "Not ready" would remain as the thread's last error, and the check after
// the next kernel launch would report it; this clears it.
inline bool is_done(cudaError_t answer, const char* what) {
  if (answer == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(answer, what);
  return true;
}

// Throws if the GPU of this number cannot be used, and says why: no driver, a driver older than the build, no such GPU.
void require_device(int device);

// Formats a byte count for messages: "2.1 GB" in "wanted 2.1 GB".
std::string bytes_text(double bytes);

}  // namespace orrery::cuda
