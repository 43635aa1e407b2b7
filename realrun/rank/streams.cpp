#include "realrun/rank/streams.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace orrery::realrun {
namespace {

constexpr Stream kStages = Stream::pipeline_communication;

}  // namespace

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

std::size_t StageMessages::rank_at(std::int64_t position) const {
  const std::int32_t stage = borders_.stage_at(static_cast<std::size_t>(position));
  return position_.group(MeshAxis::pp).at(static_cast<std::size_t>(stage));
}

const std::array<const Tensor*, 1 + kSideStreams>& StageMessages::crossing_to(std::int64_t position,
                                                                              bool backward) const {
  return backward ? borders_[static_cast<std::size_t>(position)].backward
                  : borders_[static_cast<std::size_t>(position - 1)].forward;
}

Streams StageMessages::receive(std::int64_t position, std::int64_t micro_batch, bool backward) {
  Streams streams;
  const auto& crossing = crossing_to(position, backward);
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (crossing[s] != nullptr) streams[s] = receive({position, micro_batch, backward, s}, *crossing[s]);
  return streams;
}

void StageMessages::send(std::int64_t position, std::int64_t micro_batch, bool backward, Streams& streams) {
  const auto& crossing = crossing_to(position, backward);
  for (std::size_t s = 0; s < streams.size(); ++s)
    if (crossing[s] != nullptr) send({position, micro_batch, backward, s}, streams[s], borders_.parts(*crossing[s]));
}

StreamPart StageMessages::receive(const MessageTag& tag, const Tensor& tensor) {
  const std::size_t from = rank_at(tag.backward ? tag.position + 1 : tag.position - 1);
  if (from == position_.rank) {
    auto node = own_.extract(tag);
    if (node.empty()) throw ExecutionError("a stage waits for what it has to send itself");
    return std::move(node.mapped());
  }
  const std::int64_t n = tensor.elements();
  StreamPart part{memory_.allocate(n, tensor.dtype, Category::activation, kStages), n, tensor.dtype};
  Issue issue{.kind = Issue::Kind::receive, .stream = kStages, .micro_batch = tag.micro_batch};
  clock_.begin(issue);
  communicator_.at("receive", tag.backward ? "output gradient" : "input", tag.micro_batch);
  const std::int64_t parts = borders_.parts(tensor);
  void* own = own_part(part, parts);
  communicator_.receive(from, tag, kStages, own, n / parts, tensor.dtype);
  if (parts > 1)
    communicator_.all_gather(position_.group(MeshAxis::tp), "parts that crossed stages", kStages, own,
                             part.storage->data, n / parts, tensor.dtype);
  clock_.end(issue);
  part.storage->note_written(memory_.order().issued(kStages));
  return part;
}

void* StageMessages::own_part(const StreamPart& part, std::int64_t parts) const {
  const auto coordinate =
      position_.mesh->coordinate(static_cast<std::int64_t>(position_.rank), position_.mesh->group(MeshAxis::tp));
  return parts == 1 ? part.storage->data
                    : memory_.element(part.storage->data, coordinate * (part.elements / parts), part.dtype);
}

void StageMessages::send(const MessageTag& tag, StreamPart& part, std::int64_t parts) {
  const std::size_t to = rank_at(tag.position);
  if (to == position_.rank) {
    own_.emplace(tag, std::move(part));
    return;
  }
  memory_.order().wait(kStages, part.storage->written);
  Issue issue{.kind = Issue::Kind::send, .stream = kStages, .micro_batch = tag.micro_batch};
  clock_.begin(issue);
  communicator_.at("send", tag.backward ? "input gradient" : "output", tag.micro_batch);
  communicator_.send(to, tag, kStages, own_part(part, parts), part.elements / parts, part.dtype);
  clock_.end(issue);
  part.storage->note_read(memory_.order().issued(kStages));
}

}  // namespace orrery::realrun
