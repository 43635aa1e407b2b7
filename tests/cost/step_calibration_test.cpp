// What a step is slower by than kernels and collectives alone: does each part reach what it is of, and nothing else?
#include "sim/cost/step_calibration.h"

#include <gtest/gtest.h>

namespace orrery {
namespace {

StepCalibration known_stack() {
  StepCalibration c;
  c.device_slowdown["known"] = 1.5;
  c.other_devices_slowdown = 1.25;
  c.collective_slowdown = 1.75;
  c.collective_host_ops = 0.5;
  c.update_host_ops = 2;
  c.expert_host_ops = 3;
  c.stacks["stack"] = {.host_seconds_per_op = 7e-6, .memory_bound_slowdown = 1.3};
  return c;
}

Calibration kernels_of(const char* stack, const char* name) {
  Device device;
  device.name = name;
  Calibration kernels;
  known_stack().apply(stack, device, kernels);
  return kernels;
}

TEST(StepSlowdown, OfProductsIsTheDevices) {
  EXPECT_DOUBLE_EQ(kernels_of("stack", "known").step_slowdown, 1.5);
  EXPECT_DOUBLE_EQ(kernels_of("stack", "other").step_slowdown, 1.25);
  EXPECT_EQ(kernels_of("none", "known").step_slowdown, 1);
}

// A device without steps is slowed no more than one that it cannot be slower than, and no less than one that cannot be
// slower than it.
TEST(StepSlowdown, OfADeviceWithoutStepsKeepsTheOrder) {
  StepCalibration c = known_stack();
  EXPECT_DOUBLE_EQ(c.slowdown_of("H200-NVL-141GB"), 1.25);
  c.device_slowdown["H100-SXM5-80GB"] = 1.1;
  EXPECT_DOUBLE_EQ(c.slowdown_of("H200-SXM5-141GB"), 1.1);
  EXPECT_DOUBLE_EQ(c.slowdown_of("GH200-141GB"), 1.1);
  EXPECT_DOUBLE_EQ(c.slowdown_of("H100-PCIe-80GB"), 1.25);
  // Each multiprocessor of the module is 1.13 times as fast.
  c.device_slowdown["GH200-141GB"] = 1.5;
  EXPECT_NEAR(c.slowdown_of("H100-PCIe-80GB"), 1.5 / 1.13, 2e-3);
  EXPECT_DOUBLE_EQ(c.slowdown_of("A100-SXM4-80GB"), 1.25);  // of another architecture
}

TEST(StepSlowdown, OfMemoryBoundKernelsIsTheStacks) {
  EXPECT_EQ(kernels_of("stack", "known").memory_bound_slowdown, 1.3);
  EXPECT_EQ(kernels_of("stack", "other").memory_bound_slowdown, 1.3);
  EXPECT_EQ(kernels_of("none", "known").memory_bound_slowdown, 1);
}

TEST(StepSlowdown, OfAnExpertsLaunchIsNoLessThanItsKernelsAlone) {
  EXPECT_DOUBLE_EQ(kernels_of("stack", "known").group_issue_seconds, 21e-6);
  EXPECT_EQ(kernels_of("none", "known").group_issue_seconds, -1);
  Calibration kernels;
  kernels.group_issue_seconds = 50e-6;
  known_stack().apply("stack", Device{}, kernels);
  EXPECT_EQ(kernels.group_issue_seconds, 50e-6);
}

TEST(StepSlowdown, OfCollectivesAndTheHostIsOfKnownStacksAlone) {
  for (const bool known : {true, false}) {
    CollectiveCalibration collectives;
    Runtime runtime;
    runtime.host_seconds_per_op = runtime.host_seconds_per_collective = runtime.host_seconds_per_update_op = 1e-6;
    known_stack().apply(known ? "stack" : "none", collectives);
    known_stack().apply(known ? "stack" : "none", runtime);
    EXPECT_EQ(collectives.step_slowdown, known ? 1.75 : 1);
    EXPECT_EQ(runtime.host_seconds_per_op, known ? 7e-6 : 1e-6);
    EXPECT_EQ(runtime.host_seconds_per_collective, known ? 3.5e-6 : 1e-6);
    EXPECT_EQ(runtime.host_seconds_per_update_op, known ? 14e-6 : 1e-6);
  }
}

}  // namespace
}  // namespace orrery
