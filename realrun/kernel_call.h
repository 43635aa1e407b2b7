// One call of a kernel, on any backend.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include "realrun/kernel.h"
#include "sim/program/op_traits.h"

namespace orrery {

// `reads` and `writes` have the order of op.reads and op.writes. An absent operand has data nullptr, or is omitted at
// the end. All throw std::logic_error, which names the kernel.
struct KernelCall {
  const Op& op;
  std::span<const Operand> reads, writes;
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
  const Operand& read(std::size_t i) const {
    if (!has_read(i)) fail("operand " + std::to_string(i) + " is missing");
    return reads[i];
  }
  const Operand& write(std::size_t i) const {
    if (!has_write(i)) fail("result " + std::to_string(i) + " is missing");
    return writes[i];
  }
  void require_same_elements(const Operand& a, const Operand& b) const {
    require(a.tensor->elements() == b.tensor->elements(), "tensors differ in their number of elements");
  }
  // `row` repeats along the leading dimensions of `whole`.
  void require_repeats(const Operand& row, const Operand& whole) const {
    require(row.tensor->elements() > 0 && whole.tensor->elements() % row.tensor->elements() == 0,
            "a bias does not divide its tensor");
  }
};

inline std::int64_t elements(const Operand& o) { return o.tensor->elements(); }
inline std::int64_t last_size(const Operand& o) {
  return o.tensor->rank == 0 ? 1 : o.tensor->sizes[o.tensor->rank - 1];
}

}  // namespace orrery
