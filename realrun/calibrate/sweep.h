// What `orrery calibrate` measures: ops as Programs hold them, over shapes that training steps have.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sim/program/op.h"
#include "sim/program/tensor.h"

namespace orrery {

// Values that an operand is filled with before it is measured: kernels must neither meet NaN nor read beyond tables.
struct OperandFill {
  enum class Kind : std::uint8_t { spread, positive, constant, ids } kind = Kind::spread;  // spread: in [-1, 1]
  double value = 0;                                                                        // ids: below this
};

struct KernelPoint {
  std::string id;     // unique in a sweep, the same in every run: "linear fp32 512 x 1024 x 256"
  std::string group;  // points that one curve is fitted to: "matmul fp32", "attention fp32", "memory norm+bias", "copy"
  bool held_out = false;  // from the fit, to say how it does on shapes it has not seen

  Op op;  // reads and writes are indices into `tensors`; the same index twice: in place
  std::vector<Tensor> tensors;
  std::vector<OperandFill> fills;  // by tensor
  // Ops that make the operands what they are in a step (the forward of a backward), before anything is timed.
  std::vector<Op> before;
};

struct SweepOptions {
  std::vector<Dtype> dtypes{Dtype::fp32};  // of products and attention; the first also of memory-bound kernels
  std::int64_t least_hidden = 64, most_hidden = 1024;
  std::int64_t least_tokens = 64, most_tokens = 2048;
  std::int64_t most_vocabulary = 8192;
  std::int64_t most_sequence = 512;
  double most_flops = 4e9;       // of one product or attention
  double most_elements = 2e6;    // of one memory-bound tensor
  std::int64_t products = 160;   // points for each dtype
  std::int64_t attentions = 40;  // for each dtype and direction
  std::int64_t of_a_kind = 11;   // for each memory-bound kind
  std::int64_t held_out_every = 5;
  std::vector<std::int64_t> overlap_sequences;  // of attention beside copies
};
SweepOptions cpu_sweep();
SweepOptions gpu_sweep(std::vector<Dtype> dtypes);

// In the order to be measured: any beginning of it covers every group, and each group's shapes evenly.
std::vector<KernelPoint> sweep(const SweepOptions& options);

// What is measured at the same time (overlap.h): large products of the first dtype, attention at overlap_sequences
// forward and backward, large copies of both directions.
std::vector<KernelPoint> overlap_products(const SweepOptions& options);
std::vector<KernelPoint> overlap_attentions(const SweepOptions& options);
std::vector<KernelPoint> overlap_copies(const SweepOptions& options);

}  // namespace orrery
