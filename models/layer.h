// One transformer layer, for all architectures.
#pragma once

#include "models/builder.h"

namespace orrery {

// encoder: attention that is not causal. decoder: causal attention. decoder_with_memory: a decoder layer that also
// attends to the encoder's output (cross attention).
enum class LayerRole : std::uint8_t { encoder, decoder, decoder_with_memory };

// Builds a layer of the model into `piece`. `window`: the number of positions that a query attends to; 0: no limit.
// `experts`: whether the layer has a mixture of experts instead of an MLP.
void build_layer(Piece& piece, const Model& model, const KernelChoices& kernels, const LayerSizes& sizes,
                 LayerRole role, std::int64_t window, bool experts = false);

}  // namespace orrery
