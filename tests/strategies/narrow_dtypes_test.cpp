// Four bits an element: counted where only bytes matter, refused where a kernel or a rate would have to be known.
#include <gmock/gmock.h>

#include "realrun/executor.h"
#include "sim/base/error.h"
#include "tests/strategies/support.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

double moment_bytes(optimizer::MomentDtype dtype) {
  Scenario s = megatron_22b();
  s.plan.optimizer.moments = dtype;
  Program program;
  lower(s, program);
  double total = 0;
  for (const Tensor& t : running_layer(program).tensors)
    if (t.category == Category::optimizer_state && t.dtype != Dtype::fp32) total += static_cast<double>(t.bytes());
  return total;
}

std::string refusal(const Scenario& scenario) {
  try {
    Program program;
    lower(scenario, program);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(FourBits, MomentsTakeHalfOfWhatEightBitsTake) {
  const double eight = moment_bytes(optimizer::MomentDtype::fp8), four = moment_bytes(optimizer::MomentDtype::int4);
  EXPECT_GT(four, 0);
  EXPECT_DOUBLE_EQ(2 * four, eight);
}

TEST(FourBits, MomentsAreAdams) {
  Scenario s = megatron_22b();
  s.plan.optimizer.moments = optimizer::MomentDtype::int4;
  EXPECT_EQ(refusal(s), "");
  s.plan.optimizer.rule = optimizer::Rule::sgd_momentum;
  EXPECT_THAT(refusal(s), HasSubstr("/plan/optimizer_dtype"));
  EXPECT_THAT(refusal(s), HasSubstr("\"int4\""));
}

TEST(FourBits, MomentsAreNotRun) {
  Scenario s = megatron_22b();
  EXPECT_NO_THROW(check_runnable(s));
  s.plan.optimizer.moments = optimizer::MomentDtype::int4;
  EXPECT_THROW(check_runnable(s), InputError);
}

TEST(FourBits, ProductsAreRefusedWithASentence) {
  Scenario s = megatron_22b();
  s.plan.precision.mix = precision::Mix::fp4;
  EXPECT_THAT(refusal(s), HasSubstr("/plan/precision"));
  EXPECT_THAT(refusal(s), HasSubstr("no rate of fp4"));
}

}  // namespace
}  // namespace orrery
