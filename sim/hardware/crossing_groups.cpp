#include "sim/hardware/crossing_groups.h"

#include <vector>

namespace orrery {

CrossingGroups crossing_groups(const Mesh& mesh, MeshGroup group, std::int64_t devices_per_node) {
  // `last`: offset of a group's last member; `block`: size of aligned runs of ranks that hold whole groups.
  std::int64_t last = 0, block = 1;
  int index = 0;
  for (const Digit& digit : mesh.digits()) {
    if (!group.contains(index++)) continue;
    last += (digit.size - 1) * digit.stride;
    block = digit.size * digit.stride;
  }
  CrossingGroups result{.groups = mesh.ranks() / mesh.size(group)};
  if (devices_per_node % block == 0 || mesh.ranks() <= devices_per_node) return result;
  if (last >= devices_per_node) {
    result.crossing = result.groups;
    return result;
  }
  std::vector<std::int64_t> firsts{0};  // first ranks of all groups
  firsts.reserve(static_cast<std::size_t>(result.groups));
  index = 0;
  for (const Digit& digit : mesh.digits()) {
    if (group.contains(index++)) continue;
    const std::size_t inner = firsts.size();
    for (std::int64_t c = 1; c < digit.size; ++c)
      for (std::size_t i = 0; i < inner; ++i) firsts.push_back(firsts[i] + c * digit.stride);
  }
  for (const std::int64_t first : firsts)
    if (first / devices_per_node != (first + last) / devices_per_node) ++result.crossing;
  return result;
}

}  // namespace orrery
