// Attention of a layer, from its normalised input to its output projection.
#pragma once

#include "models/builder.h"

namespace orrery {

// Appends self attention on `x` and returns the output of its projection. With fused kernels the projection's bias is
// not added yet: *bias receives it, for the kernel that adds the residual.
TensorId self_attention(Builder& b, TensorId x, bool causal, TensorId* bias);
// Appends attention of the decoder's stream `x` to the encoder's output `memory`. Otherwise as self_attention().
TensorId cross_attention(Builder& b, TensorId x, TensorId memory, TensorId* bias);

// Position biases by relative distance: all layers of a stack share one table (Raffel et al. 2019, arXiv 1910.10683,
// section 2.1). The piece before the stack owns the parameter and hands it on (begin_position_table), and each layer
// takes it (take_position_table). Neither does anything for models without such a table.
void begin_position_table(Builder& b);
void take_position_table(Builder& b);

}  // namespace orrery
