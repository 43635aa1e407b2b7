#include "realrun/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

void dispatch(const Call& call) {
  switch (call.op.kind) {
#define ORRERY_RUN(kind) \
  case OpKind::kind:     \
    return kind(call);
    ORRERY_PRODUCTS(ORRERY_RUN)
    ORRERY_KERNELS(ORRERY_RUN)
#undef ORRERY_RUN
    default:
      call.fail("moves data between ranks or memories, and is not a kernel");
  }
}

// Rounds to the nearest bf16, ties to even. A NaN stays NaN, even if its payload is in the lower half.
float rounded_to_bf16(float x) {
  if (std::isnan(x)) return x;
  constexpr int kDropped = 16;  // bits of the mantissa that bf16 does not have
  constexpr std::uint32_t kBelowHalf = (1u << (kDropped - 1)) - 1;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + kBelowHalf + ((bits >> kDropped) & 1)) >> kDropped << kDropped;
  return std::bit_cast<float>(rounded);
}

}  // namespace

void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context) {
  const Call call{{op, reads, writes, context}};
  check_operands(call);
  call.require(!op.accumulate || traits_of(op.kind).accumulates != 0, "cannot accumulate");
  dispatch(call);
  if (!context.round_to_bf16) return;
  for (const Buffer b : writes)
    if (b.data != nullptr && b.tensor->dtype == Dtype::bf16) std::ranges::transform(b.span(), b.data, rounded_to_bf16);
}

}  // namespace orrery::cpu
