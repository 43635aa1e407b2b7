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
  std::array<const Tensor*, 1 + kSideStreams> forward{}, backward{};

  // Of a micro-batch and rank.
  double forward_bytes() const { return bytes(forward); }
  double backward_bytes() const { return bytes(backward); }

 private:
  static double bytes(const std::array<const Tensor*, 1 + kSideStreams>& streams) {
    double sum = 0;
    for (const Tensor* t : streams)
      if (t != nullptr) sum += static_cast<double>(t->bytes());
    return sum;
  }
};

// By position: of the border behind it. Nothing crosses behind the last one. Pointers are into the program.
class Borders {
 public:
  void find(const Program& program);
  const Border& operator[](std::size_t position) const { return borders_[like_[position]]; }
  // Positions of one number have equal borders.
  std::uint32_t number(std::size_t position) const { return like_[position]; }
  std::size_t size() const { return like_.size(); }
  // The stage that holds the chunk at the position.
  std::int32_t stage_at(std::size_t position) const { return stage_at_[position]; }
  // On the ring of stages: the stage behind which the border is, whichever way it is crossed. REQUIRES: not the last
  // position.
  std::int32_t behind_stage(std::size_t position) const;

 private:
  std::vector<Border> borders_;
  std::vector<std::uint32_t> like_;  // by position: which of them
  std::vector<std::int32_t> stage_at_;
  std::vector<const Chunk*> chunk_at_;
};

}  // namespace orrery
