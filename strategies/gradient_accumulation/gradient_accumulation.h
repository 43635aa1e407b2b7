// Adding a micro-batch's gradients to those of earlier ones, by the kernels that compute them or by kernels of their own.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"

namespace orrery::gradient_accumulation {

// Whether gradients that are whole on a rank are added by kernels of their own.
bool is_separate(const Plan& plan);
// Gradients that are reduced in every micro-batch are added where they are reduced: their pieces stay as they are.
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);

}  // namespace orrery::gradient_accumulation
