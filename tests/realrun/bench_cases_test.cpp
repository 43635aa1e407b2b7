// Does the suite cover what Programs are made of, and do its ops run?
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"
#include "realrun/bench/facts.h"
#include "realrun/bench/operands.h"
#include "sim/program/work.h"

namespace orrery::bench {
namespace {

TEST(BenchCases, HoldEveryKindButCommunication) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    std::set<OpKind> kinds;
    for (const KernelCase& c : kernel_cases(device, true)) kinds.insert(c.op.kind);
    for (int k = 0; k < kOpKinds; ++k) {
      const auto kind = static_cast<OpKind>(k);
      EXPECT_EQ(kinds.contains(kind), !is_communication(kind)) << name_of(kind);
    }
  }
}

TEST(BenchCases, HaveNamesOfTheirOwnAndWork) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    std::set<std::string> names;
    for (const KernelCase& c : kernel_cases(device, true)) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
      EXPECT_EQ(c.name.find(' '), std::string::npos) << c.name;
      EXPECT_GT(bytes(c.op, c.tensors), 0) << c.name;
      EXPECT_EQ(flops(c.op, c.tensors) > 0, is_matmul(c.op.kind) || is_attention(c.op.kind)) << c.name;
      EXPECT_EQ(c.contents.size(), c.tensors.size()) << c.name;
    }
    for (const StepCase& step : step_cases(device)) EXPECT_TRUE(names.insert(step.name).second) << step.name;
  }
}

TEST(BenchCases, OnlyDevicesThatHaveItMultiplyInFp8) {
  const auto uses_fp8 = [](const KernelCase& c) { return c.op.compute_dtype == Dtype::fp8; };
  EXPECT_TRUE(std::ranges::any_of(kernel_cases(DeviceKind::cuda, true), uses_fp8));
  EXPECT_FALSE(std::ranges::any_of(kernel_cases(DeviceKind::cuda, false), uses_fp8));
}

// Every op of the CPU's suite on its backend: shapes fit, and what comes out is a number.
TEST(BenchCases, RunOnTheCpuWithoutNaN) {
  for (const KernelCase& c : kernel_cases(DeviceKind::cpu, false)) {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    Operands operands(*backend, c);
    ASSERT_NO_THROW(operands.run()) << c.name;
    ASSERT_NO_THROW(operands.run()) << c.name;
    for (const Operand& written : operands.writes())
      EXPECT_FALSE(backend->has_nan({written.data, written.tensor->dtype, 0, written.tensor->elements()})) << c.name;
  }
}

TEST(BenchFacts, FindThePresetOfADevicesOwnName) {
  EXPECT_EQ(preset_named("NVIDIA H200"), "H200-SXM5-141GB");
  EXPECT_EQ(preset_named("NVIDIA H100 80GB HBM3"), "H100-SXM5-80GB");
  EXPECT_EQ(preset_named("NVIDIA A100-SXM4-80GB"), "A100-SXM4-80GB");
  EXPECT_EQ(preset_named("AMD EPYC"), "AMD-EPYC");
  EXPECT_EQ(preset_named("Cray-1"), "");
  EXPECT_EQ(preset_named(""), "");
}

}  // namespace
}  // namespace orrery::bench
