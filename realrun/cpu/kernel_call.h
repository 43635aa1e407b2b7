// One call of a kernel on a CPU, and the kernels: internal to realrun/cpu.
#pragma once

#include <vector>

#include "realrun/cpu/kernels.h"
#include "realrun/kernel_shapes.h"

namespace orrery::cpu {

// An operand's numbers.
struct Buffer {
  float* data = nullptr;
  const Tensor* tensor = nullptr;

  Buffer(const Operand& o) : data(static_cast<float*>(o.data)), tensor(o.tensor) {}
  operator Operand() const { return {data, tensor}; }
  std::int64_t elements() const { return tensor->elements(); }
  std::span<float> span() const { return {data, static_cast<std::size_t>(elements())}; }
};

struct Call : KernelCall {
  Buffer read(std::size_t i) const { return KernelCall::read(i); }
  Buffer write(std::size_t i) const { return KernelCall::write(i); }
};

#define ORRERY_DECLARE(kind) void kind(const Call& call);
ORRERY_PRODUCTS(ORRERY_DECLARE)
ORRERY_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE

// Returns the expert of each row of logits, by auction.
std::vector<std::int64_t> auctioned_experts(std::span<const float> logits, std::int64_t experts);
// `route` where experts choose tokens; scores are [tokens, experts].
void choose_tokens(const Call& call, std::span<const double> scores);
// `route` and its derivative with Gumbel noise on the logits.
void gumbel_route(const Call& call);
void gumbel_route_backward(const Call& call);

}  // namespace orrery::cpu
