#include "realrun/storage.h"

#include <algorithm>

#include "realrun/communicator.h"

namespace orrery::realrun {

Use StreamOrder::issued(Stream stream) {
  State& state = states_[static_cast<std::size_t>(stream)];
  Use use{stream, ++state.issued, 0, false};
  if (stream != Stream::compute) {
    use.event = state.event = backend_.record(stream);
    state.recorded = state.issued;
    use.recorded = true;
  }
  return use;
}

Backend::Event StreamOrder::event_behind(Use& use) {
  if (use.recorded) return use.event;
  State& state = states_[static_cast<std::size_t>(use.stream)];
  if (state.recorded < use.serial) {
    state.event = backend_.record(use.stream);
    state.recorded = state.issued;
  }
  use.event = state.event;
  use.recorded = true;
  return use.event;
}

void StreamOrder::wait(Stream waiting, Use& use) {
  if (use.serial == 0 || use.stream == waiting) return;
  backend_.wait(waiting, event_behind(use));
}

void StreamOrder::wait_for_compute(Stream waiting) {
  Use use{Stream::compute, states_[static_cast<std::size_t>(Stream::compute)].issued, 0, false};
  wait(waiting, use);
}

Storage::Storage(MemoryLedger& l, std::int64_t n, Dtype type, Category of, Stream stream, Place where)
    : ledger(l), data(l.allocate(n, type, of, where, stream)), elements(n), dtype(type), category(of), place(where) {}
Storage::~Storage() { ledger.retire(*this); }

void Storage::note_read(const Use& use) {
  const auto same = std::find_if(read.begin(), read.end(), [&](const Use& u) { return u.stream == use.stream; });
  if (same != read.end()) {
    *same = use;
  } else {
    read.push_back(use);
  }
}

void Storage::note_written(const Use& use) {
  written = use;
  read.clear();
}

void* MemoryLedger::allocate(std::int64_t elements, Dtype dtype, Category category, Place place, Stream stream) {
  collect();
  if (place == Place::storage) throw ExecutionError("nothing is kept in storage yet");
  void* data = backend_.allocate(elements, dtype, place, stream);
  const double bytes = static_cast<double>(bytes_of(dtype, elements));
  now_.of(place, category) += bytes;
  if (place == Place::device) now_bytes_ += bytes;
  if (now_bytes_ > peak_bytes_) {
    peak_bytes_ = now_bytes_;
    at_peak_ = now_;
  }
  return data;
}

void MemoryLedger::retire(Storage& storage) {
  const double bytes = static_cast<double>(bytes_of(storage.dtype, storage.elements));
  now_.of(storage.place, storage.category) -= bytes;
  if (storage.place == Place::device) now_bytes_ -= bytes;
  Retired retired{storage.data, {}};
  const auto note = [&](Use& use) {
    if (use.serial > 0 && use.stream != Stream::compute) retired.events.push_back(order_.event_behind(use));
  };
  note(storage.written);
  for (Use& use : storage.read) note(use);
  retired_.push_back(std::move(retired));
  collect();
}

void MemoryLedger::collect() {
  std::erase_if(retired_, [&](const Retired& retired) {
    for (const Backend::Event event : retired.events)
      if (!backend_.done(event)) return false;
    backend_.release(retired.data);
    return true;
  });
}

void MemoryLedger::forget_peak() {
  at_peak_ = now_;
  peak_bytes_ = now_bytes_;
}

MemoryLedger::~MemoryLedger() {
  try {
    backend_.synchronize();
  } catch (const DeviceError&) {  // the device is lost, including its memory
  }
  for (const Retired& retired : retired_) backend_.release(retired.data);
}

}  // namespace orrery::realrun
