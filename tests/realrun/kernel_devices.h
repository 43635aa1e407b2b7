// Tests that are asked of the CPU's kernels and of CUDA's: KERNEL_TEST(suite, name) is suite.name on those and
// Cudasuite.name on these (cuda_harness.h), of the latter alone on a device.
#pragma once

#include "tests/realrun/kernel_harness.h"

namespace orrery::cpu {

class KernelTest : public testing::Test {
 public:
  using Body = void (*)();
  KernelTest(Body body, RunKernel* runs_kernels) : body_(body), runs_kernels_(runs_kernels) {}
  void SetUp() override { before_ = std::exchange(kernel_runner(), runs_kernels_); }
  void TestBody() override { body_(); }
  void TearDown() override { kernel_runner() = before_; }

 private:
  const Body body_;
  RunKernel *const runs_kernels_, *before_ = nullptr;
};

// In fp32, products on the CPU: theirs are a library's. As run_kernel() otherwise.
RunKernel run_on_cuda;

// Returns true.
bool register_kernel_test(const char* suite, const char* name, const char* file, int line, KernelTest::Body body);

}  // namespace orrery::cpu

#define KERNEL_TEST(suite, name)                                                            \
  static void suite##_##name();                                                             \
  [[maybe_unused]] static const bool suite##_##name##_is_registered =                       \
      orrery::cpu::register_kernel_test(#suite, #name, __FILE__, __LINE__, suite##_##name); \
  static void suite##_##name()
