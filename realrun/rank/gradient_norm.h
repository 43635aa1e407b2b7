// The norm of a step's gradients, in which every parameter of the model counts once, on whichever rank holds it first.
// Squares are added up instance by instance; sums over ranks are one exchange for all pieces.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "realrun/rank/op_call.h"
#include "realrun/rank/step_clock.h"

namespace orrery::realrun {

class GradientNorm {
 public:
  GradientNorm(const RunSetup& setup, const Position& position, const RankModel& model, TensorMemory& memory,
               Communicator& communicator, StepClock& clock);

  // REQUIRES: OpKind::gradient_norm of a set's held gradients.
  void add_squares(const OpCall& call);
  // The norm of what has been added on all ranks since the last time, unscaled; ops of the update can read it then.
  double reduce();

 private:
  struct Counted {  // elements of a set's held gradients
    bool known = false;
    std::vector<std::pair<std::int64_t, std::int64_t>> ranges;  // first, one past the last
    std::vector<std::int64_t> scattered;                        // that lie apart, as elements of their storage
  };
  const Counted& counted(const Instance& instance, std::size_t set);
  void find_counted(const Instance& instance, std::size_t set, Counted& counted) const;
  MeshGroup summed_over(const PiecePlan& plan) const;
  void add_square(const OpCall& call, void* data, std::int64_t elements, Dtype dtype);
  double own_sum();
  double sum_of_ranks(double own);
  void write(double square);

  const RunSetup& setup_;
  const Position& position_;
  const RankModel& model_;
  TensorMemory& memory_;
  Backend& backend_;
  Communicator& communicator_;
  StepClock& clock_;
  std::vector<std::vector<Counted>> counted_;  // by instance and set
  std::vector<StoragePtr> squares_;            // of this step
};

}  // namespace orrery::realrun
