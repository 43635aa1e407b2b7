// Runs one rank of a Program: walks over the schedule. Internal to the executor. A run whose steps differ has one Rank
// for each of its Programs, one after the other.
//
//   RankModel     the part of the model that the rank runs (PiecePlan: what follows from piece and position)
//   TensorMemory  memory of tensors; PieceStreams, StageMessages: move them to the next piece, to the next stage
//   OpRunner      one op: Kernels, Collectives, GradientNorm, StepResults; ExpertRows: counts experts' rows;
//                 ReplicaSums: sums over copies of experts, which no op does
//   RankTask      a task beside the step, on the same memory
//   StepClock     measures time; HeldParts: the results
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "realrun/rank/background.h"
#include "realrun/rank/op_runner.h"
#include "realrun/rank/rank_results.h"
#include "realrun/rank/replica_sums.h"
#include "realrun/rank/streams.h"

namespace orrery::realrun {

// A block of tasks beside the step (sim/program/task.h). Its Program has the step's pieces and tensors, so that both
// work on the same memory.
struct RankTask {
  // REQUIRES: everything outlives it; they are the step's.
  RankTask(std::uint16_t block, const RunSetup& of_step, const Position& position, TensorMemory& memory,
           Communicator& communicator, StepClock& clock, GradientNorm& norm, StepResults& results);

  Program program;
  RunSetup setup;
  RankModel model;
  RankShared shared;
  OpRunner ops;
};

class Rank {
 public:
  // Begins with the state in `carried`, which it completes from other ranks.
  Rank(const RunSetup& setup, Backend& backend, Communicator& communicator, CarriedState carried = {});

  // Runs all steps. `result` holds the results of earlier parts and is extended. Call it once.
  void run(RankResult& result);
  // Returns the state for the next Program and frees the memory. Call it once, after run().
  CarriedState leave();

 private:
  Backend::Mark begin_step(std::int64_t step);
  void end_step(std::int64_t step, Backend::Mark begin);
  void run_step();
  // Runs the tasks that come before the next step in the list. `from`: the number of the first.
  void run_tasks_until_step(std::size_t from);
  // Waits for the tasks that a task of the list waits for.
  void wait_before(const Task& task);
  void run_task(std::uint16_t block);
  // Hands the task to the background's thread. Returns false if it has to run here.
  bool run_beside(RankTask& task);

  // Run a block for all instances of a chunk, in order. After its last use a micro-batch's memory is freed.
  void run_slot(const Slot& slot);
  void run_line(std::size_t block, const RankChunk& chunk, std::int64_t micro_batch);
  // `begun` is called when the first kernel has been issued.
  template <class Begun>
  void run_block(std::size_t block, const InLine& at, std::int64_t micro_batch, Begun begun);
  // Runs the block's ops that are issued between `least` and `most` instances ahead.
  void run_ahead(std::size_t block, const Instance& instance, std::int64_t micro_batch, int least, int most);
  void run_op(const OpCall& call);
  bool runs(const Op& op, std::int64_t micro_batch) const {
    return !op.is_part && (bit(op.when) & conditions_of(micro_batch, program_.schedule.micro_batches)) != 0;
  }
  void run_update(UpdatePart part, const Instance& instance);  // all ops but the norm's exchange
  void note_sums(const Instance& instance);

  // An op that runs once for several instances (Op::every) waits until the last of them is reached. `number`: of the
  // bucket in its block, the same in all variants of a piece.
  struct Waiting {
    const Instance* instance = nullptr;
    std::size_t op = 0;  // index in the block
  };
  struct Bucket {
    std::size_t block, number;
    std::vector<Waiting> ops;
  };
  // Adds an instance's op, and returns the ops to run now: none while the bucket fills. Throws std::logic_error if the
  // bucket lacks an instance that it covers.
  std::vector<Waiting> add_to_bucket(std::size_t block, std::size_t number, const InLine& at, std::size_t op);

  const RunSetup& setup_;
  const Program& program_;
  Backend& backend_;
  Communicator& communicator_;
  const Position position_;
  const RankModel model_;
  TensorMemory memory_;
  const RankShared shared_;
  StepClock clock_;
  GradientNorm norm_;
  StepResults results_;
  OpRunner ops_;
  PieceStreams streams_;
  StageMessages messages_;
  std::vector<Bucket> buckets_;  // that fill
  HeldParts held_;
  ReplicaSums replicas_;
  std::deque<RankTask> tasks_;  // by block, from 1
  // The task of the list that the next step belongs to, and how often it has run in this iteration.
  std::size_t task_ = 0;
  std::int64_t repeated_ = 0, iteration_ = 0;
  // By task: the background's last run in each iteration. The background is made when a task first needs it.
  std::vector<std::vector<std::int64_t>> runs_beside_;
  std::int64_t last_beside_ = -1;
  bool tried_background_ = false;
  std::unique_ptr<Background> background_;
  RankResult result_;
};

}  // namespace orrery::realrun
