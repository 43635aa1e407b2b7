// A Program's kernels on a CPU, in fp32: one function for every OpKind but communication and copies. They are written
// for clarity and correctness, with Eigen for the products. Values that a Program stores in bf16 are kept in fp32;
// optionally every store rounds to bf16, so that a run can show the dtype's effect.
#pragma once

#include <span>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery::cpu {

// An operand's numbers: fp32, whatever its dtype.
inline std::span<float> floats(const Operand& o) {
  return {static_cast<float*>(o.data), static_cast<std::size_t>(o.tensor->elements())};
}

// Reads `reads` and writes `writes`, in the order of op.reads and op.writes. Operands hold fp32 whatever their dtype
// (ids, targets and masks: whole numbers). An absent one has data nullptr, or is omitted at the end. Shapes are those
// of sim/program/op.h. A norm's statistics are the mean and the reciprocal deviation; or, if their last dimension is 1
// (RMSNorm), only the reciprocal root mean square.
//
// op.accumulate adds to the writes that OpTraits::accumulates names; throws std::logic_error for kinds that have none.
//
// cross_entropy: the loss of a token is maximum + log(sum) - target. The sum is relative to the local maximum: ranks
// that divide the vocabulary multiply it by exp(local - global maximum) before they add. gradient_norm writes the
// square of the norm, so that ranks can add their squares; the op that reads it (norm_operand()) clips. Kernels of
// kinds with OpTraits::in_place may write to their operands; others may not.
//
// Throws std::logic_error for kinds that are not kernels and for shapes that do not fit together.
void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context);

}  // namespace orrery::cpu
