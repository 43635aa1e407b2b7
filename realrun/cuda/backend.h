// The backend on an NVIDIA GPU.
//
// Each orrery::Stream has a CUDA stream, made when it is first used. Streams for communication and copies have priority
// over compute, whose kernels fill the remaining multiprocessors. Stream::host is a CUDA stream too: its ops are
// functions that CUDA calls on the host in their turn, so that events order them like any other op.
//
// Host memory is pinned and in the GPU's address space: fill, gather, scatter and sum reach it over PCIe.
//
// An fp8 tensor has a scale, which the cast that writes it measures. The scale is kept by the tensor's address and is
// copied with a copy of the whole tensor. A tensor that no cast of this backend wrote has scale 1.
#pragma once

#include <cuda_runtime_api.h>

#include "realrun/backend.h"

namespace orrery {

// The backend that make_cuda_backend() makes, as communicators see it.
class CudaBackend : public Backend {
 public:
  virtual int device() const = 0;
  virtual cudaStream_t stream(Stream stream) = 0;
};

}  // namespace orrery
