// Runs the ops of a rank. Each op waits for its operands, runs by its kind (kernel, collective, copy, gradient norm),
// and is recorded as a use of its operands.
#pragma once

#include <optional>
#include <string>

#include "realrun/rank/collectives.h"
#include "realrun/rank/expert_rows.h"
#include "realrun/rank/gradient_norm.h"
#include "realrun/rank/kernels.h"
#include "realrun/rank/rank_results.h"
#include "realrun/rank/step_clock.h"

namespace orrery::realrun {

class OpRunner : RankShared {
 public:
  OpRunner(const RankShared& rank, StepClock& clock, GradientNorm& norm, StepResults& results);

  void begin_step(std::int64_t step) { kernels_.begin_step(step); }
  // Throws ExecutionError for an op that cannot run, or that writes NaN (with ExecutionOptions::find_undefined).
  void run(const OpCall& call);
  // Prepares an op that another thread is to run (Background); empty: it cannot. Its operands are used until then.
  std::optional<SumBeside> sum_beside(const OpCall& call) const { return collectives_.sum_beside(call); }
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

  StepClock& clock_;
  GradientNorm& norm_;
  StepResults& results_;
  ElementIndices indices_;
  ExpertRows rows_;
  Collectives collectives_;
  Kernels kernels_;
};

}  // namespace orrery::realrun
