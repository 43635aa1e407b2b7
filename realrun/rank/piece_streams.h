// Hands streams from piece to piece of a stage: the residual stream, side streams (Piece::sides), their gradients.
#pragma once

#include <array>
#include <cstdint>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

struct StreamPart {  // storage is null if there is no such stream
  StoragePtr storage;
  std::int64_t elements = 0;
  Dtype dtype = Dtype::fp32;
};
using Streams = std::array<StreamPart, 1 + kSideStreams>;

class PieceStreams {
 public:
  explicit PieceStreams(TensorMemory& memory) : memory_(memory) {}

  // Called before and after a forward or backward block of an instance. A stream is passed on without a copy if both
  // pieces have it in one layout, and copied if one of them has it as part of a larger storage. The last piece that
  // reads a side stream receives a gradient of zeros. Throws ExecutionError if neighbours differ in size.
  void hand_in(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);
  void hand_on(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);

 private:
  void put(const Work& work, TensorId id, const StreamPart& part);
  StreamPart take(const Work& work, TensorId id, std::size_t block);
  StreamPart zeros(const Tensor& tensor);

  TensorMemory& memory_;
};

}  // namespace orrery::realrun
