// Dispatches an op to its kernel.
#include "realrun/cuda/kernels.h"
#include "realrun/cuda/kernels/call.cuh"

namespace orrery::cuda {

std::int64_t scratch_bytes(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                           std::int64_t processors) {
  if (static_cast<int>(op.kind) >= kOpKinds || !traits_of(op.kind).scratch) return 0;
  const KernelContext context;
  Launch launch;
  launch.processors = processors;
  const Call call{{op, reads, writes, context}, launch};
  switch (op.kind) {
#define ORRERY_SCRATCH(kind) \
  case OpKind::kind:         \
    return kind##_scratch(call);
    ORRERY_SCRATCH_KERNELS(ORRERY_SCRATCH)
#undef ORRERY_SCRATCH
    default:
      return slots_scratch(call);
  }
}

void run_kernel(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes,
                const KernelContext& context, const Launch& launch) {
  const Call call{{op, reads, writes, context}, launch};
  call.require(static_cast<int>(op.kind) < kOpKinds && is_computation(op.kind) && !is_matmul(op.kind),
               "multiplies matrices or moves data, and is not a kernel");
  call.require(!op.accumulate || traits_of(op.kind).accumulates != 0, "cannot accumulate");
  check_operands(call);
  switch (op.kind) {
#define ORRERY_RUN(kind) \
  case OpKind::kind:     \
    return kind(call);
    ORRERY_KERNELS(ORRERY_RUN)
#undef ORRERY_RUN
    default:
      call.fail("is not a kernel");
  }
}

}  // namespace orrery::cuda
