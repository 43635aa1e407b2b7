// Unequal work: how many rows each rank of a group receives from each other one, relative to equal work. Rows are
// tokens that go from ranks to experts (routing), or positions that go from one layout to another (documents). A load
// does not change the tensors: their `sizes` are the capacity, that of the rank with the most rows; the cost of an op
// follows from the actual rows. All groups of the axis have the same load. An op whose group is a part of such a group
// moves the rows between its own members (loads_within).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

// The rows that move: tokens to their experts and back, or positions from one layout to another.
enum class RowsOf : std::uint8_t { tokens, positions };

struct Load {
  RowsOf of = RowsOf::tokens;
  MeshGroup group{};                            // the ranks that exchange rows
  std::int64_t ranks = 1;                       // ranks of the group
  std::vector<double> rows;                     // [sending rank * ranks + receiving rank]; the mean is 1
  double busiest_rank = 1, busiest_expert = 1;  // rows of the busiest one over the mean, all tokens together
  double dropped = 0;                           // share of all rows that find no slot
  bool padded = false;                          // each expert has slots as for the busiest: busiest_rank times the mean
  std::int64_t layers = 0;  // layers of the model that have this load; if micro-batches differ, summed over all

  double at(std::int64_t from, std::int64_t to) const { return rows[static_cast<std::size_t>(from * ranks + to)]; }
  // The rows of the rank's experts over the mean.
  double of_rank(std::int64_t rank) const {
    double sum = 0;
    for (std::int64_t from = 0; from < ranks; ++from) sum += at(from, rank);
    return sum / static_cast<double>(ranks);
  }
};

// The rows between ranks at these places of a group, as the load of a smaller group in which all rows that a rank sends
// stay.
Load load_of_places(const Load& load, std::span<const std::int64_t> places);
// The load within each of the groups into which `group` divides the axis. REQUIRES: digits of that axis.
std::vector<Load> loads_within(const Load& load, const Mesh& mesh, MeshGroup group);

}  // namespace orrery
