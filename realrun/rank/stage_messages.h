// Messages between the chunks of a rank's stage and their neighbours: through the communicator to other stages, at hand
// where a stage is its own neighbour.
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

  // All streams that cross a border on their way to the chunk at a position. Throws ExecutionError where a stage waits
  // for what it has yet to send itself.
  Streams receive(std::int64_t position, std::int64_t micro_batch, bool backward);
  void send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams);

 private:
  StreamPart receive(const MessageTag& tag, const Tensor& tensor);
  // In so many parts, of which this rank sends its own.
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
