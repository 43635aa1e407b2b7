#include "sim/program/layout.h"

namespace orrery {

std::int64_t part_of(Division over, const Mesh& mesh, std::int64_t rank) {
  std::int64_t part = 0;
  for (int n = 0; n < over.count(); ++n) {
    const Digit& digit = mesh.digits()[static_cast<std::size_t>(over.digit(n))];
    part = part * digit.size + rank / digit.stride % digit.size;
  }
  return part;
}

std::vector<std::int64_t> dealt_indices(Deal deal, Division over, std::int64_t whole, std::int64_t local,
                                        const Mesh& mesh, std::int64_t rank) {
  std::vector<std::int64_t> indices;
  indices.reserve(static_cast<std::size_t>(local));
  for_each_dealt_run(deal, over, whole, local, mesh, rank, [&](const IndexRun& run) {
    for (std::int64_t i = 0; i < run.count; ++i) indices.push_back(run.at(i));
  });
  return indices;
}

}  // namespace orrery
