// What neighbouring chunks hand each other: read by both engines and by the executor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

// Between the chunk at one position and the next. Of each stream, the residual one and then those of Piece::sides, what
// the first piece behind the border that takes it has of it, and of its gradient; null: the stream does not cross.
struct Border {
  using Streams = std::array<const Tensor*, 1 + kSideStreams>;
  Streams forward{}, backward{};
};

// Of a micro-batch and rank: what is sent, and of it, gathered, what arrived in parts (Schedule::scattered_transfers).
struct Crossing {
  double sent_bytes = 0, gathered_bytes = 0;
};

// By position: of the border behind it. Nothing crosses behind the last one. Pointers are into the program.
class Borders {
 public:
  void find(const Program& program);
  const Border& operator[](std::size_t position) const { return borders_[like_[position]]; }
  // In how many parts a tensor crosses, each from one rank of tensor parallelism to one.
  std::int64_t parts(const Tensor& tensor) const;
  Crossing forward(std::size_t position) const { return crossing(operator[](position).forward); }
  Crossing backward(std::size_t position) const { return crossing(operator[](position).backward); }
  // Positions of one number have equal borders.
  std::uint32_t number(std::size_t position) const { return like_[position]; }
  std::size_t size() const { return like_.size(); }
  // The stage that holds the chunk at the position.
  std::int32_t stage_at(std::size_t position) const { return stage_at_[position]; }
  // On the ring of stages: the stage behind which the border is, whichever way it is crossed. REQUIRES: not the last
  // position.
  std::int32_t behind_stage(std::size_t position) const;

 private:
  Crossing crossing(const Border::Streams& streams) const;

  std::int64_t most_parts_ = 1;
  MeshGroup tensor_ranks_;
  std::vector<Border> borders_;
  std::vector<std::uint32_t> like_;  // by position: which of them
  std::vector<std::int32_t> stage_at_;
  std::vector<const Chunk*> chunk_at_;
};

}  // namespace orrery
