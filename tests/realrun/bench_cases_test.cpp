// Does the suite cover what Programs are made of, and do its ops run?
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "realrun/backend.h"
#include "realrun/bench/cases.h"
#include "realrun/bench/cold_cache.h"
#include "realrun/bench/facts.h"
#include "realrun/bench/shapes.h"
#include "realrun/stand_alone.h"
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

// ---- cold caches

TEST(ColdCache, EvictsTwiceTheCache) {
  CacheEvictor cpu(1 << 20);
  EXPECT_EQ(cpu.bytes(), 2 << 20);
  EXPECT_NO_THROW(cpu.evict(Stream::compute));
  EXPECT_THROW(CacheEvictor(0.0), InputError) << "a machine that does not say";
  // On a GPU by the backend's memory, which a CPU's stands in for.
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  CacheEvictor gpu(*backend, 1 << 20);
  EXPECT_EQ(gpu.bytes(), 2 << 20);
  EXPECT_NO_THROW(gpu.evict(Stream::compute));
}

TEST(ColdCache, TakesAGpusCacheFromItsPreset) {
  EXPECT_EQ(gpu_cache_bytes("NVIDIA H100 80GB HBM3"), 50 * 1024 * 1024);
  EXPECT_THROW(gpu_cache_bytes("Cray-1"), InputError);
}

// ---- the user's own shapes

constexpr double kMemory = 1e12;  // bytes

std::vector<std::string> names_of_shapes(DeviceKind device, const std::vector<std::string>& texts) {
  std::vector<Shape> shapes;
  for (const std::string& text : texts) shapes.push_back(parse_shape(text));
  std::vector<std::string> names;
  for (const KernelCase& c : shape_cases(device, true, kMemory, shapes)) names.push_back(c.name);
  return names;
}

TEST(BenchShapes, AreNamedAsTheSuiteNamesThem) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of_shapes(DeviceKind::cuda, {"linear:m=4096,n=11008,k=512,dtype=fp16"}),
            (Names{"linear/fp16/4096x512x11008", "linear/transposed/fp16/4096x512x11008",
                   "linear/bias/fp16/4096x512x11008"}));
  EXPECT_EQ(names_of_shapes(DeviceKind::cuda, {"linear/bias:m=3,n=5,k=4"}), Names{"linear/bias/bf16/3x4x5"});
  EXPECT_EQ(names_of_shapes(DeviceKind::cuda, {"linear:m=32,n=16,k=64,dtype=fp8"}), Names{"linear/fp8/32x64x16"});
  EXPECT_EQ(names_of_shapes(DeviceKind::cuda, {"linear:m=8,k=4,n=5,experts=3", "route:tokens=9,experts=6,choices=2"}),
            (Names{"linear/experts/bf16/3x8x4x5", "route/bf16/9x6_k2", "route/expert_choice/bf16/9x6_k2",
                   "route/base/bf16/9x6_k1", "route/gumbel/bf16/9x6"}));
  EXPECT_EQ(names_of_shapes(DeviceKind::cpu, {"gradient_norm:elements=7", "gradient_norm:elements=7"}),
            Names{"gradient_norm/fp32/7"})
      << "twice is once";
}

// Every kernel of the suite is a shape, and the shape of its sizes is that kernel: what its op and tensors are, too.
TEST(BenchShapes, HoldEveryKernelOfTheSuite) {
  const std::vector<KernelCase> suite = kernel_cases(DeviceKind::cpu, false);
  std::set<std::string> left;
  for (const KernelCase& c : suite) left.insert(c.name);
  std::set<std::string> kinds;
  for (const KernelCase& c : suite) kinds.insert(c.name.substr(0, c.name.find('/')));
  for (const std::string& kind : kinds) {
    const std::vector<std::string> axes = axes_of(
        std::ranges::find_if(suite, [&](const KernelCase& c) { return c.name.starts_with(kind + "/"); })->op.kind);
    std::string text = kind + ":";
    for (const std::string& axis : axes) {
      const bool is_attention_axis = axes.back() == "head_dim";
      const std::vector<std::pair<std::string, int>> usual{{"m", 64},
                                                           {"k", 512},
                                                           {"n", 512},
                                                           {"batch", is_attention_axis ? 1 : 2},
                                                           {"sequence", is_attention_axis ? 128 : 64},
                                                           {"groups", 4},
                                                           {"group_heads", 1},
                                                           {"head_dim", 64},
                                                           {"hidden", 512},
                                                           {"vocab", 4096},
                                                           {"tokens", 64},
                                                           {"experts", axes[0] == "m" ? 1 : 8},
                                                           {"choices", 2},
                                                           {"elements", 1 << 18}};
      for (const auto& [name, size] : usual)
        if (name == axis) text += (text.back() == ':' ? "" : ",") + name + "=" + std::to_string(size);
    }
    for (const KernelCase& c : shape_cases(DeviceKind::cpu, false, kMemory, {parse_shape(text)})) {
      const auto same = std::ranges::find_if(suite, [&](const KernelCase& s) { return s.name == c.name; });
      ASSERT_NE(same, suite.end()) << text << " gives " << c.name;
      EXPECT_EQ(bytes(c.op, c.tensors), bytes(same->op, same->tensors)) << c.name;
      EXPECT_EQ(flops(c.op, c.tensors), flops(same->op, same->tensors)) << c.name;
      left.erase(c.name);
    }
  }
  for (const std::string& name : left)
    EXPECT_TRUE(name.find("256") != std::string::npos || name.find("128") != std::string::npos ||
                name.find("288358") != std::string::npos)
        << name << " is of the suite's first sizes";
}

TEST(BenchShapes, RunOnTheCpuAtOddSizes) {
  std::vector<Shape> shapes;
  for (const char* text :
       {"linear:m=3,k=5,n=7", "attention:batch=1,sequence=5,groups=1,group_heads=3,head_dim=6",
        "norm:batch=1,sequence=1,hidden=3", "cross_entropy:batch=1,sequence=3,vocab=2", "adam:elements=1",
        "linear:m=3,k=5,n=7,experts=2", "permute:tokens=5,experts=3,choices=2,hidden=7",
        "route:tokens=5,experts=3,choices=2", "softmax:batch=1,sequence=3,groups=1,group_heads=1,head_dim=2"})
    shapes.push_back(parse_shape(text));
  for (const KernelCase& c : shape_cases(DeviceKind::cpu, false, kMemory, shapes)) {
    const std::unique_ptr<Backend> backend = make_cpu_backend();
    Operands operands(*backend, c);
    ASSERT_NO_THROW(operands.run()) << c.name;
    for (const Operand& written : operands.writes())
      EXPECT_FALSE(backend->has_nan({written.data, written.tensor->dtype, 0, written.tensor->elements()})) << c.name;
  }
}

TEST(BenchShapes, SayWhatIsWrong) {
  const auto refusal = [](const std::string& text, DeviceKind device = DeviceKind::cpu) -> std::string {
    try {
      shape_cases(device, true, kMemory, {parse_shape(text)});
    } catch (const InputError& error) {
      return error.what();
    }
    return "none";
  };
  const auto says = [&](const std::string& text, const std::string& what, DeviceKind device = DeviceKind::cpu) {
    EXPECT_NE(refusal(text, device).find(what), std::string::npos) << text << ": " << refusal(text, device);
  };
  says("linear", "KERNEL:AXIS=SIZE");
  says("linear:", "KERNEL:AXIS=SIZE");
  says("linear:m", "KERNEL:AXIS=SIZE");
  says("linaer:m=1,k=1,n=1", "(did you mean \"linear\"?)");
  says("linear/bais:m=1,k=1,n=1", "(did you mean \"linear/bias\"?)");
  says("norm:batch=1,sequence=1,hiden=1", "(did you mean \"hidden\"?)");
  says("linear:m=1,k=1", "no n");
  says("linear:m=1,k=1,n=1,m=2", "m twice");
  says("linear:m=0,k=1,n=1", "a size from 1 to 2147483647");
  says("linear:m=2147483648,k=1,n=1", "a size from 1 to 2147483647");
  says("linear:m=1.5,k=1,n=1", "a whole number");
  says("linear:m=1,k=1,n=1,dtype=bf16", "found \"bf16\", expected fp32");
  says("adam:elements=1,dtype=fp16", "expected bf16", DeviceKind::cuda);
  says("norm:batch=1,sequence=1,hidden=16,dtype=fp8", "expected bf16, fp16, fp32", DeviceKind::cuda);
  says("linear:m=1,k=1,n=1,dtype=fp8", "multiples of 16", DeviceKind::cuda);
  says("linear:m=1000000,k=1000000,n=1000000", "found 10.91 TiB of operands of linear/fp32/1000000x1000000x1000000");
  says("attention:batch=2147483647,sequence=2147483647,groups=2147483647,group_heads=2147483647,head_dim=2147483647",
       "at most the device's memory, 931.32 GiB");
}

TEST(BenchFacts, FindThePresetOfADevicesOwnName) {
  EXPECT_EQ(preset_named("NVIDIA H200"), "H200-SXM5-141GB");
  EXPECT_EQ(preset_named("NVIDIA H100 80GB HBM3"), "H100-SXM5-80GB");
  EXPECT_EQ(preset_named("NVIDIA A100-SXM4-80GB"), "A100-SXM4-80GB");
  EXPECT_EQ(preset_named("NVIDIA A100 80GB PCIe"), "A100-PCIe-80GB");
  EXPECT_EQ(preset_named("NVIDIA GeForce RTX 3090"), "RTX-3090");
  EXPECT_EQ(preset_named("NVIDIA RTX PRO 6000 Blackwell Server Edition"), "RTX-PRO-6000-Server");
  EXPECT_EQ(preset_named("AMD EPYC"), "AMD-EPYC");
  EXPECT_EQ(preset_named("Cray-1"), "");
  EXPECT_EQ(preset_named(""), "");
}

}  // namespace
}  // namespace orrery::bench
