#include "realrun/cuda/runtime.h"

#include <fmt/format.h>

#include <stdexcept>

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

constexpr std::size_t kLookFrom = 16;  // number of pending events of a stream at which recording looks for past ones

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

Events::~Events() {
  for (Log& log : logs_)
    for (const cudaEvent_t event : log.pending) cudaEventDestroy(event);
  for (const cudaEvent_t event : free_) cudaEventDestroy(event);
}

Backend::Event Events::record(Stream stream, cudaStream_t on) {
  const auto index = static_cast<std::size_t>(stream);
  Log& log = logs_[index];
  if (log.pending.size() >= kLookFrom) retire(log);
  cudaEvent_t event = nullptr;
  if (free_.empty()) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  } else {
    event = free_.back();
    free_.pop_back();
  }
  const cudaError_t error = cudaEventRecord(event, on);
  if (error != cudaSuccess) free_.push_back(event);
  check(error, "recording an event");
  log.pending.push_back(event);
  return static_cast<Backend::Event>(index) << kNumberBits | (log.past + log.pending.size() - 1);
}

void Events::wait(cudaStream_t on, Backend::Event event) {
  const Log& log = logs_.at(stream_of(event));
  const std::uint64_t number = number_of(event);
  if (number < log.past) return;
  check(cudaStreamWaitEvent(on, log.pending.at(static_cast<std::size_t>(number - log.past)), 0),
        "waiting for another stream");
}

bool Events::done(Backend::Event event) {
  Log& log = logs_.at(stream_of(event));
  if (number_of(event) < log.past) return true;
  retire(log);
  return number_of(event) < log.past;
}

void Events::all_done(Stream stream) {
  Log& log = logs_[static_cast<std::size_t>(stream)];
  while (!log.pending.empty()) retire_front(log);
}

void Events::retire_front(Log& log) {
  free_.push_back(log.pending.front());
  log.pending.pop_front();
  ++log.past;
}

void Events::retire(Log& log) {
  while (!log.pending.empty()) {
    if (!is_done(cudaEventQuery(log.pending.front()), "work on the GPU")) return;
    retire_front(log);
  }
}

Marks::~Marks() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

Backend::Mark Marks::mark(cudaStream_t on) {
  if (used_ == events_.size()) {
    cudaEvent_t event = nullptr;
    check(cudaEventCreate(&event), "creating an event");
    events_.push_back(event);
  }
  check(cudaEventRecord(events_[used_], on), "marking a point in time");
  return used_++;
}

double Marks::seconds(Backend::Mark from, Backend::Mark to) const {
  if (from >= used_ || to >= used_) throw std::logic_error("a mark was used after forget_marks()");
  constexpr double kMillisecond = 1e-3;
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, events_[from], events_[to]), "reading the time between two marks");
  return kMillisecond * static_cast<double>(milliseconds);
}

}  // namespace orrery::cuda
