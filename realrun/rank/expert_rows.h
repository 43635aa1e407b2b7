// Counts the rows of experts in a dropless run. Tensors with Axis::slots have room for any number of tokens; the rows
// that exist are counted where the router has chosen. A rank counts its own choices. Ranks whose tokens go to the same
// experts tell each other their counts, once per layer and micro-batch. From these each rank knows how many rows lie
// where, in the forward and in the backward.
//
// In memory a tensor keeps its capacity: [experts, (chunks,) slots, ..]. Each block (one expert, one chunk) is filled
// from its first slot on, ordered by the rank that the tokens come from, ascending. Slots beyond are undefined.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "realrun/communicator.h"
#include "realrun/executor.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

// Counts of all ranks that share the experts, for one layer and micro-batch.
struct RowCounts {
  Members ranks;  // ascending
  std::int64_t experts = 0;
  std::vector<std::int64_t> tokens;  // [index in `ranks` * experts + expert]

  std::int64_t at(std::size_t place, std::int64_t expert) const {
    return tokens[place * static_cast<std::size_t>(experts) + static_cast<std::size_t>(expert)];
  }
};
using RowCountsPtr = std::shared_ptr<const RowCounts>;

// Consecutive rows of one source rank in a tensor.
struct RowStretch {
  std::int64_t expert = 0, chunk = 0;  // expert in the model; chunk in the whole tensor
  std::size_t source = 0;              // index in RowCounts::ranks of the rank that the tokens come from
  std::int64_t begin = 0, rows = 0;    // first row, in slots
  auto of() const { return std::tuple(expert, chunk, source); }  // ascending in memory
};

class ExpertRows : RankShared {
 public:
  explicit ExpertRows(const RankShared& rank);

  // Returns the counts of the rows that an op reads or writes, and keeps them for the tensors that it writes. If the op
  // is the first that regroups rows by these choices, counts them and exchanges counts with the other ranks. nullptr:
  // the op has no rows, or sends and computes all slots.
  RowCountsPtr of(const OpCall& call);

  bool is_rows(const OpCall& call, TensorId id) const {
    return id != kNoTensor && call.instance.tensor(id).find(Axis::slots) >= 0;
  }
  // Returns the first of an op's operands that is rows; kNoTensor: none.
  template <class Ids>
  TensorId first_rows(const OpCall& call, const Ids& ids) const {
    const auto found = std::ranges::find_if(ids, [&](TensorId id) { return is_rows(call, id); });
    return found == ids.end() ? kNoTensor : *found;
  }
  // Returns the stretches that `rank` has in a tensor of its layout, in the order of memory.
  std::vector<RowStretch> held(const OpCall& call, TensorId id, std::size_t rank, const RowCounts& counts) const;
  // Returns the number of rows in each block of this rank.
  std::vector<std::int64_t> blocks(const OpCall& call, TensorId id, const RowCounts& counts) const;

  const RoutedRows& routed() const { return routed_; }  // of the run so far

 private:
  RowCountsPtr count(const OpCall& call, TensorId choices, TensorId rows);
  void note(const RowCounts& counts, std::int64_t slots);

  const bool counts_;
  MeshGroup shared_;  // the ranks between which rows travel
  RoutedRows routed_;
};

}  // namespace orrery::realrun
