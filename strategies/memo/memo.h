// MEMO (arXiv 2407.12117): activations wait for the backward in host memory, or are recomputed, token by token. A
// layer's input and attention's output are swapped for all tokens. The other activations are swapped for the first
// tokens, the share alpha of all. For the remaining tokens they are recomputed before the layer's backward; this
// repeats neither attention nor the layer's last product.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::memo {

// Number of buffers for the activations of one layer, which layers use in turn (section 4.1). The last layers of a
// chunk, as many as there are buffers, stay in them and are not swapped.
inline constexpr std::uint16_t kRoundingBuffers = 2;

}  // namespace orrery::memo
