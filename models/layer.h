// One transformer layer, for all architectures.
#pragma once

#include "models/builder.h"

namespace orrery {

enum class LayerRole : std::uint8_t { encoder, decoder, decoder_with_memory };

// Builds a layer of the model. `window`: positions attended to; 0: all. `experts`: experts instead of an MLP.
void build_layer(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes,
                 LayerRole role, std::int64_t window, bool experts = false);

}  // namespace orrery
