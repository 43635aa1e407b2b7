// Runs a rank's collectives: makes operands dense, orders them for the communicator, and writes results to tensors.
#pragma once

#include <cstdint>
#include <optional>

#include "realrun/communicator.h"
#include "realrun/rank/background.h"
#include "realrun/rank/element_indices.h"
#include "realrun/rank/expert_rows.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class Collectives : RankShared {
 public:
  Collectives(const RankShared& rank, ElementIndices& indices, const ExpertRows& rows)
      : RankShared(rank), indices_(indices), rows_(rows) {}

  // Prepares a sum or mean of dense operands that another thread is to run; empty for any other op.
  std::optional<SumBeside> sum_beside(const OpCall& call) const;
  // `rows`: the number of rows that the op moves, if they are counted. REQUIRES: a communication op. Throws
  // std::logic_error for operands that do not fit.
  void run(const OpCall& call, const RowCounts* rows);

 private:
  void all_reduce(const OpCall& call);
  void merge_statistics(const OpCall& call);
  void all_gather(const OpCall& call);
  void reduce_scatter(const OpCall& call);
  void exchange_contributions(const OpCall& call);
  void gather_parts(const OpCall& call, const Members& members, const Tensor& whole, const Tensor& part, int dim,
                    void* from, void* to);
  void redistribute(const OpCall& call);
  // Moves only the rows of experts that exist: redistributed, gathered from all, or summed and scattered.
  void exchange_rows(const OpCall& call, const RowCounts& rows);
  void ring_shift(const OpCall& call);
  void reduce_packed_gradients(const OpCall& call);

  // The group of an op's ranks, and the name under which they meet, for data of this dtype.
  CollectiveCall meeting(const OpCall& call, Dtype dtype) const;
  std::int64_t bytes(std::int64_t elements, Dtype dtype) const { return elements * backend_.stored_bytes(dtype); }

  ElementIndices& indices_;
  const ExpertRows& rows_;
};

}  // namespace orrery::realrun
