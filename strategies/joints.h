// Joints: pieces inserted between two neighbours that lay out the residual stream differently.
#pragma once

#include "sim/program/program.h"

namespace orrery {

// Inserts a joint wherever the input layout of a piece differs from the output layout of the piece before it. The joint
// redistributes the residual stream in the forward, and its gradient in the backward. It has no parameters and belongs
// to no layer. Throws std::logic_error if no redistribution leads from one layout to the other.
void join_layouts(Program& program);

}  // namespace orrery
