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
  std::int64_t parts = 1, part = 0, minor_parts = 1, minor_part = 0;
  for (int n = 0; n < over.count(); ++n) {
    const Digit& digit = mesh.digits()[static_cast<std::size_t>(over.digit(n))];
    std::int64_t &count = n == 0 ? parts : minor_parts, &at = n == 0 ? part : minor_part;
    count *= digit.size;
    at = at * digit.size + rank / digit.stride % digit.size;
  }
  const std::int64_t first = minor_part * local;
  std::vector<std::int64_t> indices(static_cast<std::size_t>(local));
  for (std::int64_t i = 0; i < local; ++i) {
    const std::int64_t at = first + i;  // in what the major digits leave
    std::int64_t index = part * (local * minor_parts) + at;
    if (deal == Deal::zigzag && parts > 1) {
      const std::int64_t block = whole / (2 * parts);
      index = at < block ? part * block + at : (2 * parts - 1 - part) * block + at - block;
    } else if (deal == Deal::query_heads && parts > 1) {
      const std::int64_t heads = (whole - local) / (parts - 1);
      index = at < heads ? part * heads + at : whole - (local - at);
    } else if (deal == Deal::striped) {
      index = at * parts + part;
    }
    indices[static_cast<std::size_t>(i)] = index;
  }
  return indices;
}

}  // namespace orrery
