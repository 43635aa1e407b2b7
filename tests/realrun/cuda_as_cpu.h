// The tests of the CPU kernels, asked of the CUDA kernels: a source that includes this one and then a test of
// namespace orrery::cpu has that test in a namespace of its own, whose run_kernel is the one below.
#pragma once

#include "models/layers.h"
#include "realrun/cpu/philox.h"
#include "sim/program/piece.h"
#include "tests/realrun/cuda_harness.h"

namespace orrery::on_cuda {

// A type of its own: of cpu::Buffer, arguments would find cpu::run_kernel.
struct Buffer {
  float* data = nullptr;
  const Tensor* tensor = nullptr;

  std::int64_t elements() const { return tensor->elements(); }
  std::span<float> span() const { return {data, static_cast<std::size_t>(elements())}; }
};
using cpu::philox;
using cpu::PhiloxWords;

// Dtypes as the kernels want them, whatever a test of fp32 kernels declares: ids int64, masks uint8, bf16 where
// rounding is asked for. Products run on the CPU: theirs is a library's.
inline void run_kernel(const Op& op, std::span<const Buffer> reads, std::span<const Buffer> writes,
                       const KernelContext& context) {
  std::vector<cpu::Buffer> in, out;
  if (!cuda::is_kernel(op.kind)) {
    for (const Buffer& b : reads) in.push_back({b.data, b.tensor});
    for (const Buffer& b : writes) out.push_back({b.data, b.tensor});
    return cpu::run_kernel(op, in, out, context);
  }
  std::vector<Tensor> tensors;
  tensors.reserve(reads.size() + writes.size());
  const auto typed = [&](const Buffer& b, std::size_t index_operand, std::size_t i, bool mask) -> cpu::Buffer {
    if (b.data == nullptr) return {};
    tensors.push_back(*b.tensor);
    Dtype& dtype = tensors.back().dtype;
    if (i == index_operand) {
      dtype = Dtype::int64;
    } else if (mask) {
      dtype = Dtype::uint8;
    } else if (dtype != Dtype::bf16 || !context.round_to_bf16) {
      dtype = Dtype::fp32;
    }
    return {b.data, &tensors.back()};
  };
  constexpr std::size_t kNone = 99;
  const bool ids = op.kind == OpKind::embedding || op.kind == OpKind::embedding_backward;
  const bool targets = op.kind == OpKind::cross_entropy || op.kind == OpKind::cross_entropy_backward;
  const bool writes_mask = op.kind == OpKind::dropout || op.kind == OpKind::dropout_add;
  for (std::size_t i = 0; i < reads.size(); ++i)
    in.push_back(typed(reads[i], ids ? 0 : targets ? 1 : kNone, i, op.kind == OpKind::dropout_backward && i == 1));
  for (std::size_t i = 0; i < writes.size(); ++i) out.push_back(typed(writes[i], kNone, i, writes_mask && i == 1));
  // An id outside a table without a vocabulary is an error on a CPU and contributes nothing on a GPU.
  if (op.kind == OpKind::embedding && in.size() > 1 && in[1].data != nullptr && in[1].tensor->find(Axis::vocab) < 0)
    for (const float id : in[0].span())
      if (id < 0 || id >= static_cast<float>(in[1].tensor->sizes[0])) throw std::logic_error("outside its table");
  cuda_test::run(op, in, out, context);
}

}  // namespace orrery::on_cuda

#define cpu on_cuda
#undef TEST
#define TEST(suite, name) GTEST_TEST(Cuda##suite, name)
