#include "sim/program/borders.h"

#include <algorithm>
#include <cstdlib>

namespace orrery {

void Borders::find(const Program& program) {
  const std::size_t positions = program.schedule.position.size();
  stage_at_.resize(positions);
  chunk_at_.resize(positions);
  like_.resize(positions);
  borders_.clear();
  tensor_ranks_ = program.mesh.group(MeshAxis::tp);
  most_parts_ = program.schedule.scattered_transfers ? program.mesh.size(tensor_ranks_) : 1;
  for (std::size_t s = 0; s < program.stages.size(); ++s)
    for (std::size_t c = 0; c < program.stages[s].size(); ++c) {
      const auto q = static_cast<std::size_t>(program.schedule.position_of(s, c));
      stage_at_[q] = static_cast<std::int32_t>(s);
      chunk_at_[q] = &program.stages[s][c];
    }
  Border crossing;  // the border in front of the part that has been visited
  borders_.push_back(crossing);
  for (std::size_t q = positions; q-- > 0;) {
    like_[q] = static_cast<std::uint32_t>(borders_.size() - 1);
    // A border before a chunk equals the border before an equal chunk behind it: each stream is either the chunk's own
    // or passes by.
    if (q + 1 < positions && *chunk_at_[q] == *chunk_at_[q + 1]) continue;
    for (auto run = chunk_at_[q]->runs.rbegin(); run != chunk_at_[q]->runs.rend(); ++run) {
      const Piece& piece = program.pieces[run->piece];
      const auto take = [&](std::size_t stream, TensorId forward, TensorId backward) {
        crossing.forward[stream] = &piece.tensors[forward];
        crossing.backward[stream] = backward == kNoTensor ? nullptr : &piece.tensors[backward];
      };
      if (piece.output != kNoTensor) crossing.forward[0] = crossing.backward[0] = nullptr;  // later pieces take it
      if (piece.input != kNoTensor) take(0, piece.input, piece.input_gradient);
      for (std::size_t s = 0; s < kSideStreams; ++s) {
        const SideStream& side = piece.sides[s];
        if (side.output != kNoTensor) crossing.forward[1 + s] = crossing.backward[1 + s] = nullptr;  // it begins here
        if (side.input != kNoTensor) take(1 + s, side.input, side.input_gradient);
      }
    }
    borders_.push_back(crossing);
  }
}

std::int64_t Borders::parts(const Tensor& tensor) const {
  const bool alike = (tensor.divided_over() & tensor_ranks_).empty();
  return alike && tensor.elements() % most_parts_ == 0 ? most_parts_ : 1;
}

Crossing Borders::crossing(const Border::Streams& streams) const {
  Crossing sum;
  for (const Tensor* t : streams) {
    if (t == nullptr) continue;
    const std::int64_t in_parts = parts(*t);
    const auto bytes = static_cast<double>(t->bytes());
    sum.sent_bytes += bytes / static_cast<double>(in_parts);
    if (in_parts > 1) sum.gathered_bytes += bytes;
  }
  return sum;
}

std::int32_t Borders::behind_stage(std::size_t position) const {
  const std::int32_t from = stage_at(position), to = stage_at(position + 1);
  // The border from the last stage to the first, unless the two are neighbours anyway.
  return std::abs(from - to) == 1 ? std::min(from, to) : std::max(from, to);
}

}  // namespace orrery
