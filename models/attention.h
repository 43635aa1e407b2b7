// Attention of a layer, from its normalised input to its output projection.
#pragma once

#include "models/builder.h"

namespace orrery {

// With fused kernels the output projection's bias is left to what follows: *bias receives it.
TensorId self_attention(Builder& b, TensorId x, bool causal, TensorId* bias);
// From the decoder's stream to the encoder's output.
TensorId cross_attention(Builder& b, TensorId x, TensorId memory, TensorId* bias);

// A stack's table of relative position biases, for all its layers (Raffel et al. 2019, arXiv 1910.10683,
// section 2.1): of the piece before the stack, and of one of its layers.
void begin_position_table(Builder& b);
void take_position_table(Builder& b);

}  // namespace orrery
