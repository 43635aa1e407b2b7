// Attention of a layer, from its normalised input to its output projection.
#pragma once

#include "models/builder.h"

namespace orrery {

// Appends self attention on `x`. Fused kernels do not add the output projection's bias here: *bias receives it.
TensorId self_attention(Builder& b, TensorId x, bool causal, TensorId* bias);
// Appends attention of the decoder's stream `x` to the encoder's output `memory`.
TensorId cross_attention(Builder& b, TensorId x, TensorId memory, TensorId* bias);

// A table of relative position biases that all layers of a stack share (Raffel et al. 2019, arXiv 1910.10683, section
// 2.1): begin_position_table is for the piece before the stack, take_position_table for each of its layers.
void begin_position_table(Builder& b);
void take_position_table(Builder& b);

}  // namespace orrery
