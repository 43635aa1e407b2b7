// Changes of layout over a group of ranks: each gives the others what they have in the new layout and it had in the
// old one, whatever the two are (OpKind::redistribute).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/program/tensor.h"

namespace orrery {

struct Redistribution {
  MeshGroup group;  // the least that has all parts; none: the layouts are the same
  // Op::factor: so much of the tensor an all-to-all of equal parts would have, in which a rank sends as much as here
  // the one that sends the most. Where every rank gives each other one as much, all of it.
  double share = 0;
};
// From one layout of a tensor to another; nothing where they are not of the same whole, divided over the same digits.
std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to);
// The same from several tensors that have indices of it each, none of them two. Of dimensions dealt by runs
// (DealTables::by_runs) `from` may have indices that `to` has not, and either side's last digits may divide another
// dimension instead (heads for positions); the share is of what a rank has in the mean, and who sends how much is for
// the op's load to say (moved_rows).
std::optional<Redistribution> redistribution(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to);

// What parts have of a dimension dealt by runs: part p the indices of_part[p / sharing], of each an equal share of what
// it is in the other dimensions.
struct RowsOfParts {
  const RunsOfParts* of_part = nullptr;
  std::int64_t sharing = 1;
};
// How many of the indices of `to` each part gives each other one, itself included, [from * parts + to]: those that it
// has in any of `from`; a share of one counts as that. REQUIRES: as many parts each, of neighbouring indices or none;
// no sharing in `from` where there is in `to`.
std::vector<double> moved_rows(std::span<const RowsOfParts> from, const RowsOfParts& to);

// Whether the blocks of a dimension's deal are as many as its parts need, and divide it.
bool deals_evenly(const Mesh& mesh, const Tensor& t, int dim);

}  // namespace orrery
