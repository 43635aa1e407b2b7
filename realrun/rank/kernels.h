// Runs the kernels of a rank: binds operands to memory, and tells kernels where their part lies in the whole model.
#pragma once

#include <cstdint>

#include "realrun/kernel.h"
#include "realrun/rank/element_indices.h"
#include "realrun/rank/expert_rows.h"
#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

class Kernels : RankShared {
 public:
  Kernels(const RankShared& rank, ElementIndices& indices, const ExpertRows& rows)
      : RankShared(rank), indices_(indices), rows_(rows) {}

  // Sets the step, counted from 0: optimizers count steps; dropouts and routers draw new numbers in each.
  void begin_step(std::int64_t step) { step_ = step; }
  // `rows`: the number of rows that the op reads or writes, if counted. REQUIRES: neither communication nor a copy.
  void run(const OpCall& call, const RowCounts* rows);

 private:
  struct Binding;  // operands of one call

  KernelContext context() const;
  void find_positions(const OpCall& call, Binding& binding) const;
  void place_draws(const OpCall& call, KernelContext& context) const;
  std::vector<std::int64_t> document_begins(const OpCall& call) const;
  void find_copies(KernelContext& context) const;
  void bind_reads(const OpCall& call, Binding& binding);
  void bind_writes(const OpCall& call, Binding& binding);
  void note_experts(const OpCall& call, const Tensor& t, KernelContext& context) const;
  // If an operand is whole and the op works on a part of it: takes the part.
  void take_own_columns(const OpCall& call, Binding& binding);
  void take_own_rows(const OpCall& call, Binding& binding);
  Slice own_rows(const OpCall& call, const Binding& binding, Slice to, Tensor& table);
  // Clears the buffers for results that the op adds; add_results() adds them to the tensors.
  void zero_what_is_added(Binding& binding);
  void run_bound(Binding& binding);
  // Runs the kernel for each block of experts' rows.
  void run_rows(const OpCall& call, Binding& binding, const RowCounts& rows);
  void add_results(const OpCall& call, Binding& binding);
  // Index of this rank among the parts of `part` within one part of `whole`, by the digits that only `part` has.
  std::int64_t part_in(Division part, Division whole) const;

  ElementIndices& indices_;
  const ExpertRows& rows_;
  std::int64_t step_ = 0;
};

}  // namespace orrery::realrun
