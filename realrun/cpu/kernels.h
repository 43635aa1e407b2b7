// The kernels of a Program on a CPU, in fp32: one function for every OpKind but communication and copies, written for
// clarity and for being right, with Eigen for the products. Numbers that a Program stores in bf16 are kept in fp32;
// rounding to bf16 on every store is an option, so that a run can show what the dtype does.
#pragma once

#include <cstdint>
#include <span>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery::cpu {

// A tensor of one rank in memory: dense, row-major in its own sizes, fp32 (ids, targets and masks hold whole numbers).
struct Buffer {
  float* data = nullptr;
  const Tensor* tensor = nullptr;

  std::int64_t elements() const { return tensor->elements(); }
  std::span<float> span() const { return {data, static_cast<std::size_t>(elements())}; }
};

// Reads `reads`, writes `writes`: in the order of op.reads and op.writes; absent tensors have data nullptr, or are left
// out at the end. Shapes are those of sim/program/op.h; statistics of a norm are mean and reciprocal deviation, or (a
// last dimension of 1: RMSNorm) the reciprocal root mean square alone.
//
// op.accumulate adds to the writes that OpTraits::accumulates names; std::logic_error for kinds that have none.
//
// cross_entropy: the loss of a token is maximum + log(sum) - target. The sum is relative to the local maximum: ranks
// that divide the vocabulary multiply it by exp(local - global maximum) before they add.
// gradient_norm writes the square of the norm, so that ranks can add theirs. What reads it (norm_operand()) clips.
// Kernels of kinds with OpTraits::in_place may write where they read; others may not.
//
// Throws std::logic_error for kinds that are no kernel and for shapes that do not fit together.
void run_kernel(const Op& op, std::span<const Buffer> reads, std::span<const Buffer> writes,
                const KernelContext& context);

}  // namespace orrery::cpu
