// Events and times of a backend's streams. Internal to realrun/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "realrun/backend.h"

namespace orrery::cuda {

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
