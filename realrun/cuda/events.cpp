#include "realrun/cuda/events.h"

#include <stdexcept>

#include "realrun/cuda/runtime.h"

namespace orrery::cuda {
namespace {
constexpr std::size_t kLookFrom = 16;  // number of pending events of a stream at which recording looks for past ones
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
