// MEMO (arXiv 2407.12117): activations that wait for the backward in host memory, token by token. Of what a layer
// keeps, its input and attention's output are swapped whole; of all else the first part alpha of the tokens is, the
// rest is recomputed before the layer's backward, which needs neither attention nor the last product.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::memo {

// Buffers of one layer's activations that layers take in turn (section 4.1), and so the layers at the end of a chunk
// that stay in them.
inline constexpr std::uint16_t kRoundingBuffers = 2;

}  // namespace orrery::memo
