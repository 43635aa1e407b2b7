// Adds a micro-batch's gradients to those of earlier ones: in the kernels that compute them, or in separate kernels.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"

namespace orrery::gradient_accumulation {

// Whether separate kernels add gradients that are whole on a rank.
bool is_separate(const Plan& plan);
// Inserts the separate kernels. Gradients that are reduced in every micro-batch are added by the reduction instead;
// their pieces stay as they are.
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);

}  // namespace orrery::gradient_accumulation
