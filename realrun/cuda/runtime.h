// The CUDA runtime as this folder uses it: checks of calls, whose failures become DeviceErrors that say what to do, and
// events and times of a backend's streams. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

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

// An event is a stream and a number: how many events of the stream came before. Streams run in order: once an event has
// passed, all earlier ones have, and their CUDA events are reused. Nobody needs to release events.
class Events {
 public:
  ~Events();

  Backend::Event record(Stream stream, cudaStream_t on);
  void wait(cudaStream_t on, Backend::Event event);
  bool done(Backend::Event event);
  // Marks all events recorded so far on `stream` as passed: the caller has synchronised with it.
  void all_done(Stream stream);

 private:
  struct Log {
    std::uint64_t past = 0;  // number of events that are no longer held
    std::deque<cudaEvent_t> pending;
  };
  static std::size_t stream_of(Backend::Event event) { return static_cast<std::size_t>(event >> kNumberBits); }
  static std::uint64_t number_of(Backend::Event event) { return event & ((std::uint64_t{1} << kNumberBits) - 1); }
  void retire(Log& log);
  void retire_front(Log& log);

  static constexpr int kNumberBits = 56;
  std::array<Log, kStreams> logs_;
  std::vector<cudaEvent_t> free_;
};

// Points in time. CUDA events resolve about half a microsecond.
class Marks {
 public:
  ~Marks();

  Backend::Mark mark(cudaStream_t on);
  double seconds(Backend::Mark from, Backend::Mark to) const;
  void forget() { used_ = 0; }

 private:
  std::vector<cudaEvent_t> events_;
  std::size_t used_ = 0;
};

}  // namespace orrery::cuda
