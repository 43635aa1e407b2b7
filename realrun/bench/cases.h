// The cases of `orrery bench`: every kind of kernel of a Program, and whole training steps.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "realrun/stand_alone.h"
#include "strategies/scenario.h"

namespace orrery::bench {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct KernelCase : StandAloneOp {
  std::string name;  // "kind[/variant]/dtype/sizes"
};

// Returns cases of every kind of op but communication, at sizes that take the device milliseconds. On a CPU they are in
// fp32, the only dtype that it stores; on a GPU also in bf16 and fp16, and in fp8 if `fp8` says that it has fp8 units.
std::vector<KernelCase> kernel_cases(DeviceKind device, bool fp8);
// The dtypes of a device's cases, except fp8. Kernels with a single dtype use the first.
std::vector<Dtype> kernel_dtypes(DeviceKind device);
// Returns all kinds of kernels at these sizes, in one dtype. fp8: only products whose sizes tensor cores support.
std::vector<KernelCase> kernel_cases_of(DeviceKind device, const Sizes& sizes, Dtype dtype);
// Returns the axes whose sizes a kind of kernel depends on.
std::vector<std::string> axes_of(OpKind kind);

struct StepCase {
  std::string name;  // "step/tensor_parallel_2"
  Scenario scenario;
};
// On a CPU, ranks are threads: one, and two under tensor, data (ZeRO 1) and pipeline parallelism. On a GPU one rank.
std::vector<StepCase> step_cases(DeviceKind device);

}  // namespace orrery::bench
