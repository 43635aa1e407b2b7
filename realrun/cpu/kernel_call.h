// One call of a kernel, and the kernels: internal to realrun/cpu.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "realrun/cpu/kernels.h"
#include "realrun/kernel_list.h"

namespace orrery::cpu {

struct KernelCall {
  const Op& op;
  std::span<const Buffer> reads, writes;
  const KernelContext& context;

  [[noreturn]] void fail(const std::string& what) const {
    const int kind = static_cast<int>(op.kind);
    const std::string name = kind < kOpKinds ? name_of(op.kind) : "of unknown kind " + std::to_string(kind);
    throw std::logic_error("kernel " + name + " (" + op.name + "): " + what);
  }
  void require(bool condition, const char* what) const {
    if (!condition) fail(what);
  }
  bool has_read(std::size_t i) const { return i < reads.size() && reads[i].data != nullptr; }
  bool has_write(std::size_t i) const { return i < writes.size() && writes[i].data != nullptr; }
  const Buffer& read(std::size_t i) const {
    if (!has_read(i)) fail("operand " + std::to_string(i) + " is missing");
    return reads[i];
  }
  const Buffer& write(std::size_t i) const {
    if (!has_write(i)) fail("result " + std::to_string(i) + " is missing");
    return writes[i];
  }
  void require_same_elements(const Buffer& a, const Buffer& b) const {
    require(a.elements() == b.elements(), "tensors differ in their number of elements");
  }
  // `row` repeats along the leading dimensions of `whole`.
  void require_repeats(const Buffer& row, const Buffer& whole) const {
    require(row.elements() > 0 && whole.elements() % row.elements() == 0, "a bias does not divide its tensor");
  }
};

inline std::int64_t last_size(const Buffer& b) { return b.tensor->rank == 0 ? 1 : b.tensor->sizes[b.tensor->rank - 1]; }

#define ORRERY_DECLARE(kind) void kind(const KernelCall& call);
ORRERY_PRODUCTS(ORRERY_DECLARE)
ORRERY_KERNELS(ORRERY_DECLARE)
#undef ORRERY_DECLARE

// Returns the expert of each row of logits, by auction.
std::vector<std::int64_t> auctioned_experts(std::span<const float> logits, std::int64_t experts);
// `route` where experts choose tokens; scores are [tokens, experts].
void choose_tokens(const KernelCall& call, std::span<const double> scores);
// `route` and its derivative with Gumbel noise on the logits.
void gumbel_route(const KernelCall& call);
void gumbel_route_backward(const KernelCall& call);

}  // namespace orrery::cpu
