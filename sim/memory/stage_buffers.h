// What a rank of a pipeline stage holds beside the tensors of its pieces, and what of these it holds for a part of the
// step alone: by Program::runtime, which says what a stack allocates.
#pragma once

#include <span>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

struct StageBuffers {
  PlacedBytes resident{};   // as long as the run
  double backward = 0;      // while a backward runs (of a split one, its weight gradients too); on the device
  double update = 0;        // at most, while parameters are updated; on the device
};
// `stage`: of Program::stages.
StageBuffers stage_buffers(const Program& program, std::span<const Chunk> stage);

// Of an instance: what its gradients take on the device beyond the rank's part of them. Runtime::releases_gradients.
double released_gradient_bytes(const Program& program, const Piece& piece);

// Of a chunk that hands on what it has computed: what of it stays until its backward (Runtime::sent_outputs). Nothing
// where that is held anyway.
double sent_output_bytes(const Program& program, const Chunk& chunk, std::int64_t position);

}  // namespace orrery
