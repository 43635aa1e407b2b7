// Runs the ops of a rank. Each op waits for its operands, runs by its kind (kernel, collective, copy, gradient norm),
// and is recorded as a use of its operands.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "realrun/kernel.h"
#include "realrun/rank/background.h"
#include "realrun/rank/element_indices.h"
#include "realrun/rank/expert_rows.h"
#include "realrun/rank/gradient_norm.h"
#include "realrun/rank/rank_results.h"
#include "realrun/rank/replica_sums.h"
#include "realrun/rank/step_clock.h"

namespace orrery::realrun {

class OpRunner : RankShared {
 public:
  OpRunner(const RankShared& rank, StepClock& clock, GradientNorm& norm, StepResults& results);

  // Sets the step, counted from 0: optimizers count steps; dropouts and routers draw new numbers in each.
  void begin_step(std::int64_t step) { step_ = step; }
  // Throws ExecutionError for an op that cannot run, or that writes NaN (with ExecutionOptions::find_undefined).
  void run(const OpCall& call);
  // Prepares an all-reduce of dense operands, a sum or a mean, that another thread will run (Background). The operands
  // must stay as they are until it has run. Returns nothing for any other op.
  std::optional<SumBeside> sum_beside(const OpCall& call) const;
  const RoutedRows& routed() const { return rows_.routed(); }

 private:
  void dispatch(const OpCall& call, const RowCounts* rows);
  std::uint64_t wait_for_operands(const OpCall& call);  // returns the set of streams that it waited for
  void note_uses(const OpCall& call);
  void copy_between_memories(const OpCall& call);
  void check_defined(const OpCall& call, const RowCounts* rows);
  bool has_nan(const OpCall& call, TensorId id, const RowCounts* rows);
  Issue issue_of(const OpCall& call) const;
  std::string describe(const OpCall& call) const;

  // ---- collectives.cpp: makes operands dense, orders them for the communicator, and writes results to tensors.
  // `rows`: the number of rows that the op moves, if they are counted. These functions throw std::logic_error for
  // operands that do not fit.
  void run_collective(const OpCall& call, const RowCounts* rows);
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

  // ---- kernels.cpp: binds operands to memory, and tells kernels where their part lies in the model. `rows`: the
  // number of rows that the op reads or writes, if they are counted.
  void run_kernel(const OpCall& call, const RowCounts* rows);
  struct Binding;  // operands of one call
  KernelContext kernel_context() const;
  void find_positions(const OpCall& call, Binding& binding) const;
  void place_draws(const OpCall& call, KernelContext& context) const;
  std::vector<std::int64_t> document_begins(const OpCall& call) const;
  void bind_reads(const OpCall& call, Binding& binding);
  void bind_writes(const OpCall& call, Binding& binding);
  void note_experts(const OpCall& call, const Tensor& t, KernelContext& context) const;
  // If an operand is whole and the op works on a part of it: takes the part.
  void take_own_columns(const OpCall& call, Binding& binding);
  void take_own_rows(const OpCall& call, Binding& binding);
  Slice own_rows(const OpCall& call, const Binding& binding, Slice to, Tensor& table);
  // Runs the kernel for each block of experts' rows.
  void run_rows(const OpCall& call, Binding& binding, const RowCounts& rows);
  // Index of this rank among the parts of `part` within one part of `whole`, by the digits that only `part` has.
  std::int64_t part_in(Division part, Division whole) const;

  StepClock& clock_;
  GradientNorm& norm_;
  StepResults& results_;
  ElementIndices indices_;
  ExpertRows rows_;
  ReplicaSums replicas_;
  std::int64_t step_ = 0;
};

}  // namespace orrery::realrun
