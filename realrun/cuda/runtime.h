// Every call of the CUDA runtime is checked here: what failed becomes a DeviceError of one sentence that says what to
// do. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

#include "realrun/backend.h"

namespace orrery::cuda {

// "CUDA 13.0" of 13000.
std::string version_text(int version);

[[noreturn]] void fail(cudaError_t error, const char* what);
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) fail(error, what);
}

// Whether what a query answered means "done". "Not ready" stays behind as the thread's last error, where the check
// after the next kernel's launch would find it: it is cleared.
inline bool is_done(cudaError_t answer, const char* what) {
  if (answer == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(answer, what);
  return true;
}

// Where there is no usable GPU of this number, says why: no driver, a driver older than the build, no such GPU.
void require_device(int device);

// "wanted 2.1 GB": of a byte count, for messages.
std::string bytes_text(double bytes);

}  // namespace orrery::cuda
