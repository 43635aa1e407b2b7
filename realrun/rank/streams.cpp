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
  streams[0].reset();
  for (std::size_t s = 0; s < kSideStreams; ++s) {
    StoragePtr& part = streams[1 + s];
    if (block == kForwardBlock) {
      if (piece.sides[s].input != kNoTensor) put(work, piece.sides[s].input, part);
    } else if (const TensorId id = piece.sides[s].output_gradient; id != kNoTensor) {
      if (part == nullptr) {
        const Tensor& t = piece.tensors[id];
        part = memory_.allocate(t.elements(), t.dtype, Category::workspace, Stream::compute);
        memory_.fill(*part, 0, Stream::compute);
      }
      put(work, id, part);
      part.reset();
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

void PieceStreams::put(const Work& work, TensorId id, const StoragePtr& part) {
  const PiecePlan& plan = *work.instance.plan;
  const ElementMap& view = plan.view(id);
  const Tensor& t = plan.tensor(id);
  if (const std::int64_t given = part == nullptr ? 0 : part->elements; given != t.elements())
    throw ExecutionError(std::string("piece \"") + plan.piece().name + "\" takes " + std::to_string(t.elements()) +
                         " elements, its neighbour hands on " + std::to_string(given));
  if (t.dtype != part->dtype) throw std::logic_error("neighbouring pieces differ in their dtype");
  const bool whole = view.dense() && view.offset == 0 && plan.capacity(view.root) == part->elements;
  if (whole && !plan.lasts(view.root)) return memory_.adopt(work, view.root, part);
  const Slice to = memory_.slice(work, id, Access::write);
  memory_.order().wait(work.stream, part->written);
  memory_.backend().scatter(work.stream, part->data, to, false);
  const Use use = memory_.order().issued(work.stream);
  part->note_read(use);
  memory_.storage(work, id, Access::write).note_written(use);
}

StoragePtr PieceStreams::take(const Work& work, TensorId id, std::size_t block) {
  const PiecePlan& plan = *work.instance.plan;
  const ElementMap& view = plan.view(id);
  const Tensor& t = plan.tensor(id);
  StoragePtr part = memory_.share(work, id);
  if (!view.dense() || view.offset != 0 || part->elements != t.elements()) {
    const StoragePtr copy = memory_.allocate(t.elements(), t.dtype, Category::activation, work.stream);
    memory_.order().wait(work.stream, part->written);
    memory_.backend().gather(work.stream, memory_.slice(work, id, Access::read), copy->data);
    const Use use = memory_.order().issued(work.stream);
    part->note_read(use);
    copy->note_written(use);
    part = copy;
  }
  if (plan.ends_handed_on(view.root, block)) memory_.end(work, view.root);
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

StoragePtr StageMessages::receive(const MessageTag& tag, const Tensor& tensor) {
  const std::size_t from = rank_at(tag.backward ? tag.position + 1 : tag.position - 1);
  if (from == position_.rank) {
    auto node = own_.extract(tag);
    if (node.empty()) throw ExecutionError("a stage waits for what it has to send itself");
    return std::move(node.mapped());
  }
  const std::int64_t n = tensor.elements();
  const StoragePtr whole = memory_.allocate(n, tensor.dtype, Category::activation, kStages);
  Issue issue{.receives = true, .stream = kStages, .micro_batch = tag.micro_batch};
  clock_.begin(issue);
  communicator_.at({"receive", tag.backward ? "output gradient" : "input", tag.micro_batch});
  const std::int64_t parts = borders_.parts(tensor);
  void* own = own_part(*whole, parts);
  communicator_.receive(from, tag, kStages, own, n / parts, tensor.dtype);
  if (parts > 1)
    communicator_.all_gather({position_.group(MeshAxis::tp), "parts that crossed stages", kStages, tensor.dtype}, own,
                             whole->data, n / parts);
  clock_.end(issue);
  whole->note_written(memory_.order().issued(kStages));
  return whole;
}

void* StageMessages::own_part(const Storage& tensor, std::int64_t parts) const {
  if (parts == 1) return tensor.data;
  const std::int64_t own = position_.coordinate(position_.mesh->group(MeshAxis::tp));
  return memory_.element(tensor.data, own * (tensor.elements / parts), tensor.dtype);
}

void StageMessages::send(const MessageTag& tag, StoragePtr& tensor, std::int64_t parts) {
  const std::size_t to = rank_at(tag.position);
  if (to == position_.rank) {
    own_.emplace(tag, std::move(tensor));
    return;
  }
  memory_.order().wait(kStages, tensor->written);
  Issue issue{.stream = kStages, .micro_batch = tag.micro_batch};
  clock_.begin(issue);
  communicator_.at({"send", tag.backward ? "input gradient" : "output", tag.micro_batch});
  communicator_.send(to, tag, kStages, own_part(*tensor, parts), tensor->elements / parts, tensor->dtype);
  clock_.end(issue);
  tensor->note_read(memory_.order().issued(kStages));
}

}  // namespace orrery::realrun
