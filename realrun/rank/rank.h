// Runs one rank of a Program: walks over the schedule. Internal to the executor. A run whose steps differ has several
// Programs, one after the other.
//
//   RankModel     the part of the model that the rank runs (PiecePlan: what follows from piece and position)
//   TensorMemory  memory of tensors; PieceStreams, StageMessages: move them to the next piece, to the next stage
//   OpRunner      one op; GradientNorm, StepResults: some results; ExpertRows: counts experts' rows; ReplicaSums: sums
//                 over copies of experts, which no op does
//   RankTask      a task beside the step, on the same memory
//   StepClock     measures time; HeldParts: the results
#pragma once

#include <span>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "realrun/rank/piece_plan.h"

namespace orrery::realrun {

// Runs all steps of the Programs, each of which begins with the state that the one before leaves. A failure is reported
// to the communicator and thrown.
RankResult run_rank(std::span<const RunSetup> parts, Backend& backend, Communicator& communicator);

}  // namespace orrery::realrun
