// Sends and receives what crosses the borders between a rank's chunks and the neighbouring chunks: activations in the
// forward, their gradients in the backward. A message to another stage goes through the communicator. A message between
// two chunks of the same stage stays in the rank's memory.
#pragma once

#include <cstdint>
#include <map>

#include "realrun/communicator.h"
#include "realrun/rank/piece_streams.h"
#include "realrun/rank/step_clock.h"
#include "sim/program/borders.h"

namespace orrery::realrun {

class StageMessages : RankShared {
 public:
  StageMessages(const RankShared& rank, StepClock& clock) : RankShared(rank), clock_(clock) { borders_.find(program_); }

  // `position` is that of the receiving chunk, counted over chunks in model order. Both handle all streams that cross
  // the border (sim/program/borders.h). receive() throws ExecutionError if a message between chunks of this stage was
  // not sent before.
  Streams receive(std::int64_t position, std::int64_t micro_batch, bool backward);
  void send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams);

 private:
  StreamPart receive(const MessageTag& tag, const Tensor& tensor);
  // Sends the tensor in `parts` parts, of which this rank sends one.
  void send(const MessageTag& tag, StreamPart& part, std::int64_t parts);
  void* own_part(const StreamPart& part, std::int64_t parts) const;
  std::size_t rank_at(std::int64_t position) const;
  const std::array<const Tensor*, 1 + kSideStreams>& crossing_to(std::int64_t position, bool backward) const;

  StepClock& clock_;
  Borders borders_;
  std::map<MessageTag, StreamPart> own_;  // between chunks of this stage
};

}  // namespace orrery::realrun
