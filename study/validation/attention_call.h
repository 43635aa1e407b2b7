// A call of attention by itself, as benchmarks of attention time it: the attention kernels of a layer, the exchanges
// between the ranks of a sequence for them, and the sums of their partial results.
#pragma once

#include <cstddef>
#include <cstdint>

#include "study/simulation/simulation.h"

namespace orrery {

enum class AttentionPasses : std::uint8_t { forward, backward, both };

// A program in which the piece `layer` has only its attention, and a micro-batch runs it once; nothing is updated. Sums
// of two results of attention ops, and casts before or after such sums, count as attention. REQUIRES: one pipeline
// stage.
Program attention_alone(const Program& program, std::size_t layer, AttentionPasses passes);

// Seconds of one call by the analytical engine's clock: for one micro-batch and the layer, with the kernels and the
// stack of the simulation. Throws InputError if the plan has more than one pipeline stage.
double attention_seconds(const Simulation& simulation, std::size_t layer, AttentionPasses passes);

}  // namespace orrery
