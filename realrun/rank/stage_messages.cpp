#include "realrun/rank/stage_messages.h"

#include <utility>

namespace orrery::realrun {
namespace {

constexpr Stream kStages = Stream::pipeline_communication;

}  // namespace

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
