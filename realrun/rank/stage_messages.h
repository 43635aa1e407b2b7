// Messages between the chunks of a rank's stage and their neighbours. They go through the communicator to other stages,
// and stay local where a stage is its own neighbour.
#pragma once

#include <cstdint>
#include <map>

#include "realrun/communicator.h"
#include "realrun/rank/piece_streams.h"
#include "realrun/rank/step_clock.h"
#include "sim/program/borders.h"

namespace orrery::realrun {

class StageMessages {
 public:
  StageMessages(const Program& program, const Position& position, TensorMemory& memory, Communicator& communicator,
                StepClock& clock);

  // Receives and sends all streams that cross the border to the chunk at `position`. Throws ExecutionError if a stage
  // waits for a message that it has yet to send to itself.
  Streams receive(std::int64_t position, std::int64_t micro_batch, bool backward);
  void send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams);

 private:
  StreamPart receive(const MessageTag& tag, const Tensor& tensor);
  // Sends the tensor in `parts` parts, of which this rank sends one.
  void send(const MessageTag& tag, StreamPart& part, std::int64_t parts);
  void* own_part(const StreamPart& part, std::int64_t parts) const;
  std::size_t rank_at(std::int64_t position) const;
  const std::array<const Tensor*, 1 + kSideStreams>& crossing_to(std::int64_t position, bool backward) const;

  const Position& position_;
  TensorMemory& memory_;
  Communicator& communicator_;
  StepClock& clock_;
  Borders borders_;
  std::map<MessageTag, StreamPart> own_;  // between chunks of this stage
};

}  // namespace orrery::realrun
