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

TEST(ParameterRemainders, NeedAMasterCopyOfBf16Parameters) {
  Scenario s = megatron_22b();
  s.plan.precision.mix = precision::Mix::bf16;
  s.plan.optimizer.parameter_remainders = true;
  EXPECT_EQ(refusal(s), "");
  EXPECT_THROW(check_runnable(s), InputError);
  const auto refused = [&](const auto& change) {
    Scenario other = s;
    change(other.plan);
    EXPECT_THAT(refusal(other), HasSubstr("/plan/store_param_remainders"));
  };
  refused([](Plan& plan) { plan.precision.mix = precision::Mix::fp16; });
  refused([](Plan& plan) { plan.optimizer.master_parameters = false; });
  refused([](Plan& plan) { plan.optimizer.rule = optimizer::Rule::sgd_momentum; });
  refused([](Plan& plan) {
    plan.framework.stack = framework::Stack::fsdp;
    plan.data.zero_stage = 3;
  });
}

Scenario fsdp_in_fp8() {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {2048, 0, 8};
  s.plan.data.zero_stage = 3;
  s.plan.framework.stack = framework::Stack::fsdp_compiled;
  s.plan.precision.mix = precision::Mix::fp8;
  return s;
}

struct Gathers {
  double bytes = 0;  // of the whole
  int gathers = 0, casts = 0;
};
Gathers gathers_of(const Piece& piece) {
  Gathers g;
  for (const Block* block : {&piece.forward, &piece.backward}) {
    g.casts += count_ops(*block, OpKind::cast);
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::all_gather) continue;
      g.bytes += static_cast<double>(piece.tensors[op.writes[0]].bytes());
      ++g.gathers;
    }
  }
  return g;
}

// Half the bytes, and weights that are quantised once, before their gather; the ends of the model as ever.
TEST(Fp8Gathers, MoveHalfOfWhatSixteenBitsTake) {
  Scenario s = fsdp_in_fp8();
  Program bf16, fp8;
  lower(s, bf16);
  s.plan.data.float8_all_gather = true;
  lower(s, fp8);
  const Gathers wide = gathers_of(running_layer(bf16)), narrow = gathers_of(running_layer(fp8));
  EXPECT_EQ(wide.gathers, 2);
  EXPECT_EQ(narrow.gathers, 2);
  EXPECT_DOUBLE_EQ(wide.bytes, 2 * narrow.bytes);
  EXPECT_EQ(wide.casts - narrow.casts, 8);  // of four matrices in both blocks
  EXPECT_EQ(gathers_of(piece_named(bf16, "head")).bytes, gathers_of(piece_named(fp8, "head")).bytes);
  EXPECT_DOUBLE_EQ(bf16.model.flops_per_step, fp8.model.flops_per_step);
  for (const Op& op : running_layer(fp8).forward.ops) {
    if (op.kind != OpKind::linear) continue;
    EXPECT_EQ(running_layer(fp8).tensors[op.reads[1]].dtype, Dtype::fp8) << op.name;
  }
}

TEST(Fp8Gathers, AreOfLayersThatAreGatheredAndMultiplyInFp8) {
  Scenario s = fsdp_in_fp8();
  s.plan.data.float8_all_gather = true;
  EXPECT_EQ(refusal(s), "");
  EXPECT_THROW(check_runnable(s), InputError);
  s.plan.data.zero_stage = 2;
  EXPECT_THAT(refusal(s), HasSubstr("/plan/enable_fsdp_float8_all_gather"));
  s.plan.data.zero_stage = 3;
  s.plan.precision.mix = precision::Mix::bf16;
  EXPECT_THAT(refusal(s), HasSubstr("no layer has precision \"fp8\""));
}

// One rank gathers nothing: its weights are quantised where they lie.
TEST(Fp8Gathers, OfOneRankAreNone) {
  Scenario s = fsdp_in_fp8();
  s.cluster = read_cluster({{"node", "dgx-h100"}, {"nodes", 1}, {"devices_per_node", 1}}, {});
  Program without, with;
  lower(s, without);
  s.plan.data.float8_all_gather = true;
  lower(s, with);
  EXPECT_EQ(gathers_of(running_layer(with)).casts, gathers_of(running_layer(without)).casts);
}

TEST(FourBits, ProductsAreRefusedWithASentence) {
  Scenario s = megatron_22b();
  s.plan.precision.mix = precision::Mix::fp4;
  EXPECT_THAT(refusal(s), HasSubstr("/plan/precision"));
  EXPECT_THAT(refusal(s), HasSubstr("no rate of fp4"));
}

}  // namespace
}  // namespace orrery
