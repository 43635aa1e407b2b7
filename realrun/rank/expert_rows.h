// Rows that experts have in a dropless run: tensors with Axis::slots have room for whatever tokens may come, and what
// is there is counted where the router has chosen. A rank counts its own choices; ranks whose tokens meet the same
// experts tell each other, once for each layer and micro-batch; from that each knows how many rows lie where, in the
// forward and in the backward.
//
// In memory a tensor keeps its capacity: [experts, (chunks,) slots, ..]. Its blocks, one of each expert and chunk, are
// filled from their first slot on, by the rank that the tokens are of, ascending. What is behind is undefined.
#pragma once

#include <cstdint>
#include <memory>
#include <tuple>
#include <vector>

#include "realrun/communicator.h"
#include "realrun/executor.h"
#include "realrun/rank/op_call.h"

namespace orrery::realrun {

// Of all ranks that share the experts, of one layer and micro-batch.
struct RowCounts {
  Members ranks;  // ascending
  std::int64_t experts = 0;
  std::vector<std::int64_t> tokens;  // [rank's place * experts + expert]

  std::int64_t at(std::size_t place, std::int64_t expert) const {
    return tokens[place * static_cast<std::size_t>(experts) + static_cast<std::size_t>(expert)];
  }
};
using RowCountsPtr = std::shared_ptr<const RowCounts>;

// Rows of one source that lie behind each other in a tensor.
struct RowStretch {
  std::int64_t expert = 0, chunk = 0;                            // of the model; of the whole
  std::size_t source = 0;                                        // whose tokens they are: its place in RowCounts::ranks
  std::int64_t begin = 0, rows = 0;                              // first row, counted by slots
  auto of() const { return std::tuple(expert, chunk, source); }  // ascending in memory
};

class ExpertRows {
 public:
  ExpertRows(const RunSetup& setup, const Position& position, TensorMemory& memory, Communicator& communicator);

  // Of what the op reads or writes, known from then on of what it writes. Counts and meets the others where the op is
  // the first that regroups by these choices. nullptr: the op has no rows, or all slots are sent and computed.
  RowCountsPtr of(const OpCall& call);

  bool is_rows(const OpCall& call, TensorId id) const {
    return id != kNoTensor && call.instance.tensor(id).find(Axis::slots) >= 0;
  }
  // What a rank has in a tensor of its layout, in the order of memory.
  std::vector<RowStretch> held(const OpCall& call, TensorId id, std::size_t rank, const RowCounts& counts) const;
  // By block of this rank: how many rows it has.
  std::vector<std::int64_t> blocks(const OpCall& call, TensorId id, const RowCounts& counts) const;

  const RoutedRows& routed() const { return routed_; }  // of the run so far

 private:
  RowCountsPtr count(const OpCall& call, TensorId choices, TensorId rows);
  void note(const RowCounts& counts, std::int64_t slots);

  const RunSetup& setup_;
  const Position& position_;
  TensorMemory& memory_;
  Communicator& communicator_;
  const bool counts_;
  const MeshGroup experts_, shared_;  // ep; and etp
  RoutedRows routed_;
};

}  // namespace orrery::realrun
