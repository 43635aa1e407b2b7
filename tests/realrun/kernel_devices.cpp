#include "tests/realrun/kernel_devices.h"

#include <string>

#include "tests/realrun/cuda_harness.h"

namespace orrery::cpu {

namespace {

constexpr std::size_t kNone = 99;

// Which operand is ids, targets or choices.
std::size_t index_read(OpKind kind) {
  switch (kind) {
    case OpKind::embedding:
    case OpKind::embedding_backward:
    case OpKind::expert_counts:
    case OpKind::slot_mask:
    case OpKind::hash_route:
      return 0;
    case OpKind::cross_entropy:
    case OpKind::cross_entropy_backward:
    case OpKind::permute:
    case OpKind::unpermute:
    case OpKind::permute_weights:
    case OpKind::unpermute_weights:
    case OpKind::slot_mask_backward:
    case OpKind::densify:
      return 1;
    case OpKind::route_backward:
    case OpKind::unpermute_backward:
      return 2;
    default:
      return kNone;
  }
}

}  // namespace

// Dtypes as CUDA's kernels want them, whatever a test of fp32 kernels declares: ids integers, masks uint8, bf16 where
// rounding is asked for.
void run_on_cuda(const Op& op, std::span<const orrery::Operand> reads, std::span<const orrery::Operand> writes,
                 const KernelContext& context) {
  if (static_cast<int>(op.kind) >= kOpKinds || !is_computation(op.kind) || is_matmul(op.kind))
    return run_kernel(op, reads, writes, context);
  std::vector<orrery::Operand> in, out;
  std::vector<Tensor> tensors;
  tensors.reserve(reads.size() + writes.size());
  const auto typed = [&](const orrery::Operand& b, std::size_t index_operand, std::size_t i,
                         bool mask) -> orrery::Operand {
    if (b.data == nullptr) return {};
    tensors.push_back(*b.tensor);
    Dtype& dtype = tensors.back().dtype;
    if (i == index_operand) {
      if (dtype != Dtype::int32) dtype = Dtype::int64;
    } else if (mask) {
      dtype = Dtype::uint8;
    } else if (dtype != Dtype::int8 && dtype != Dtype::int4 && dtype != Dtype::sign &&
               (dtype != Dtype::fp8 || !is_quantiser(op.kind)) && (dtype != Dtype::bf16 || !context.round_to_bf16)) {
      dtype = Dtype::fp32;
    }
    return {b.data, &tensors.back()};
  };
  const bool writes_mask = op.kind == OpKind::dropout || op.kind == OpKind::dropout_add;
  const std::size_t indices = index_read(op.kind), written_indices = op.kind == OpKind::route        ? 1
                                                                     : op.kind == OpKind::sparsify   ? 1
                                                                     : op.kind == OpKind::hash_route ? 0
                                                                                                     : kNone;
  for (std::size_t i = 0; i < reads.size(); ++i)
    in.push_back(typed(reads[i], indices, i, op.kind == OpKind::dropout_backward && i == 1));
  for (std::size_t i = 0; i < writes.size(); ++i)
    out.push_back(typed(writes[i], written_indices, i, writes_mask && i == 1));
  // An id outside a table without a vocabulary is an error on a CPU and contributes nothing on a GPU.
  if (op.kind == OpKind::embedding && in.size() > 1 && in[1].data != nullptr && in[1].tensor->find(Axis::vocab) < 0)
    for (const float id : floats(in[0]))
      if (id < 0 || id >= static_cast<float>(in[1].tensor->sizes[0])) throw std::logic_error("outside its table");
  cuda_test::run(op, in, out, context);
}

bool register_kernel_test(const char* suite, const char* name, const char* file, int line, KernelTest::Body body) {
  const auto add = [&](const std::string& of, RunKernel* runs_kernels) {
    // Of the fixture that TEST has: suites may have tests of both kinds.
    testing::RegisterTest(of.c_str(), name, nullptr, nullptr, file, line,
                          [=]() -> testing::Test* { return new KernelTest(body, runs_kernels); });
  };
#ifndef ORRERY_ON_DEVICE
  add(suite, run_kernel);
#endif
  add(std::string("Cuda") + suite, run_on_cuda);
  return true;
}

}  // namespace orrery::cpu
