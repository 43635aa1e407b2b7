// A call of attention by itself, as benchmarks of attention time it: of a layer the kernels of attention, what the
// ranks of a sequence exchange for them, and the sums of their partial results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "study/simulation/simulation.h"

namespace orrery {

enum class AttentionPasses : std::uint8_t { forward, backward, both };

// Where the piece `layer` of `program` has nothing but its attention, and a micro-batch runs it once; nothing is
// updated. Of attention are also sums of two results of such ops, and casts for sums or of them. REQUIRES: one pipeline
// stage.
Program attention_alone(const Program& program, std::size_t layer, AttentionPasses passes);

// Seconds of one call by the analytical engine's clock: of one micro-batch and the layer, by the kernels and the stack
// that the simulation went by. Throws InputError where the plan has more than one pipeline stage.
double attention_seconds(const Simulation& simulation, std::size_t layer, AttentionPasses passes);

}  // namespace orrery
