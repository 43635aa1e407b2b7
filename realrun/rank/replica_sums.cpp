#include "realrun/rank/replica_sums.h"

#include <algorithm>
#include <string>

namespace orrery::realrun {

std::vector<ReplicaSums::Expert> ReplicaSums::experts_of(const Instance& instance, std::size_t set) const {
  const PiecePlan& plan = *instance.plan;
  const HeldSet& held = plan.held()[set];
  std::vector<Expert> experts;
  const std::span<const std::int64_t> expert_of_slot = position_.expert_of_slot;
  const Mesh& mesh = *position_.mesh;
  const MeshGroup dividing = position_.experts;
  const auto slots = static_cast<std::int64_t>(expert_of_slot.size()), each = slots / mesh.size(dividing);
  // If states are divided, equal parts of two copies lie on different ranks.
  const Members group = position_.group(dividing | plan.tensor(held.gradients).over[0].group());
  const auto own = position_.coordinate(dividing);
  const auto is_of = [&](std::int64_t coordinate, std::int64_t expert) {
    const auto begin = expert_of_slot.begin() + coordinate * each;
    return std::find(begin, begin + each, expert) != begin + each;
  };

  const std::int64_t most = *std::ranges::max_element(expert_of_slot);
  for (std::int64_t e = 0; e <= most; ++e) {
    if (std::ranges::count(expert_of_slot, e) < 2 || !is_of(own, e)) continue;
    Expert expert{.number = e, .elements = 0, .members = {}, .slots = {}};
    for (const std::size_t rank : group)
      if (is_of(mesh.coordinate(static_cast<std::int64_t>(rank), dividing), e)) expert.members.push_back(rank);
    for (std::int64_t slot = own * each; slot < (own + 1) * each; ++slot) {
      if (expert_of_slot[static_cast<std::size_t>(slot)] != e) continue;
      Slot here;
      std::int64_t in_buffer = 0;
      const std::int64_t end = plan.tensor(held.gradients).elements();
      for (const auto& [parameter, number, begin] : held.flat) {
        const Tensor& t = plan.tensor(parameter->parameter);
        const int dim = copied_dimension(t, position_);
        if (dim < 0) continue;
        std::int64_t behind = 1;  // elements per index of the dimension
        for (int d = dim + 1; d < t.rank; ++d) behind *= t.sizes[d];
        for (std::int64_t element = 0; element < t.elements(); ++element) {
          const std::int64_t at = begin - held.begin + element;
          if (at < 0 || at >= end || slot_of(t, dim, element, position_) != slot) continue;
          here.held.push_back(plan.view(held.gradients).at(at));
          here.buffer.push_back(in_buffer + element / (behind * t.sizes[dim]) * behind + element % behind);
        }
        in_buffer += t.elements() / t.sizes[dim];
      }
      expert.elements = in_buffer;
      expert.slots.push_back(std::move(here));
    }
    if (expert.elements > 0) experts.push_back(std::move(expert));
  }
  return experts;
}

void ReplicaSums::run(const OpCall& call) {
  const std::size_t set = set_number(call.instance.piece(), call.op.reads[0]);
  const auto [known, is_new] = known_.try_emplace({call.instance.number, set});
  if (is_new) known->second = experts_of(call.instance, set);
  const Slice gradients = memory_.slice(call, call.op.writes[0], Access::write);
  for (const Expert& expert : known->second) sum(expert, gradients, call.stream);
}

void ReplicaSums::sum(const Expert& expert, const Slice& gradients, Stream stream) {
  const Dtype dtype = gradients.dtype;
  const StoragePtr buffer = memory_.scratch(expert.elements, dtype, stream);
  memory_.fill(*buffer, 0, stream);
  const auto elements = [&](void* base, const std::vector<std::int64_t>& index) {
    return Slice{base, dtype, 0, static_cast<std::int64_t>(index.size()), &index};
  };
  // Calls visit(elements of the gradients, elements of the buffer, memory of both).
  const auto for_each_slot = [&](auto visit) {
    for (const Slot& slot : expert.slots) {
      if (slot.held.empty()) continue;
      const StoragePtr packed = memory_.scratch(static_cast<std::int64_t>(slot.held.size()), dtype, stream);
      visit(elements(gradients.base, slot.held), elements(buffer->data, slot.buffer), packed->data);
    }
  };
  for_each_slot([&](const Slice& held, const Slice& in_buffer, void* packed) {
    backend_.gather(stream, held, packed);
    backend_.scatter(stream, packed, in_buffer, /*add=*/true);
  });
  if (expert.members.size() > 1)
    communicator_.all_reduce({expert.members, "copies of expert " + std::to_string(expert.number), stream, dtype},
                             buffer->data, expert.elements);
  for_each_slot([&](const Slice& held, const Slice& in_buffer, void* packed) {
    backend_.gather(stream, in_buffer, packed);
    backend_.scatter(stream, packed, held, /*add=*/false);
  });
}

}  // namespace orrery::realrun
