// One rank of a Program that runs: the walk over the schedule. Internal to the executor. A run whose steps differ has a
// Rank for each of its Programs, one after the other.
//
//   RankModel     what of the model it runs (PiecePlan: what follows from a piece and the rank's position)
//   TensorMemory  where tensors are; PieceStreams, StageMessages: how they come to the next piece, the next stage
//   OpRunner      one op: Kernels, Collectives, GradientNorm, Losses, ActiveExperts; ExpertRows: how many rows experts
//                 have; ReplicaSums: what no op is, between two
//   StepClock     where the time goes; HeldParts: what comes out
#pragma once

#include <cstdint>

#include "realrun/rank/buckets.h"
#include "realrun/rank/held_parts.h"
#include "realrun/rank/op_runner.h"
#include "realrun/rank/replica_sums.h"
#include "realrun/rank/stage_messages.h"

namespace orrery::realrun {

class Rank {
 public:
  // Begins with what `carried` holds, which it completes from other ranks.
  Rank(const RunSetup& setup, Backend& backend, Communicator& communicator, CarriedState carried = {});

  // All steps, in what has come out of those before. Call it once.
  void run(RankResult& result);
  // Behind that, once: what the next Program begins with; memory is free then.
  CarriedState leave();

 private:
  Backend::Mark begin_step(std::int64_t step);
  void end_step(std::int64_t step, Backend::Mark begin);
  void run_step();

  // A block of all instances of a chunk, in a line; behind its last use of a micro-batch, that ends.
  void run_slot(const Slot& slot);
  void run_line(std::size_t block, const RankChunk& chunk, std::int64_t micro_batch);
  // `begun`: when the first kernel has been issued.
  template <class Begun>
  void run_block(std::size_t block, const InLine& at, std::int64_t micro_batch, Begun begun);
  // Its ops that are issued so many instances ahead.
  void run_ahead(std::size_t block, const Instance& instance, std::int64_t micro_batch, int least, int most);
  void run_op(const OpCall& call);
  bool runs(const Op& op, std::int64_t micro_batch) const {
    return !op.piece && (bit(op.when) & conditions_of(micro_batch, program_.schedule.micro_batches)) != 0;
  }
  void run_update(UpdatePart part, const Instance& instance);  // all but the norm's exchange
  void note_sums(const Instance& instance);

  const RunSetup& setup_;
  const Program& program_;
  Backend& backend_;
  Communicator& communicator_;
  const Position position_;
  const RankModel model_;
  TensorMemory memory_;
  StepClock clock_;
  GradientNorm norm_;
  Losses losses_;
  ActiveExperts active_;
  OpRunner ops_;
  PieceStreams streams_;
  StageMessages messages_;
  Buckets buckets_;
  HeldParts held_;
  ReplicaSums replicas_;
  RankResult result_;
};

}  // namespace orrery::realrun
