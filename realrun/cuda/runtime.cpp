#include "realrun/cuda/runtime.h"

#include <fmt/format.h>

namespace orrery::cuda {
namespace {

// cudaDriverGetVersion and CUDART_VERSION: 1000 major + 10 minor.
constexpr int kMajor = 1000, kMinor = 10;

// What to do about an error; "" if its own text says enough.
std::string advice(cudaError_t error) {
  switch (error) {
    case cudaErrorNoDevice:
      return "no NVIDIA GPU is visible to this process: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device "
             "cpu";
    case cudaErrorMemoryAllocation:
      return "the GPU has too little memory: use a smaller micro-batch, recomputation, offload or more ranks";
    case cudaErrorECCUncorrectable:
      return "the GPU's memory has an uncorrectable error: use another GPU and have this one reset";
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
      return "a kernel used memory that is not its own: run the same under compute-sanitizer and report it";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      return "this build has no code for the GPU: build with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorDevicesUnavailable:
      return "the GPU is in use by a process that has it alone: wait for it, or choose another GPU";
    case cudaErrorLaunchTimeout:
      return "a kernel ran longer than the display driver allows: use a GPU without a display";
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
      return "the driver's kernel module and its libraries are of different versions: restart the machine";
    default:
      return "";
  }
}

}  // namespace

std::string version_text(int version) { return fmt::format("CUDA {}.{}", version / kMajor, version % kMajor / kMinor); }

std::string bytes_text(double bytes) {
  constexpr double kGiga = 1e9, kMega = 1e6;
  return bytes >= kGiga ? fmt::format("{:.1f} GB", bytes / kGiga) : fmt::format("{:.1f} MB", bytes / kMega);
}

void fail(cudaError_t error, const char* what) {
  const std::string said = advice(error);
  const std::string cause = fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
  throw DeviceError(said.empty() ? fmt::format("CUDA: {} failed: {}", what, cause)
                                 : fmt::format("CUDA: {}; {} failed: {}", said, what, cause));
}

void require_device(int device) {
  int driver = 0;
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  if (driver == 0) throw DeviceError("CUDA: no NVIDIA driver is installed here: install one, or use --device cpu");
  // A toolkit's minor versions run on every driver of the same major version ("minor version compatibility").
  if (driver / kMajor < CUDART_VERSION / kMajor)
    throw DeviceError(
        fmt::format("CUDA: the driver supports {}, and this build needs {}: update the driver, or build with an older "
                    "CUDA toolkit",
                    version_text(driver), version_text(CUDART_VERSION)));
  int count = 0;
  check(cudaGetDeviceCount(&count), "counting the GPUs");
  if (device < 0 || device >= count)
    throw DeviceError(fmt::format("CUDA: there is no GPU {}: this process sees {}, numbered from 0", device, count));
}

}  // namespace orrery::cuda
