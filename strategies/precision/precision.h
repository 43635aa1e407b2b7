// Mixed precision. bf16/fp16: parameters and activations in 16 bit, gradients accumulated in `gradient_dtype`
// (Micikevicius et al. 2017, arXiv 1710.03740). fp8 (Micikevicius et al. 2022, arXiv 2209.05433) and nvfp4 (NVIDIA
// 2025, arXiv 2509.25149): the inputs of the layers' products are quantised, as Transformer Engine does; the embedding,
// the head, norms and attention stay in bf16.
#pragma once

#include "sim/program/program.h"
#include "strategies/layer_plans.h"

namespace orrery::precision {

// Returns the dtype whose peak rate MFU is relative to: among the dtypes in which layers compute their products, the
// one with the highest peak on the device.
Dtype peak_dtype(const Scenario& scenario);

// Returns the plan's recipe for fp8, or the stack's if that is automatic.
Recipe recipe_of(const Plan& plan);

}  // namespace orrery::precision
