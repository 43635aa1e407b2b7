// Memory of a rank's tensors. It is counted by category, freed when the work that uses it is done, and its uses are
// ordered between streams. Internal to the executor.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "realrun/backend.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery::realrun {

// Work issued to a stream, up to and including its op number `serial`.
struct Use {
  Stream stream = Stream::compute;
  std::uint64_t serial = 0;
  Backend::Event event = 0;
  bool recorded = false;
};

// Orders work between streams by events. For communication and copies an event is recorded after each op, so that
// waiting for one collective does not wait for the next. Compute has many kernels: it records events only on demand.
class StreamOrder {
 public:
  explicit StreamOrder(Backend& backend) : backend_(backend) {}

  Use issued(Stream stream);  // call after issuing an op to `stream`
  void wait(Stream waiting, Use& use);
  // Waits for everything issued to the compute stream.
  void wait_for_compute(Stream waiting);
  Backend::Event event_behind(Use& use);

 private:
  struct State {
    std::uint64_t issued = 0, recorded = 0;
    Backend::Event event = 0;
  };
  Backend& backend_;
  std::array<State, kStreams> states_{};
};

class MemoryLedger;
struct RowCounts;  // expert_rows.h

// Memory of a tensor that is not a view.
struct Storage {
  Storage(MemoryLedger& ledger, std::int64_t elements, Dtype dtype, Category category, Stream stream,
          Place place = Place::device);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  MemoryLedger& ledger;
  void* data = nullptr;
  std::int64_t elements = 0;
  Dtype dtype = Dtype::fp32;
  Category category = Category::activation;
  Place place = Place::device;
  Use written;
  std::vector<Use> read;  // reads since then: the last of each stream
  // For experts' rows, and for the choices that they follow from: the number of rows, if counted.
  std::shared_ptr<const RowCounts> rows;
  void note_read(const Use& use);
  void note_written(const Use& use);
};
using StoragePtr = std::shared_ptr<Storage>;

// Counts bytes in the tensors' own dtypes, whatever the backend stores, and what the host holds when the device peaks.
class MemoryLedger {
 public:
  MemoryLedger(Backend& backend, StreamOrder& order) : backend_(backend), order_(order) {}
  ~MemoryLedger();
  MemoryLedger(const MemoryLedger&) = delete;
  MemoryLedger& operator=(const MemoryLedger&) = delete;

  const PlacedBytes& at_peak() const { return at_peak_; }
  double peak_bytes() const { return peak_bytes_; }  // on the device
  void forget_peak();

 private:
  friend struct Storage;
  struct Retired {
    void* data;
    std::vector<Backend::Event> events;
  };
  void* allocate(std::int64_t elements, Dtype dtype, Category category, Place place, Stream stream);
  void retire(Storage& storage);
  void collect();

  Backend& backend_;
  StreamOrder& order_;
  PlacedBytes now_{}, at_peak_{};
  double now_bytes_ = 0, peak_bytes_ = 0;
  std::vector<Retired> retired_;
};

}  // namespace orrery::realrun
