// The kernels of a rank: operands bound to memory, and what a kernel must know of its place in the whole model.
#pragma once

#include <cstdint>

#include "realrun/kernel.h"
#include "realrun/rank/element_indices.h"
#include "realrun/rank/expert_rows.h"
#include "realrun/rank/op_call.h"

namespace orrery::realrun {

class Kernels {
 public:
  Kernels(const RunSetup& setup, const Position& position, TensorMemory& memory, ElementIndices& indices,
          const ExpertRows& rows);

  // Optimizers count steps, dropouts and routers draw anew in each; from 0.
  void begin_step(std::int64_t step) { step_ = step; }
  // `rows`: of what it reads or writes, if they are counted. REQUIRES: no communication, no copy.
  void run(const OpCall& call, const RowCounts* rows);

 private:
  struct Binding;  // of one call

  KernelContext context() const;
  void find_positions(const OpCall& call, Binding& binding) const;
  void place_draws(const OpCall& call, KernelContext& context) const;
  std::vector<std::int64_t> document_begins(const OpCall& call) const;
  void find_copies(KernelContext& context) const;
  void bind_reads(const OpCall& call, Binding& binding);
  void bind_writes(const OpCall& call, Binding& binding);
  void note_experts(const OpCall& call, const Tensor& t, KernelContext& context) const;
  // Of operands that are whole where the op works on a part: the part.
  void take_own_columns(const OpCall& call, Binding& binding);
  void take_own_rows(const OpCall& call, Binding& binding);
  Slice own_rows(const OpCall& call, const Binding& binding, Slice to, Tensor& table);
  // What ops add is added where it belongs: add_results().
  void zero_what_is_added(Binding& binding);
  void run_bound(Binding& binding);
  // Block by block of experts' rows.
  void run_rows(const OpCall& call, Binding& binding, const RowCounts& rows);
  void add_results(const OpCall& call, Binding& binding);
  // This rank's part of what `whole` leaves together: that of the digits which divide `part` alone.
  std::int64_t part_in(Division part, Division whole) const;

  const RunSetup& setup_;
  const Position& position_;
  TensorMemory& memory_;
  Backend& backend_;
  ElementIndices& indices_;
  const ExpertRows& rows_;
  std::int64_t step_ = 0;
};

}  // namespace orrery::realrun
