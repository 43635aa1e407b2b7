// Streams: the residual stream, side streams (Piece::sides), their gradients. PieceStreams hands them from piece to
// piece of a stage. StageMessages sends and receives what crosses the borders between a rank's chunks and the
// neighbouring chunks: activations in the forward, their gradients in the backward. A message to another stage goes
// through the communicator. A message between two chunks of the same stage stays in the rank's memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>

#include "realrun/communicator.h"
#include "realrun/rank/step_clock.h"
#include "realrun/rank/tensor_memory.h"
#include "sim/program/borders.h"

namespace orrery::realrun {

using Streams = std::array<StoragePtr, 1 + kSideStreams>;  // null: there is no such stream

class PieceStreams {
 public:
  explicit PieceStreams(TensorMemory& memory) : memory_(memory) {}

  // Called before and after a forward or backward block of an instance. A stream is passed on without a copy if both
  // pieces have it in one layout, and copied if one of them has it as part of a larger storage. The last piece that
  // reads a side stream receives a gradient of zeros. Throws ExecutionError if neighbours differ in size.
  void hand_in(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);
  void hand_on(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams);

 private:
  void put(const Work& work, TensorId id, const StoragePtr& part);
  StoragePtr take(const Work& work, TensorId id, std::size_t block);

  TensorMemory& memory_;
};

class StageMessages : RankShared {
 public:
  StageMessages(const RankShared& rank, StepClock& clock) : RankShared(rank), clock_(clock) { borders_.find(program_); }

  // `position` is that of the receiving chunk, counted over chunks in model order. Both handle all streams that cross
  // the border (sim/program/borders.h). receive() throws ExecutionError if a message between chunks of this stage was
  // not sent before.
  Streams receive(std::int64_t position, std::int64_t micro_batch, bool backward);
  void send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams);

 private:
  StoragePtr receive(const MessageTag& tag, const Tensor& tensor);
  // Sends the tensor in `parts` parts, of which this rank sends one.
  void send(const MessageTag& tag, StoragePtr& tensor, std::int64_t parts);
  void* own_part(const Storage& tensor, std::int64_t parts) const;
  std::size_t rank_at(std::int64_t position) const;
  const std::array<const Tensor*, 1 + kSideStreams>& crossing_to(std::int64_t position, bool backward) const;

  StepClock& clock_;
  Borders borders_;
  std::map<MessageTag, StoragePtr> own_;  // between chunks of this stage
};

}  // namespace orrery::realrun
