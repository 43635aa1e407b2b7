// Changes of layout over a group of ranks (OpKind::redistribute), between any two layouts. A rank sends to each other
// rank the elements that it has in the old layout and the other has in the new one.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/program/tensor.h"

namespace orrery {

struct Redistribution {
  MeshGroup group;  // the smallest group that holds all parts; empty: the layouts are equal
  // For Op::factor: the share of the tensor at which an all-to-all of equal parts would make a rank send as much as the
  // rank that sends the most here. 1 if every rank sends every other one as much.
  double share = 0;
};
// The change from one layout of a tensor to another. Returns nothing if they are not layouts of the same whole, divided
// over the same digits.
std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to);
// The same from several tensors, each of which has some indices of the whole; no two have the same index. For
// dimensions dealt by runs (DealTables::by_runs), `from` may have indices that `to` lacks, and the last digits of
// either side may divide another dimension instead (heads for positions). `share` is then that of the mean rank; the
// op's load says how much each rank sends (moved_rows).
std::optional<Redistribution> redistribution(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to);

// The indices of each part of a dimension dealt by runs. Part p has the indices of_part[p / sharing]; `sharing`
// neighbouring parts have the same indices, and each of them an equal share of these in the other dimensions.
struct RowsOfParts {
  const RunsOfParts* of_part = nullptr;
  std::int64_t sharing = 1;
};
// How many indices of `to` each part sends to each other one, itself included: [from * parts + to]. These are the
// indices that it has in any of `from`; the share of an index counts as that share. REQUIRES: the same number of parts
// everywhere; runs of neighbouring indices or empty rows; no sharing in `from` if there is sharing in `to`.
std::vector<double> moved_rows(std::span<const RowsOfParts> from, const RowsOfParts& to);

// Whether dimension `dim` is dealt evenly: a table has as many parts as the layout, and the blocks divide the dimension
// (zigzag has two blocks per part).
bool deals_evenly(const Mesh& mesh, const Tensor& t, int dim);

}  // namespace orrery
