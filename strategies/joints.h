// What stands between pieces that lay out the residual stream differently.
#pragma once

#include "sim/program/program.h"

namespace orrery {

// Where a piece of the line takes another layout than the one before it hands on, puts a piece between them that
// redistributes the stream, and its gradient on the way back. It has no parameters and computes no layer. Throws
// std::logic_error where no redistribution leads from the one to the other.
void join_layouts(Program& program);

}  // namespace orrery
