// Memory of a rank's tensors: storages that live from their first use to the last, and tensors as slices of them. It is
// counted by category, freed when the work that uses it is done, and its uses are ordered between streams.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "realrun/backend.h"
#include "realrun/rank/rank_model.h"

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

// The instance and micro-batch that work belongs to, and its stream.
struct Work {
  const Instance& instance;
  std::int64_t micro_batch = kOfStep;
  Stream stream = Stream::compute;
};

enum class Access : std::uint8_t { read, write };

class TensorMemory {
 public:
  TensorMemory(const RunSetup& setup, const Position& position, const RankModel& model, Backend& backend);

  Backend& backend() { return backend_; }
  StreamOrder& order() { return order_; }
  MemoryLedger& ledger() { return ledger_; }

  // Returns the storage of a tensor. Creates it on first use: with zeros if ops add to it, with values if it is an
  // input. Throws ExecutionError if anything else is read before it is written.
  Storage& storage(const Work& work, TensorId id, Access access) { return *pointer(work, id, access); }
  // The same as a shared pointer, which keeps the storage beyond its life.
  StoragePtr share(const Work& work, TensorId id) { return pointer(work, id, Access::read); }
  // Returns the tensor's part of its storage.
  Slice slice(const Work& work, TensorId id, Access access);
  // Returns a tensor's dense data: in place, or gathered into memory that lives as long as the result.
  struct Dense {
    void* data = nullptr;
    StoragePtr gathered;
  };
  Dense dense(const Work& work, TensorId id);

  // Destination of a result that must be dense: the tensor itself, or a copy that put() then scatters into the tensor.
  struct Target {
    void* data = nullptr;
    Slice slice;
    StoragePtr copy;
  };
  Target target(const Work& work, TensorId id);
  void put(const Target& target, Stream stream);

  // Allocates memory that belongs to no tensor. It is freed after the work that is issued to `stream` while it is held;
  // only this stream may use it.
  StoragePtr scratch(std::int64_t elements, Dtype dtype, Stream stream);
  // Allocates memory of a category at a place, for use on any stream. Its users record their uses in it
  // (Storage::note_read, note_written); it is freed after these.
  StoragePtr allocate(std::int64_t elements, Dtype dtype, Category category, Stream stream,
                      Place place = Place::device);
  // Returns the address of element number `at` of the memory at `base`, or of the first element of a slice.
  void* element(void* base, std::int64_t at, Dtype dtype) const;
  void* element(const Slice& slice) const { return element(slice.base, slice.offset, slice.dtype); }
  // Sets all elements to `value`.
  void fill(Storage& storage, float value, Stream stream);

  // In both, `storage` is a tensor that is not a view. adopt() gives it memory that is already filled, in place of
  // memory of its own. end() ends its life.
  void adopt(const Work& work, TensorId storage, StoragePtr memory);
  void end(const Work& work, TensorId storage);
  // Ends the storages that nothing uses after this op, and sets to zero those that collect a new sum from then on.
  void end_lives(const Work& work, std::size_t block, std::size_t op);
  // Releases what an instance holds of one micro-batch, or what all instances hold of all micro-batches.
  void release(const Instance& instance, std::int64_t micro_batch);
  void release_micro_batches();
  void forget() { held_.clear(); }  // releases everything; REQUIRES: nobody uses it any more

 private:
  using StorageSet = std::vector<StoragePtr>;  // by tensor
  struct Held {
    StorageSet lasting;
    std::map<std::int64_t, StorageSet> micro;
  };
  StorageSet& set_of(const Work& work, TensorId storage);
  StoragePtr& pointer(const Work& work, TensorId id, Access access);
  StoragePtr begin(const Work& work, TensorId storage, Access access);

  const RunSetup& setup_;
  const Position& position_;
  const RankModel& model_;
  Backend& backend_;
  StreamOrder order_;
  MemoryLedger ledger_;
  std::vector<Held> held_;  // by instance
};

// What the parts of a rank share.
struct RankShared {
  RankShared(const RunSetup& setup, const Position& position, const RankModel& model, TensorMemory& memory,
             Communicator& communicator)
      : setup_(setup),
        program_(setup.program),
        position_(position),
        model_(model),
        memory_(memory),
        backend_(memory.backend()),
        communicator_(communicator) {}

  const RunSetup& setup_;
  const Program& program_;
  const Position& position_;
  const RankModel& model_;
  TensorMemory& memory_;
  Backend& backend_;
  Communicator& communicator_;
};

// A call of an op: the op, and the instance and micro-batch for which it runs.
struct OpCall : Work {
  OpCall(const Instance& of, std::int64_t of_micro_batch, std::size_t of_block, std::size_t number)
      : Work{of, of_micro_batch, of.plan->ops(of_block)[number].stream},
        op(of.plan->ops(of_block)[number]),
        block(of_block),
        index(number) {}

  const Op& op;
  std::size_t block, index;  // the op's block, and its index in it

  const PiecePlan& plan() const { return *instance.plan; }
  const Tensor& read(std::size_t i) const { return instance.tensor(op.reads[i]); }
  const Tensor& written(std::size_t i) const { return instance.tensor(op.writes[i]); }
};

}  // namespace orrery::realrun
