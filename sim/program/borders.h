// The tensors that neighbouring chunks of a pipeline hand each other. Both engines and the executor use them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

// The border between the chunk at one position and the chunk at the next. Index 0 is the residual stream, then follow
// the streams of Piece::sides. An entry is the stream's tensor (forward) or its gradient (backward) in the first piece
// behind the border that takes it; null: the stream does not cross.
struct Border {
  using Streams = std::array<const Tensor*, 1 + kSideStreams>;
  Streams forward{}, backward{};
};

// Bytes that one rank sends for one micro-batch, and the part of them that is gathered again after it arrived in parts
// (Schedule::scattered_transfers).
struct Crossing {
  double sent_bytes = 0, gathered_bytes = 0;
};

// The borders by position: borders[p] lies behind position p. Nothing crosses behind the last position. Pointers point
// into the program.
class Borders {
 public:
  void find(const Program& program);
  const Border& operator[](std::size_t position) const { return borders_[like_[position]]; }
  // The number of parts in which a tensor crosses; each part goes from one rank of tensor parallelism to one other.
  std::int64_t parts(const Tensor& tensor) const;
  Crossing forward(std::size_t position) const { return crossing(operator[](position).forward); }
  Crossing backward(std::size_t position) const { return crossing(operator[](position).backward); }
  // Positions with the same number have equal borders.
  std::uint32_t number(std::size_t position) const { return like_[position]; }
  std::size_t size() const { return like_.size(); }
  // The stage that holds the chunk at the position.
  std::int32_t stage_at(std::size_t position) const { return stage_at_[position]; }
  // The stage behind which the border lies on the ring of stages, in whichever direction it is crossed. REQUIRES: not
  // the last position.
  std::int32_t behind_stage(std::size_t position) const;

 private:
  Crossing crossing(const Border::Streams& streams) const;

  std::int64_t most_parts_ = 1;
  MeshGroup tensor_ranks_;
  std::vector<Border> borders_;
  std::vector<std::uint32_t> like_;  // index into borders_, by position
  std::vector<std::int32_t> stage_at_;
  std::vector<const Chunk*> chunk_at_;
};

}  // namespace orrery
