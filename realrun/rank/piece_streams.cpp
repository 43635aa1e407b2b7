#include "realrun/rank/piece_streams.h"

#include <stdexcept>
#include <string>

namespace orrery::realrun {

void PieceStreams::hand_in(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams) {
  const Piece& piece = instance.piece();
  const Work work{instance, micro_batch};
  const TensorId residual = boundary_of(piece, block).input;
  if (residual != kNoTensor) put(work, residual, streams[0]);
  streams[0].storage.reset();
  for (std::size_t s = 0; s < kSideStreams; ++s) {
    StreamPart& part = streams[1 + s];
    if (block == kForwardBlock) {
      if (piece.sides[s].input != kNoTensor) put(work, piece.sides[s].input, part);
    } else if (const TensorId id = piece.sides[s].output_gradient; id != kNoTensor) {
      put(work, id, part.storage != nullptr ? part : zeros(piece.tensors[id]));
      part = {};
    }
  }
}

void PieceStreams::hand_on(const Instance& instance, std::size_t block, std::int64_t micro_batch, Streams& streams) {
  const Piece& piece = instance.piece();
  const Work work{instance, micro_batch};
  const TensorId residual = boundary_of(piece, block).output;
  if (residual != kNoTensor) streams[0] = take(work, residual, block);
  for (std::size_t s = 0; s < kSideStreams; ++s) {
    const SideStream& side = piece.sides[s];
    const TensorId id = block == kForwardBlock ? side.output : side.input_gradient;
    if (id != kNoTensor) streams[1 + s] = take(work, id, block);
  }
}

void PieceStreams::put(const Work& work, TensorId id, const StreamPart& part) {
  const PiecePlan& plan = *work.instance.plan;
  const ElementMap& view = plan.view(id);
  const Tensor& t = plan.tensor(id);
  if (part.elements != t.elements())
    throw ExecutionError(std::string("piece \"") + plan.piece().name + "\" takes " + std::to_string(t.elements()) +
                         " elements, its neighbour hands on " + std::to_string(part.elements));
  if (t.dtype != part.dtype) throw std::logic_error("neighbouring pieces differ in their dtype");
  const bool whole = view.dense() && view.offset == 0 && plan.capacity(view.root) == part.elements;
  if (whole && !plan.lasts(view.root)) return memory_.adopt(work, view.root, part.storage);
  const Slice to = memory_.slice(work, id, Access::write);
  memory_.order().wait(work.stream, part.storage->written);
  memory_.backend().scatter(work.stream, part.storage->data, to, false);
  const Use use = memory_.order().issued(work.stream);
  part.storage->note_read(use);
  memory_.storage(work, id, Access::write).note_written(use);
}

StreamPart PieceStreams::take(const Work& work, TensorId id, std::size_t block) {
  const PiecePlan& plan = *work.instance.plan;
  const ElementMap& view = plan.view(id);
  const Tensor& t = plan.tensor(id);
  StreamPart part{memory_.share(work, id), t.elements(), t.dtype};
  if (!view.dense() || view.offset != 0 || part.storage->elements != t.elements()) {
    const StoragePtr copy = memory_.allocate(t.elements(), t.dtype, Category::activation, work.stream);
    memory_.order().wait(work.stream, part.storage->written);
    memory_.backend().gather(work.stream, memory_.slice(work, id, Access::read), copy->data);
    const Use use = memory_.order().issued(work.stream);
    part.storage->note_read(use);
    copy->note_written(use);
    part.storage = copy;
  }
  if (plan.ends_handed_on(view.root, block)) memory_.end(work, view.root);
  return part;
}

StreamPart PieceStreams::zeros(const Tensor& tensor) {
  StreamPart part{memory_.scratch(tensor.elements(), tensor.dtype, Stream::compute), tensor.elements(), tensor.dtype};
  memory_.fill(*part.storage, 0, Stream::compute);
  return part;
}

}  // namespace orrery::realrun
