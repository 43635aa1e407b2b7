#include "sim/program/load.h"

#include <map>

namespace orrery {

Load load_of_places(const Load& load, std::span<const std::int64_t> places) {
  Load within;
  within.of = load.of;
  within.ranks = static_cast<std::int64_t>(places.size());
  const double share = static_cast<double>(within.ranks) / static_cast<double>(load.ranks);
  for (const std::int64_t from : places)
    for (const std::int64_t to : places) within.rows.push_back(load.at(from, to) * share);
  return within;
}

std::vector<Load> loads_within(const Load& load, const Mesh& mesh, MeshGroup group) {
  std::map<std::int64_t, std::vector<std::int64_t>> places;  // by group: its members' places in the load's group
  for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
    std::vector<std::int64_t>& of_group = places[mesh.coordinate(rank, load.group.without(group))];
    of_group.resize(static_cast<std::size_t>(mesh.size(group)));
    of_group[static_cast<std::size_t>(mesh.coordinate(rank, group))] = mesh.coordinate(rank, load.group);
  }
  std::vector<Load> loads;
  for (const auto& [outer, of_group] : places) {
    loads.push_back(load_of_places(load, of_group));
    loads.back().group = group;
  }
  return loads;
}

}  // namespace orrery
