// Memory that follows from how a training stack works, as Program::runtime describes it: buffers that a rank of a
// pipeline stage holds beside the tensors of its pieces, and tensors that it holds for a part of the step only.
#pragma once

#include <span>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

struct StageBuffers {
  PlacedBytes resident{};   // held for the whole run
  double backward = 0;      // bytes on the device while a backward runs, or the weight gradients of a split one
  double update = 0;        // the most bytes on the device while parameters are updated
};
// `stage`: the chunks of one stage, an element of Program::stages.
StageBuffers stage_buffers(const Program& program, std::span<const Chunk> stage);

// Bytes of an instance's whole gradients on the device beyond the part of them that the rank keeps. They are held from
// a chunk's first backward to its last one. 0 unless Runtime::releases_gradients.
double released_gradient_bytes(const Program& program, const Piece& piece);

// Bytes of the output that a chunk has sent to the next stage and holds until its backward (Runtime::sent_outputs).
// `position`: the chunk's place in the model. 0 for the model's last chunk, where the stack frees the output at once,
// and where the backward needs the output anyway, so that it is counted already.
double sent_output_bytes(const Program& program, const Chunk& chunk, std::int64_t position);

}  // namespace orrery
