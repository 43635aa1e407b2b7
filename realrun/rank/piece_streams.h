// What pieces of a stage hand each other in a micro-batch: the residual stream and those beside it (Piece::sides),
// and their gradients.
#pragma once

#include <array>
#include <cstdint>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

struct StreamPart {  // empty where nothing flows
  StoragePtr storage;
  std::int64_t elements = 0;
  Dtype dtype = Dtype::fp32;
};
using Streams = std::array<StreamPart, 1 + kSideStreams>;

class PieceStreams {
 public:
  explicit PieceStreams(TensorMemory& memory) : memory_(memory) {}

  // Before and behind a forward or backward block of an instance. What neighbours have in one layout is handed on where
  // it lies; a copy is made where one of them has a part of a larger storage. The last piece to read a side
  // stream is handed a gradient of zeros. Throws ExecutionError for neighbours of different sizes.
  void hand_in(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);
  void hand_on(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);

 private:
  void put(const Work& work, TensorId id, const StreamPart& part);
  StreamPart take(const Work& work, TensorId id, std::size_t block);
  StreamPart zeros(const Tensor& tensor);

  TensorMemory& memory_;
};

}  // namespace orrery::realrun
