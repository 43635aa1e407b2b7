// Where the elements of a rank's tensors are: storages that begin with their first use and end with the last, and the
// parts of them that tensors are.
#pragma once

#include <map>
#include <vector>

#include "realrun/backend.h"
#include "realrun/rank/rank_model.h"
#include "realrun/storage.h"

namespace orrery::realrun {

// For which instance and micro-batch something is done, on which stream.
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

  // What a tensor lies in. It begins here if nothing has touched it: zero if ops add to it, filled if given from
  // outside. Throws ExecutionError where anything else is read before it is written.
  Storage& storage(const Work& work, TensorId id, Access access) { return *pointer(work, id, access); }
  // The same, to be held beyond its life.
  StoragePtr share(const Work& work, TensorId id) { return pointer(work, id, Access::read); }
  // The tensor's part of it.
  Slice slice(const Work& work, TensorId id, Access access);
  // A tensor that is read, dense: where it is, or gathered into `gathered`.
  void* dense(const Work& work, TensorId id, StoragePtr& gathered);

  // Where a result that must be dense goes: the tensor itself, or what put() scatters into it afterwards.
  struct Target {
    void* data = nullptr;
    Slice slice;
    StoragePtr copy;
  };
  Target target(const Work& work, TensorId id);
  void put(const Target& target, Stream stream);

  // Memory that is no tensor's.
  StoragePtr scratch(std::int64_t elements, Dtype dtype, Stream stream);
  StoragePtr allocate(std::int64_t elements, Dtype dtype, Category category, Stream stream,
                      Place place = Place::device);
  void* element(void* base, std::int64_t at, Dtype dtype) const;
  void* element(const Slice& slice) const { return element(slice.base, slice.offset, slice.dtype); }
  void fill(Storage& storage, float value, Stream stream);

  // Gives a storage (a tensor that is no view) the memory that something else has filled.
  void adopt(const Work& work, TensorId storage, StoragePtr memory);
  void end(const Work& work, TensorId storage);
  // What nothing uses behind the op ends; what begins anew is zero again.
  void end_lives(const Work& work, std::size_t block, std::size_t op);
  // All that belongs to a micro-batch, or to any.
  void release(const Instance& instance, std::int64_t micro_batch);
  void release_micro_batches();
  void forget() { held_.clear(); }  // all that there is; REQUIRES: nobody uses it any more

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

}  // namespace orrery::realrun
