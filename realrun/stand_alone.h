// Ops by themselves, with their operands: what `orrery bench` runs and `orrery calibrate` measures.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "realrun/backend.h"
#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// The values that a tensor is filled with before the op runs: a kernel must neither read NaN nor index beyond a table.
struct Contents {
  enum class Kind : std::uint8_t { normal, positive, constant, indices } kind = Kind::normal;
  double value = 0;  // the constant; indices are whole numbers below it
};

struct StandAloneOp {
  Op op;  // its tensors are indices into `tensors`; the same index twice: in place
  std::vector<Tensor> tensors;
  std::vector<Contents> contents;  // by tensor
  KernelContext context;
};

// Sizes of the operands, by the names of axes: m, k and n of products; batch, sequence, groups, group_heads and
// head_dim of attention; hidden; vocab; tokens, experts and choices of routing; elements of flat buffers. An expert has
// as many slots as balanced routing needs. What is not there is 1.
using Sizes = std::map<std::string, std::int64_t, std::less<>>;
// Returns the size of an axis, also of "positions" (batch x sequence), "heads", "qkv" and "slots", which follow from
// others.
std::int64_t size_in(const Sizes& sizes, std::string_view axis);

// Returns an op whose reads and writes are named in their order, as in kOperands (stand_alone.cpp): "x row row". "-" is
// no operand; "=1" in `writes` is the operand that is read second, written in place; "x:fp32" has that type. Throws
// std::logic_error for a name that the table lacks.
StandAloneOp stand_alone_op(OpKind kind, std::string_view reads, std::string_view writes, const Sizes& sizes,
                            Dtype dtype);

// The operands of an op in a backend's memory.
class Operands {
 public:
  // Allocates and fills the operands. `backend` and `op` must outlive this. Throws DeviceError if memory is short.
  Operands(Backend& backend, const StandAloneOp& op);
  ~Operands();
  Operands(const Operands&) = delete;
  Operands& operator=(const Operands&) = delete;

  void run();  // issues the op once
  std::span<const Operand> writes() const { return writes_; }

 private:
  void* place(std::size_t tensor);
  void fill(void* memory, const Tensor& tensor, const Contents& contents);

  Backend& backend_;
  const StandAloneOp& op_;
  struct Release {
    Backend& backend;
    void operator()(void* memory) const { backend.release(memory); }
  };
  std::vector<std::unique_ptr<void, Release>> memory_;  // by tensor
  std::vector<Operand> reads_, writes_;
};

}  // namespace orrery
