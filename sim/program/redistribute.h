// Changes of layout over a group of ranks (OpKind::redistribute), between any two layouts. A rank sends to each other
// rank the elements that it has in the old layout and the other has in the new one. join_layouts() inserts them where
// a Program needs them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "sim/program/tensor.h"

namespace orrery {

struct Program;

struct Redistribution {
  MeshGroup group;  // the smallest group that holds all parts; empty: the layouts are equal
  // For Op::share. The op is priced as an all-to-all with equal parts, of this share of the tensor: in that all-to-all
  // every rank sends as much as the busiest sender of the redistribution. 1 if all ranks send each other equally much.
  double share = 0;
};
// Returns the change from one layout of a tensor to another; nothing if they are not layouts of the same whole, or not
// divided over the same digits.
std::optional<Redistribution> redistribution(const Mesh& mesh, const Tensor& from, const Tensor& to);
// The same if several tensors together hold the whole: each has some of the indices, and no two have the same index.
// For dimensions dealt by runs (DealTables::by_runs) two things more are allowed: `from` may have indices that `to`
// lacks, and the last digits of either side may divide another dimension instead (heads for positions). `share` is then
// that of the mean rank, and the op's load says how much each rank sends (moved_rows).
std::optional<Redistribution> redistribution(const Mesh& mesh, std::span<const Tensor* const> from, const Tensor& to);

// The indices of each part of a dimension dealt by runs. Part p has the indices of_part[p / sharing]: groups of
// `sharing` neighbouring parts have the same indices, and the parts of a group divide another dimension equally.
struct RowsOfParts {
  const RunsOfParts* of_part = nullptr;
  std::int64_t sharing = 1;
};
// Returns how many indices each part sends to each part, itself included: [from * parts + to]. Part i sends part j the
// indices that i has in any of `from` and j has in `to`. An index of which a part has only a share, because of
// `sharing`, counts as that share. REQUIRES: the same number of parts everywhere; runs of neighbouring indices or empty
// rows; no sharing in `from` if there is sharing in `to`.
std::vector<double> moved_rows(std::span<const RowsOfParts> from, const RowsOfParts& to);

// Whether dimension `dim` is dealt evenly: a table has as many parts as the layout, and the blocks divide the dimension
// (zigzag has two blocks per part).
bool deals_evenly(const Mesh& mesh, const Tensor& t, int dim);

// A joint is a piece that only redistributes the residual stream in the forward, and its gradient in the backward. It
// has no parameters and belongs to no layer. Inserts one wherever the input layout of a piece differs from the output
// layout of the piece before it. Throws std::logic_error if no redistribution leads from one layout to the other.
void join_layouts(Program& program);

}  // namespace orrery
