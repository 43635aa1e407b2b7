// The cases of `orrery bench`: every kind of kernel of a Program, and whole training steps.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "realrun/kernel.h"
#include "sim/program/op.h"
#include "sim/program/tensor.h"
#include "strategies/scenario.h"

namespace orrery::bench {

enum class DeviceKind : std::uint8_t { cpu, cuda };

// The values that a tensor is filled with before the op runs.
struct Contents {
  enum class Kind : std::uint8_t { normal, positive, constant, indices } kind = Kind::normal;
  double value = 0;  // the constant; indices are whole numbers below it
};

struct KernelCase {
  std::string name;  // "kind[/variant]/dtype/sizes"
  Op op;             // its tensors are indices into `tensors`
  std::vector<Tensor> tensors;
  std::vector<Contents> contents;  // by tensor
  KernelContext context;
};

// Sizes of kernels; each kind of kernel reads the members it needs.
struct KernelSizes {
  struct Product {
    std::int64_t m, k, n;
    std::int64_t experts = 1;  // above 1: this many products, each with m rows
  };
  std::vector<Product> products;
  struct Attention {
    std::int64_t batch, sequence, groups, group_heads, head_dim;
  };
  std::vector<Attention> attentions;
  // Routing of `tokens` tokens of width `hidden`, each to `choices` of `experts` experts. An expert has as many slots
  // as balanced routing needs.
  struct Routing {
    std::int64_t tokens, experts, choices, hidden;
  };
  std::vector<Routing> routings;
  std::int64_t batch = 1, sequence = 1, hidden = 1, vocabulary = 1;
  std::int64_t elements = 1;  // elements of flat buffers: an optimizer's, or a copy's
};

// Returns cases of every kind of op but communication, at sizes that take the device milliseconds. On a CPU they are in
// fp32, the only dtype that it stores; on a GPU also in bf16 and fp16, and in fp8 if `fp8` says that it has fp8 units.
std::vector<KernelCase> kernel_cases(DeviceKind device, bool fp8);
// The dtypes of a device's cases, except fp8. Kernels with a single dtype use the first.
std::vector<Dtype> kernel_dtypes(DeviceKind device);
// Returns all kinds of kernels at these sizes, in one dtype. fp8: only products whose sizes tensor cores support.
std::vector<KernelCase> kernel_cases_of(DeviceKind device, const KernelSizes& sizes, Dtype dtype);

struct StepCase {
  std::string name;  // "step/tensor_parallel_2"
  Scenario scenario;
};
// On a CPU, ranks are threads: one, and two under tensor, data (ZeRO 1) and pipeline parallelism. On a GPU one rank.
std::vector<StepCase> step_cases(DeviceKind device);

}  // namespace orrery::bench
