// Unequal work: how many rows each rank of a group has from each other one, over what it would have if all were equal:
// of tokens from ranks to experts (routing), of positions from one layout to another (documents). A fact beside the
// tensors: their `sizes` are capacity, of the rank with the most rows; what an op takes follows from the rows that are
// there. All groups of the same digits have the same load; an op whose group is a part of one moves what is between its
// members (loads_within).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

// What moves: tokens to their experts, and back, or positions from one layout to another.
enum class RowsOf : std::uint8_t { tokens, positions };

struct Load {
  RowsOf of = RowsOf::tokens;
  MeshGroup group{};                            // whose ranks have rows of each other
  std::int64_t ranks = 1;                       // of the group
  std::vector<double> rows;                     // [rank that has them * ranks + rank that gets them]; 1 in the mean
  double busiest_rank = 1, busiest_expert = 1;  // rows over the mean, of all tokens together
  double dropped = 0;                           // of all rows, those that find no slot
  bool padded = false;      // every expert has slots for as many rows as the busiest: busiest_rank times the mean
  std::int64_t layers = 0;  // of the model, that have it; where micro-batches differ, of all micro-batches together

  double at(std::int64_t from, std::int64_t to) const { return rows[static_cast<std::size_t>(from * ranks + to)]; }
  // Of the rank's experts, over the mean.
  double of_rank(std::int64_t rank) const {
    double sum = 0;
    for (std::int64_t from = 0; from < ranks; ++from) sum += at(from, rank);
    return sum / static_cast<double>(ranks);
  }
};

// What ranks at these places of a group have from each other, as a load of a smaller group in which all of what a rank
// sends would stay.
Load load_of_places(const Load& load, std::span<const std::int64_t> places);
// Of each of the groups that `group` makes of the load's. REQUIRES: digits of that one.
std::vector<Load> loads_within(const Load& load, const Mesh& mesh, MeshGroup group);

}  // namespace orrery
