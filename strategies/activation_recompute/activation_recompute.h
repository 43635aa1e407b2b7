// Activation recomputation: the backward repeats forward ops instead of keeping their results.
//   full       each layer, from its input (Chen et al. 2016, arXiv 1604.06174). Megatron-LM's uniform method keeps
//              every n-th input only; its block method recomputes only the first n layers of each chunk
//   all_but_attention  each layer, but the results of attention are kept (Gu et al. 2024, arXiv 2406.18485, section 5)
//   selective  only the attention core, whose activations are large and cheap to compute (Korthikanti et al. 2022,
//              section 5). FlashAttention does this inside its kernel: then there is nothing left to recompute.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"
#include "strategies/strategy.h"

namespace orrery::activation_recompute {

void check(const Scenario& scenario);
void plan_layers(const Scenario& scenario, LayerPlans& plans);
void rewrite_piece(const Scenario& scenario, const Plan& plan, const Program& program, Piece& piece);
void rewrite(const Scenario& scenario, Program& program);
void disable(Plan& plan);
std::span<const PlanWord> words();
std::span<const SearchAxis> search_axes();

}  // namespace orrery::activation_recompute
