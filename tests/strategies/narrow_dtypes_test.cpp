// Four bits an element: counted where only bytes matter, refused where a kernel or a rate would have to be known.
#include <gmock/gmock.h>

#include <array>

#include "realrun/executor.h"
#include "sim/base/error.h"
#include "sim/program/check.h"
#include "strategies/framework/framework.h"
#include "strategies/precision/precision.h"
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

TEST(FourBits, MomentsTakeHalfOfWhatEightBitsTake) {
  const double eight = moment_bytes(optimizer::MomentDtype::fp8), four = moment_bytes(optimizer::MomentDtype::int4);
  EXPECT_GT(four, 0);
  EXPECT_DOUBLE_EQ(2 * four, eight);
}

TEST(FourBits, MomentsAreAdams) {
  Scenario s = megatron_22b();
  s.plan.optimizer.moments = optimizer::MomentDtype::int4;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.plan.optimizer.rule = optimizer::Rule::sgd_momentum;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/optimizer_dtype"));
  EXPECT_THAT(refusal_of(s), HasSubstr("\"int4\""));
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
  EXPECT_EQ(refusal_of(s), "nothing");
  EXPECT_THROW(check_runnable(s), InputError);
  const auto refused = [&](const auto& change) {
    Scenario other = s;
    change(other.plan);
    EXPECT_THAT(refusal_of(other), HasSubstr("/plan/store_param_remainders"));
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
  EXPECT_EQ(wide.casts - narrow.casts, 4);  // of four matrices in the forward; the backward transposes them instead
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
  EXPECT_EQ(refusal_of(s), "nothing");
  EXPECT_THROW(check_runnable(s), InputError);
  s.plan.data.zero_stage = 2;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/enable_fsdp_float8_all_gather"));
  s.plan.data.zero_stage = 3;
  s.plan.precision.mix = precision::Mix::bf16;
  EXPECT_THAT(refusal_of(s), HasSubstr("no layer has precision \"fp8\""));
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

TEST(Nvfp4, IsRefusedWithoutUnitsForIt) {
  for (const auto& [node, device, other] : {std::array{"dgx-a100", "A100-SXM4-80GB", "\"bf16\" or \"fp16\""},
                                            {"dgx-h100", "H100-SXM5-80GB", "\"fp8\" or \"bf16\""},
                                            {"mi355x-8", "MI355X", "\"fp8\" or \"bf16\""}}) {
    Scenario s = scenario_of("llama-3-8b", node, 1);
    s.workload = {2048, 0, 8};
    s.plan.precision.mix = precision::Mix::nvfp4;
    EXPECT_THAT(refusal_of(s), HasSubstr("/plan/precision"));
    EXPECT_THAT(refusal_of(s), HasSubstr(std::string("no NVFP4 matrix units on ") + device));
    EXPECT_THAT(refusal_of(s), HasSubstr(other));
  }
}

Scenario llama_on_b200(precision::Mix mix) {
  Scenario s = scenario_of("llama-3-8b", "dgx-b200", 1);
  s.workload = {8192, 0, 64};
  s.plan.precision.mix = mix;
  return s;
}

TEST(Nvfp4, IsNotRun) {
  EXPECT_NO_THROW(check_runnable(llama_on_b200(precision::Mix::fp8)));
  EXPECT_THROW(check_runnable(llama_on_b200(precision::Mix::nvfp4)), InputError);
}

TEST(Nvfp4, IsNotGatheredAsFloat8) {
  Scenario s = llama_on_b200(precision::Mix::nvfp4);
  s.plan.data.zero_stage = 3;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.plan.data.float8_all_gather = true;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/enable_fsdp_float8_all_gather"));
}

// By hand, of Llama 3 8B (hidden 4096, MLP 14336): what is saved for the backward in fp8 and in nvfp4 differs in the
// four products' inputs alone, 1 byte an element against one copy of 4.5 bits.
TEST(Nvfp4, SavesTheColumnsOfEachProductsInput) {
  Program fp8, nvfp4;
  lower(llama_on_b200(precision::Mix::fp8), fp8);
  lower(llama_on_b200(precision::Mix::nvfp4), nvfp4);
  const double elements = 8192.0 * (3 * 4096 + 14336);
  EXPECT_DOUBLE_EQ(saved_bytes(running_layer(fp8)) - saved_bytes(running_layer(nvfp4)), elements * (8 - 4.5) / 8);
}

// Of an MLP that is repeated, neither copy of what it reads is kept: the inputs of two products remain.
TEST(Nvfp4, RepeatsTheColumnsOfARepeatedMlp) {
  const auto saved = [](precision::Mix mix) {
    Scenario s = llama_on_b200(mix);
    s.plan.recompute.mode = activation_recompute::Mode::selective;
    s.plan.recompute.modules = {static_cast<std::int64_t>(activation_recompute::Module::mlp)};
    Program p;
    lower(s, p);
    return saved_bytes(running_layer(p));
  };
  EXPECT_DOUBLE_EQ(saved(precision::Mix::fp8) - saved(precision::Mix::nvfp4), 8192.0 * (2 * 4096) * (8 - 4.5) / 8);
}

// Two copies of 4.5 bits beside each weight, once; where weights are gathered they come and go with them.
TEST(Nvfp4, KeepsTwoCopiesOfEachWeight) {
  const double weights = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336;
  for (const int stage : {0, 1, 3})
    for (const auto mode : {activation_recompute::Mode::none, activation_recompute::Mode::full}) {
      Scenario s = llama_on_b200(precision::Mix::nvfp4);
      s.plan.data.zero_stage = stage;
      s.plan.recompute.mode = mode;
      Program p;
      lower(s, p);
      const double norms = 2 * sizeof(float);  // the gradient norm's scalars
      EXPECT_NEAR(piece_memory(running_layer(p), 1).resident.of(Place::device, Category::workspace),
                  stage == 3 ? 0 : 2 * weights * 4.5 / 8, norms);
    }
}

double cast_bytes(const Piece& piece, const Block& block) {
  double total = 0;
  for (const Op& op : block.ops)
    if (op.kind == OpKind::cast && std::string_view(op.name).starts_with("quantise")) total += bytes(op, piece.tensors);
  return total;
}

// An element is read twice in 16 bits, for the tensor's maximum and for its copies, which are written once.
TEST(Nvfp4, QuantisingReadsTwiceAndWritesTwoCopies) {
  const double tokens = 8192, weights = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336;
  const double inputs = tokens * (3 * 4096 + 14336), outputs = tokens * (6144 + 4096 + 2 * 14336 + 4096);
  const double both = 2 * 2 + 2 * 4.5 / 8, one = 2 * 2 + 4.5 / 8;
  Scenario s = llama_on_b200(precision::Mix::nvfp4);
  Program p;
  lower(s, p);
  EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), both * (weights + inputs));
  EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).backward), both * outputs);
  for (const Block* block : {&running_layer(p).forward, &running_layer(p).backward})
    for (const Op& op : block->ops) {
      if (op.kind != OpKind::linear && op.kind != OpKind::linear_input_gradient &&
          op.kind != OpKind::linear_weight_gradient)
        continue;
      EXPECT_EQ(op.compute_dtype, Dtype::nvfp4);
      for (const int read : {0, 1})
        EXPECT_EQ(running_layer(p).tensors[op.reads[static_cast<std::size_t>(read)]].dtype, Dtype::nvfp4) << op.name;
    }

  // Gathered weights are quantised by rows for the forward, by columns for the backward.
  s.plan.data.zero_stage = 3;
  lower(s, p);
  EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), one * weights + both * inputs);
  EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).backward), one * weights + both * outputs);
  s.plan.data.zero_stage = 0;

  // A forward that is repeated writes no columns the first time.
  for (const auto mode : {activation_recompute::Mode::full, activation_recompute::Mode::selective_op}) {
    s.plan.recompute.mode = mode;
    lower(s, p);
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), both * weights + one * inputs);
  }
}

// Every Program is proven, and none saves more than in fp8.
using precision::Recipe;

Scenario llama_in_fp8(const char* cluster, Recipe recipe) {
  Scenario s = scenario_of("llama-3-8b", cluster, 1);
  s.workload = {8192, 0, 8};
  s.plan.precision.mix = precision::Mix::fp8;
  s.plan.precision.recipe = recipe;
  return s;
}

// By hand, bytes for an element in 16 bits: what its casts read and write. Hopper's products and their transposes read
// two copies, Blackwell's one, unless blocks share scales.
TEST(Fp8Recipes, ReadAndWriteWhatTheirScalesNeed) {
  const double tokens = 8192, weights = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336;
  const double inputs = tokens * (3 * 4096 + 14336), outputs = tokens * (6144 + 4096 + 2 * 14336 + 4096);
  struct Case {
    const char* cluster;
    Recipe recipe;
    double read, copy, copies;
  };
  const double block = 1 + 4.0 / 128, mx = 1 + 1.0 / 32;
  for (const auto& [cluster, recipe, read, copy, copies] :
       {Case{"dgx-h100", Recipe::delayed, 2, 1, 2}, Case{"dgx-h100", Recipe::tensorwise, 4, 1, 2},
        Case{"dgx-h100", Recipe::blockwise, 2, block, 2}, Case{"l40s-8", Recipe::delayed, 2, 1, 2},
        Case{"dgx-b200", Recipe::delayed, 2, 1, 1}, Case{"dgx-b200", Recipe::tensorwise, 4, 1, 1},
        Case{"dgx-b200", Recipe::blockwise, 2, block, 2}, Case{"dgx-b200", Recipe::mxfp8, 2, mx, 2}}) {
    SCOPED_TRACE(std::string(cluster) + " " + std::string(precision::kRecipeNames[static_cast<std::size_t>(recipe)]));
    const double both = read + copies * copy, one = read + copy;
    Scenario s = llama_in_fp8(cluster, recipe);
    Program p;
    lower(s, p);
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), both * (weights + inputs));
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).backward), both * outputs);
    const double scalars = 2 * sizeof(float);
    EXPECT_NEAR(piece_memory(running_layer(p), 1).resident.of(Place::device, Category::workspace),
                copies * copy * weights, scalars);
    EXPECT_TRUE(check(p).empty());

    // Gathered weights are quantised for each block, in the copy that it reads.
    s.plan.data.zero_stage = 3;
    lower(s, p);
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), one * weights + both * inputs);
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).backward),
                     (copies == 2 ? one * weights : 0) + both * outputs + (copies == 1 ? one * weights : 0));
    s.plan.data.zero_stage = 0;

    // A forward that is repeated writes no second copies the first time.
    s.plan.recompute.mode = activation_recompute::Mode::full;
    lower(s, p);
    EXPECT_DOUBLE_EQ(cast_bytes(running_layer(p), running_layer(p).forward), both * weights + one * inputs);
  }
}

// torch.compile finds a tensor's maximum in the kernel that writes it, unless that is a product or attention.
TEST(Fp8Recipes, CompilersFindMaximaInTheKernelsThatTheyMake) {
  Scenario s = llama_in_fp8("dgx-b200", Recipe::tensorwise);
  s.plan.framework.stack = framework::Stack::fsdp_compiled;
  Program p;
  lower(s, p);
  std::vector<int> passes;
  for (const Op& op : running_layer(p).forward.ops)
    if (std::string_view(op.name) == "quantise") passes.push_back(op.passes);
  EXPECT_THAT(passes, ::testing::ElementsAre(1, 2, 1, 1));  // behind a norm, attention, a norm, SwiGLU
}

// Frozen weights that are kept in fp8 have no second copy: each backward transposes them.
TEST(Fp8Recipes, FrozenWeightsAreTransposedWhereTheyAreRead) {
  Scenario s = llama_in_fp8("dgx-h100", Recipe::delayed);
  s.plan.data.zero_stage = 1;
  s.plan.data.fp8_param_gather = true;
  const auto lowered = [&](std::int64_t rank) {
    s.plan.lora.rank = rank;
    Program p;
    lower(s, p);
    EXPECT_TRUE(check(p).empty());
    return p;
  };
  const double weights = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336, scalars = 2 * sizeof(float);
  const auto resident = [](const Program& p) {
    return piece_memory(running_layer(p), 1).resident.of(Place::device, Category::workspace);
  };
  const auto transposed = [](const Block& block, When when) {
    return std::ranges::count_if(
        block.ops, [&](const Op& op) { return std::string_view(op.name) == "transpose_weight" && op.when == when; });
  };
  const Program trained = lowered(0), frozen = lowered(8);
  EXPECT_NEAR(resident(trained), weights, scalars);
  EXPECT_EQ(transposed(running_layer(trained).forward, When::first_micro_batch), 4);
  EXPECT_NEAR(resident(frozen), 0, scalars);
  EXPECT_EQ(transposed(running_layer(frozen).forward, When::first_micro_batch), 0);
  // The first layer's QKV has no input gradient: the embedding is frozen, too.
  EXPECT_EQ(transposed(running_layer(frozen).backward, When::every_micro_batch), 3);
}

TEST(Fp8Recipes, AreTheStacksUnlessThePlanSaysSo) {
  Scenario s = llama_in_fp8("dgx-h100", Recipe::automatic);
  EXPECT_EQ(precision::recipe_of(s.plan), Recipe::delayed);
  s.plan.framework.stack = framework::Stack::fsdp;
  EXPECT_EQ(precision::recipe_of(s.plan), Recipe::tensorwise);
  s.plan.precision.recipe = Recipe::blockwise;
  EXPECT_EQ(precision::recipe_of(s.plan), Recipe::blockwise);
}

TEST(Fp8Recipes, AreRefusedWhereTheyCannotBe) {
  for (const char* node : {"dgx-h100", "l40s-8", "mi300x-8"})
    EXPECT_THAT(refusal_of(llama_in_fp8(node, Recipe::mxfp8)), HasSubstr("no matrix units scale MXFP8")) << node;
  Scenario s = llama_in_fp8("dgx-b200", Recipe::mxfp8);
  s.plan.data.zero_stage = 1;
  s.plan.data.fp8_param_gather = true;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/fp8_param_gather"));
  s.plan.data.fp8_param_gather = false;
  s.plan.data.zero_stage = 3;
  s.plan.data.float8_all_gather = true;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/enable_fsdp_float8_all_gather"));
  s.plan.data.float8_all_gather = false;
  EXPECT_EQ(refusal_of(s), "nothing");
  EXPECT_THROW(check_runnable(s), InputError);
  s.plan.precision.mix = precision::Mix::bf16;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/fp8_recipe"));
}

// Tokens travel to experts in blocks of 128. The first product reads them so; the transposed copy is of the numbers
// that they stand for.
TEST(Fp8Recipes, ComposeWithEveryLayout) {
  for (const Recipe recipe : {Recipe::delayed, Recipe::tensorwise, Recipe::blockwise, Recipe::mxfp8})
    for (const bool fp8_dispatch : {false, true})
      for (const int tensor : {1, 2}) {
        Scenario s = scenario_of("mixtral-8x7b", recipe == Recipe::mxfp8 ? "dgx-b200" : "dgx-h100", 1);
        s.workload = {2048, 0, 8};
        s.plan.precision.mix = precision::Mix::fp8;
        s.plan.precision.recipe = recipe;
        s.plan.expert.degree = 4;
        s.plan.expert.fp8_dispatch = fp8_dispatch;
        s.plan.tensor.degree = tensor;
        s.plan.tensor.sequence_parallel = tensor > 1;
        s.plan.recompute.mode = activation_recompute::Mode::selective;
        Program p;
        lower(s, p);
        EXPECT_TRUE(check(p).empty());
        const Piece& layer = piece_named(p, "expert_layer");
        for (const Block* block : {&layer.forward, &layer.backward})
          for (std::size_t i = 0; i < block->ops.size(); ++i) {
            const Op& op = block->ops[i];
            if (op.passes > 0) continue;
            ASSERT_GT(i, 0u);
            EXPECT_EQ(block->ops[i - 1].reads[0], op.reads[0]) << op.name;
            EXPECT_GT(block->ops[i - 1].passes, 0) << op.name;
          }
      }
}

TEST(Nvfp4, ComposesWithEveryLayout) {
  std::size_t proven = 0;
  for (const std::int64_t t : {1, 2})
    for (const std::int64_t c : {1, 2})
      for (const std::int64_t p : {1, 2})
        for (int schedule = 0; schedule < 5; ++schedule)
          for (const int zero : {0, 1, 3})
            for (int mode = 0; mode < 4; ++mode)
              for (const bool overlap : {false, true}) {
                Scenario s = llama_on_b200(precision::Mix::nvfp4);
                s.plan.tensor.degree = t;
                s.plan.tensor.sequence_parallel = t > 1;
                s.plan.tensor.overlap = overlap;
                s.plan.context.degree = c;
                s.plan.pipeline.degree = p;
                s.plan.pipeline.schedule = static_cast<pipeline_parallel::ScheduleKind>(schedule);
                if (s.plan.pipeline.schedule == pipeline_parallel::ScheduleKind::interleaved)
                  s.plan.pipeline.virtual_stages = 2;
                s.plan.data.zero_stage = zero;
                s.plan.recompute.mode = static_cast<activation_recompute::Mode>(mode);
                if ((overlap && t == 1) || (p == 1 && schedule != 1)) continue;
                Program nvfp4, fp8;
                if (refusal_of(s) != "nothing") continue;
                lower(s, nvfp4);
                for (const Violation& v : check(nvfp4)) FAIL() << v.text;
                s.plan.precision.mix = precision::Mix::fp8;
                lower(s, fp8);
                EXPECT_LE(saved_bytes(running_layer(nvfp4)), saved_bytes(running_layer(fp8))) << t << c << p << mode;
                ++proven;
              }
  EXPECT_GT(proven, 100u);
}

// ---- fp8_param_gather, fp4_param_gather ----

constexpr std::array kNarrowMixes{precision::Mix::fp8, precision::Mix::nvfp4};

Scenario with_quantised_weights(precision::Mix mix) {
  Scenario s = llama_on_b200(mix);
  s.plan.data.zero_stage = 1;
  (mix == precision::Mix::fp8 ? s.plan.data.fp8_param_gather : s.plan.data.fp4_param_gather) = true;
  return s;
}
Scenario with_wide_weights(precision::Mix mix) {
  Scenario s = with_quantised_weights(mix);
  s.plan.data.fp8_param_gather = s.plan.data.fp4_param_gather = false;
  return s;
}
double bytes_an_element(precision::Mix mix) { return mix == precision::Mix::fp8 ? 1 : 4.5 / 8; }

// Of a layer of Llama 3 8B: QKV of 32 + 2 x 8 heads of 128, the output projection, a gated MLP; two norms.
constexpr double kMatrices = 4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3 * 4096.0 * 14336, kNorms = 2 * 4096.0;
constexpr double kShards = 8;

// By hand: matrices in the products' dtype alone, in NVFP4 by rows and by columns; norms in bf16; gradients and the
// optimizer's states in fp32 as ever.
TEST(ParamGather, KeepsNoWeightsOfSixteenBits) {
  for (const auto mix : kNarrowMixes) {
    const Program narrow = proven(with_quantised_weights(mix)), wide = proven(with_wide_weights(mix));
    const auto bytes_of = [](const Program& p, Category c) {
      return piece_memory(running_layer(p), 1).resident.of(Place::device, c);
    };
    const double columns = mix == precision::Mix::nvfp4 ? kMatrices * 4.5 / 8 : 0;
    EXPECT_DOUBLE_EQ(bytes_of(narrow, Category::parameter), kMatrices * bytes_an_element(mix) + kNorms * 2);
    EXPECT_NEAR(bytes_of(narrow, Category::workspace), columns, 64) << "the gradient norm's scalars";
    EXPECT_DOUBLE_EQ(bytes_of(wide, Category::parameter), (kMatrices + kNorms) * 2);
    EXPECT_NEAR(bytes_of(wide, Category::workspace), columns + kMatrices * bytes_an_element(mix), 64);
    for (const Program* p : {&narrow, &wide}) {
      EXPECT_DOUBLE_EQ(bytes_of(*p, Category::gradient), (kMatrices + kNorms) * 4);
      EXPECT_DOUBLE_EQ(bytes_of(*p, Category::optimizer_state), (kMatrices + kNorms) * 12 / kShards);
    }
    EXPECT_EQ(saved_bytes(running_layer(narrow)), saved_bytes(running_layer(wide)));
    for (const char* end : {"embedding", "head"})
      for (const Tensor& t : piece_named(narrow, end).tensors)
        EXPECT_FALSE(t.dtype == Dtype::fp8 || t.dtype == Dtype::nvfp4) << end << " " << t.name;
  }
}

struct Collectives {
  double bytes = 0;  // of the whole
  std::vector<const Op*> ops;
};
Collectives collectives_of(const Piece& piece, const Block& block, OpKind kind) {
  Collectives found;
  for (const Op& op : block.ops) {
    if (op.kind != kind) continue;
    found.ops.push_back(&op);
    found.bytes += bytes(op, piece.tensors);
  }
  return found;
}

// Matrices in the products' dtype, layer by layer under the first forward; norms of all layers at once after the
// update. Gradients are reduced as ever.
TEST(ParamGather, MovesTheQuantisedBytes) {
  for (const auto mix : kNarrowMixes)
    for (const bool overlap : {true, false}) {
      Scenario with = with_quantised_weights(mix), without = with_wide_weights(mix);
      with.plan.data.overlap_parameters = without.plan.data.overlap_parameters = overlap;
      const Program narrow = proven(with), wide = proven(without);
      const auto gathers = [](const Program& p, bool in_forward) {
        const Piece& layer = running_layer(p);
        return collectives_of(layer, in_forward ? layer.forward : layer.update, OpKind::all_gather);
      };
      const double matrices = kMatrices * bytes_an_element(mix), norms = kNorms * 2;
      EXPECT_DOUBLE_EQ(gathers(narrow, true).bytes, overlap ? matrices : 0);
      EXPECT_DOUBLE_EQ(gathers(narrow, false).bytes, overlap ? norms : matrices + norms);
      EXPECT_DOUBLE_EQ(gathers(wide, overlap).bytes, kMatrices * 2 + norms);
      for (const Op* op : gathers(narrow, true).ops) EXPECT_EQ(op->when, When::first_micro_batch);
      for (const Op* op : gathers(narrow, false).ops) EXPECT_EQ(op->every, kAllInstances);
      const auto reduced = [](const Program& p) {
        return collectives_of(running_layer(p), running_layer(p).backward, OpKind::reduce_scatter).bytes;
      };
      EXPECT_DOUBLE_EQ(reduced(narrow), reduced(wide));
      EXPECT_DOUBLE_EQ(reduced(narrow), (kMatrices + kNorms) * 4);
    }
}

// No forward quantises weights; the update does, from a rank's part of the fp32 copies, and writes no other weights.
TEST(ParamGather, QuantisesInTheUpdate) {
  const double inputs = 8192.0 * (3 * 4096 + 14336), own = kMatrices / kShards;
  for (const auto mix : kNarrowMixes) {
    const Program p = proven(with_quantised_weights(mix));
    const Piece& layer = running_layer(p);
    const double narrow = bytes_an_element(mix), copies = mix == precision::Mix::nvfp4 ? 2 : 1;
    EXPECT_DOUBLE_EQ(cast_bytes(layer, layer.forward), inputs * copies * (2 + narrow));
    double transposed = 0, cast = 0, adam = 0;
    for (const Op& op : layer.forward.ops)
      if (op.name == std::string_view("transpose_weight")) {
        EXPECT_EQ(op.when, When::first_micro_batch);
        transposed += bytes(op, layer.tensors);
      }
    EXPECT_DOUBLE_EQ(transposed, mix == precision::Mix::nvfp4 ? kMatrices * 2 * 4.5 / 8 : 0);
    for (const Op& op : layer.update.ops) {
      if (op.kind == OpKind::cast) cast += bytes(op, layer.tensors);
      if (op.kind == OpKind::adam) adam += bytes(op, layer.tensors);
    }
    EXPECT_DOUBLE_EQ(cast, own * (4 + narrow));
    EXPECT_NEAR(adam, (own + kNorms / kShards) * (4 + 2 * 12) + kNorms / kShards * 2, 64) << "and the norm";
    for (const Block* block : {&layer.forward, &layer.backward})
      for (const Op& op : block->ops)
        if (op.kind == OpKind::linear || op.kind == OpKind::linear_input_gradient) {
          EXPECT_EQ(layer.tensors[op.reads[1]].dtype, op.compute_dtype) << op.name;
        }
    EXPECT_DOUBLE_EQ(p.model.flops_per_step, proven(with_wide_weights(mix)).model.flops_per_step);
  }
}

TEST(ParamGather, IsRefusedWhereItCannotBe) {
  for (const auto mix : kNarrowMixes) {
    const bool fp8 = mix == precision::Mix::fp8;
    const std::string field = fp8 ? "/plan/fp8_param_gather" : "/plan/fp4_param_gather";
    EXPECT_EQ(refusal_of(with_quantised_weights(mix)), "nothing");
    const auto expect = [&](const auto& change, const std::string& where, const char* words) {
      Scenario s = with_quantised_weights(mix);
      change(s.plan);
      EXPECT_THAT(refusal_of(s), HasSubstr(where));
      EXPECT_THAT(refusal_of(s), HasSubstr(words));
    };
    expect([](Plan& p) { p.precision.mix = precision::Mix::bf16; }, field, "no layer has precision");
    expect([&](Plan& p) { p.precision.mix = fp8 ? precision::Mix::nvfp4 : precision::Mix::fp8; }, field,
           fp8 ? "\"fp8\"" : "\"nvfp4\"");
    expect([](Plan& p) { p.data.zero_stage = 0; }, field, "zero_stage 0");
    expect([](Plan& p) { p.data.zero_stage = 3; }, field,
           fp8 ? "enable_fsdp_float8_all_gather" : "gathered in 16 bits");
    expect([](Plan& p) { p.framework.stack = framework::Stack::deepspeed; }, field, "framework \"deepspeed\"");
    expect([](Plan& p) { p.optimizer.master_parameters = false; }, field, "master_parameters");
    expect([](Plan& p) { p.offload.optimizer = true; }, field, "optimizer_offload");
    expect([](Plan& p) { p.optimizer.parameter_remainders = true; }, "/plan/store_param_remainders",
           fp8 ? "fp8_param_gather" : "fp4_param_gather");
    try {
      check_runnable(with_quantised_weights(mix));
      ADD_FAILURE() << field;
    } catch (const InputError& error) {
      EXPECT_THAT(error.where().pointer, fp8 ? field : "/plan/precision");
    }
  }
}

// A layer in bf16 keeps its 16 bits, and buckets of its own; so do the layers between.
TEST(ParamGather, LeavesLayersOfSixteenBitsAlone) {
  Scenario s = with_quantised_weights(precision::Mix::fp8);
  for (const std::int64_t layer : {0, 31}) {
    LayerRange range{.from = layer, .to = layer + 1, .plan = s.plan};
    range.plan.precision.mix = precision::Mix::bf16;
    s.plan.layers.push_back(range);
  }
  const Program p = proven(s);
  double weights = 0, layers = 0;
  std::vector<std::uint16_t> families;
  for (const auto& run : p.stages[0][0].runs) {
    const Piece& piece = p.pieces[run.piece];
    if (piece.layers == 0) continue;
    layers += static_cast<double>(run.count);
    weights += static_cast<double>(run.count) * piece_memory(piece, 1).resident.of(Place::device, Category::parameter);
    families.push_back(piece.variant_of);
  }
  EXPECT_EQ(layers, 32);
  EXPECT_DOUBLE_EQ(weights, kMatrices * (30 * 1 + 2 * 2) + kNorms * 2 * 32);
  ASSERT_EQ(families.size(), 3u);
  EXPECT_EQ(families[0], families[2]);
  EXPECT_NE(families[0], families[1]);
}

// What no collective gathers after it has been quantised in parts is found out, and a cast of other parts.
TEST(ParamGather, IsProven) {
  const auto violations = [](const auto& change) {
    Program p = proven(with_quantised_weights(precision::Mix::fp8));
    for (Piece& piece : p.pieces)
      if (std::string_view(piece.name) == "layer") change(piece);
    std::string text;
    for (const Violation& v : check(p)) text += v.text + "\n";
    return text;
  };
  EXPECT_THAT(violations([](Piece& piece) {
                std::erase_if(piece.forward.ops, [](const Op& op) { return op.kind == OpKind::all_gather; });
              }),
              HasSubstr("not gathered since"));
  EXPECT_THAT(violations([](Piece& piece) {
                for (Op& op : piece.update.ops)
                  if (op.kind == OpKind::cast) op.writes[0] = piece.tensors[op.writes[0]].alias_of;
              }),
              HasSubstr("expected the same"));
}

TEST(ParamGather, ComposesWithEveryLayout) {
  std::size_t lowered = 0;
  for (const auto mix : kNarrowMixes)
    for (const std::int64_t t : {1, 2})
      for (const std::int64_t c : {1, 2})
        for (const std::int64_t p : {1, 2})
          for (int schedule = 0; schedule < 5; ++schedule)
            for (const int zero : {1, 2})
              for (int mode = 0; mode < 4; ++mode)
                for (const std::int64_t shards : {0, 2}) {
                  Scenario s = with_quantised_weights(mix);
                  s.plan.tensor.degree = t;
                  s.plan.tensor.sequence_parallel = t > 1;
                  s.plan.context.degree = c;
                  s.plan.pipeline.degree = p;
                  s.plan.pipeline.schedule = static_cast<pipeline_parallel::ScheduleKind>(schedule);
                  if (s.plan.pipeline.schedule == pipeline_parallel::ScheduleKind::interleaved)
                    s.plan.pipeline.virtual_stages = 2;
                  s.plan.data.zero_stage = zero;
                  s.plan.data.shard_degree = shards;
                  s.plan.recompute.mode = static_cast<activation_recompute::Mode>(mode);
                  if ((p == 1 && schedule != 1) || refusal_of(s) != "nothing") continue;
                  const Program narrow = proven(s);
                  s.plan.data.fp8_param_gather = s.plan.data.fp4_param_gather = false;
                  const Program wide = proven(s);
                  EXPECT_EQ(saved_bytes(running_layer(narrow)), saved_bytes(running_layer(wide)));
                  EXPECT_LT(device_bytes(piece_memory(running_layer(narrow), 1).resident),
                            device_bytes(piece_memory(running_layer(wide), 1).resident));
                  ++lowered;
                }
  EXPECT_GT(lowered, 200u);
}

// DeepSpeed runtime/engine.py, get_data_types; BLOOM's bf16 optimizer adds up in fp32.
// Megatron-LM's --activation-func-fp8-input-store: of two halves of the MLP's inner width a token keeps one byte each
// in place of two. What is stored is cast once each way.
TEST(ActivationInputs, InFp8TakeHalfTheBytesUntilTheBackward) {
  Scenario s = scenario_of("llama-3-8b", "dgx-h100", 1);
  s.workload = {2048, 0, 8};
  const auto saved = [](const Program& p) { return device_bytes(piece_memory(running_layer(p), 1).saved); };
  for (const precision::Mix mix : {precision::Mix::bf16, precision::Mix::fp8}) {
    s.plan.precision.mix = mix;
    s.plan.precision.fp8_activation_inputs = false;
    const Program wide = proven(s);
    s.plan.precision.fp8_activation_inputs = true;
    const Program p = proven(s);
    const double elements = 2.0 * static_cast<double>(s.model.ffn) * static_cast<double>(s.workload.sequence_length);
    EXPECT_EQ(saved(wide) - saved(p), elements);
    int casts = 0;
    for (const Block* block : {&running_layer(p).forward, &running_layer(p).backward})
      for (const Op& op : block->ops)
        casts += op.kind == OpKind::cast && std::string_view(op.name).ends_with("_activation_input");
    EXPECT_EQ(casts, 2);
  }
  s.model.activation = ActivationFunction::gelu;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/activation_func_fp8_input_store: found true, expected false unless the "
                                       "model's activation function is swiglu"));
}

// ---- fp8_dot_product_attention ----

// By hand, of Llama 3 8B: a cast reads 16 bits of queries, keys and values (48 heads of 128), and in the backward of
// the gradient of the context (32 heads). Where a scale is a tensor's own maximum, it reads them twice. The backward
// keeps the narrow copy in place of the 16 bits.
TEST(AttentionInFp8, ReadsNarrowOperandsAndWritesSixteenBits) {
  constexpr double kOperands = 8192.0 * 6144, kContext = 8192.0 * 4096;
  struct Case {
    Recipe recipe;
    Dtype operands;
    double read;
  };
  for (const auto& [recipe, operands, read] :
       {Case{Recipe::delayed, Dtype::fp8, 2}, Case{Recipe::tensorwise, Dtype::fp8, 4},
        Case{Recipe::blockwise, Dtype::fp8, 2}, Case{Recipe::mxfp8, Dtype::mxfp8, 2}}) {
    Scenario s = llama_in_fp8("dgx-b200", recipe);
    const Program wide = proven(s);
    s.plan.precision.fp8_attention = true;
    const Program p = proven(s);
    const Piece &layer = running_layer(p), &before = running_layer(wide);
    const double copy = static_cast<double>(bits_of(operands)) / 8 + (operands == Dtype::mxfp8 ? 1.0 / 32 : 0);
    EXPECT_DOUBLE_EQ(cast_bytes(layer, layer.forward), cast_bytes(before, before.forward) + (read + copy) * kOperands);
    EXPECT_DOUBLE_EQ(cast_bytes(layer, layer.backward), cast_bytes(before, before.backward) + (read + copy) * kContext);
    EXPECT_NEAR(saved_bytes(before) - saved_bytes(layer), (2 - copy) * kOperands, 8);
    int attentions = 0;
    for (const Block* block : {&layer.forward, &layer.backward})
      for (const Op& op : block->ops) {
        if (!is_attention(op.kind)) continue;
        ++attentions;
        EXPECT_EQ(layer.tensors[op.reads[queries_operand(op.kind)]].dtype, operands);
        EXPECT_EQ(layer.tensors[op.writes[0]].dtype, Dtype::bf16);
        if (op.kind == OpKind::attention_backward) {
          EXPECT_EQ(layer.tensors[op.reads[0]].dtype, operands);
          EXPECT_EQ(layer.tensors[op.reads[1]].dtype, Dtype::bf16);
        }
      }
    EXPECT_EQ(attentions, 2);
  }
}

// Keys travel in fp8, which halves their bytes; their gradients travel in 16 bits.
TEST(AttentionInFp8, MovesNarrowKeysAndWideGradients) {
  for (const std::string type : {"ring", "usp", "all_gather", "fpdt"}) {
    SCOPED_TRACE(type);
    Scenario s = llama_in_fp8("dgx-h100", Recipe::delayed);
    s.plan.context.degree = 4;
    s.plan.context.type = context_parallel::type_named(type);
    if (type == "usp") s.plan.usp.ulysses_degree = 2;
    std::array<std::map<std::string, double>, 2> moved;
    for (const bool narrow : {false, true}) {
      s.plan.precision.fp8_attention = narrow;
      const Program p = proven(s);
      const Piece& layer = running_layer(p);
      for (const Block* block : {&layer.forward, &layer.backward})
        for (const Op& op : block->ops) {
          if (op.stream != Stream::compute && is_communication(op.kind))
            moved[narrow ? 1 : 0][op.name] += static_cast<double>(layer.tensors[op.reads[0]].bytes());
          if (op.kind != OpKind::attention_backward) continue;
          for (const int gradient : {0, 1})
            EXPECT_EQ(layer.tensors[op.writes[static_cast<std::size_t>(gradient)]].dtype, Dtype::bf16);
        }
    }
    int halved = 0;
    for (const auto& [name, bytes] : moved[0]) {
      const double now = moved[1][name];
      EXPECT_TRUE(now == bytes || now == bytes / 2) << name << ": " << bytes << " and " << now;
      const bool of_gradients = name.ends_with("key_gradients") || name.ends_with("query_gradient");
      if (of_gradients) {
        EXPECT_EQ(now, bytes) << name;
      }
      halved += now == bytes / 2;
    }
    EXPECT_GE(halved, 1);
  }
}

TEST(AttentionInFp8, IsRefusedWhereNoKernelDoesIt) {
  Scenario s = llama_in_fp8("dgx-h100", Recipe::delayed);
  EXPECT_NO_THROW(check_gpus_store(proven(s)));
  s.plan.precision.fp8_attention = true;
  EXPECT_EQ(refusal_of(s), "nothing");
  EXPECT_THROW(check_gpus_store(proven(s)), InputError);
  s.plan.precision.mix = precision::Mix::bf16;
  s.plan.precision.recipe = Recipe::automatic;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/fp8_dot_product_attention: found true, expected false: no layer has"));
  s = llama_in_fp8("mi300x-8", Recipe::delayed);
  s.plan.precision.fp8_attention = true;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/fp8_dot_product_attention: found true, expected false on devices"));
  s = llama_in_fp8("dgx-h100", Recipe::delayed);
  s.plan.precision.fp8_attention = true;
  s.plan.framework.flash_attention = false;
  EXPECT_THAT(refusal_of(s),
              HasSubstr("/plan/flash_attention: found false, expected true with fp8_dot_product_attention"));
  s.plan.framework.flash_attention = true;
  s.plan.framework.attention_kernel = framework::AttentionKernel::flash_attention_3;
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/attention_kernel: found \"flash_attention_3\", expected \"cudnn\""));
  s.plan.framework.attention_kernel = framework::AttentionKernel::cudnn;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.cluster.device = find_device("RTX-5090");
  EXPECT_THAT(refusal_of(s), HasSubstr("/plan/fp8_dot_product_attention: found true, expected false on devices"));
  s.cluster.device = find_device("H100-SXM5-80GB");
  s.model.sliding_window = 1024;
  EXPECT_THAT(refusal_of(s), HasSubstr("whose attention has windows"));
  s = llama_in_fp8("dgx-b200", Recipe::mxfp8);
  s.plan.precision.fp8_attention = true;
  s.model.sliding_window = 1024;
  EXPECT_EQ(refusal_of(s), "nothing");
  s.workload.documents = "prolong64k";
  EXPECT_THAT(refusal_of(s), HasSubstr("except on Blackwell and without packed documents"));
}

TEST(GradientDtypes, AreTheStacksUnlessThePlanSaysSo) {
  using framework::Stack;
  using precision::GradientDtype;
  using precision::Mix;
  const auto dtype = [](Stack stack, Mix mix, std::int64_t zero_stage, GradientDtype given = GradientDtype::automatic) {
    Plan plan;
    plan.framework.stack = stack;
    plan.precision.mix = mix;
    plan.precision.gradients = given;
    plan.data.zero_stage = zero_stage;
    return framework::gradient_dtype(plan);
  };
  for (const std::int64_t stage : {1, 2, 3}) {
    EXPECT_EQ(dtype(Stack::deepspeed, Mix::bf16, stage), Dtype::bf16) << stage;
    EXPECT_EQ(dtype(Stack::deepspeed, Mix::fp8, stage), Dtype::bf16) << stage;
    EXPECT_EQ(dtype(Stack::deepspeed, Mix::fp16, stage), Dtype::fp16) << stage;
    EXPECT_EQ(dtype(Stack::deepspeed, Mix::fp32, stage), Dtype::fp32) << stage;
    EXPECT_EQ(dtype(Stack::deepspeed, Mix::bf16, stage, GradientDtype::fp32), Dtype::fp32) << stage;
    EXPECT_EQ(dtype(Stack::megatron_core, Mix::bf16, stage), Dtype::fp32) << stage;
    EXPECT_EQ(dtype(Stack::fsdp, Mix::bf16, stage), Dtype::fp32) << stage;
  }
  EXPECT_EQ(dtype(Stack::deepspeed, Mix::bf16, 0), Dtype::fp32);
  EXPECT_EQ(dtype(Stack::deepspeed, Mix::fp16, 0), Dtype::fp16);
  EXPECT_EQ(dtype(Stack::megatron_deepspeed, Mix::bf16, 1), Dtype::fp32);
  EXPECT_EQ(dtype(Stack::megatron_deepspeed, Mix::bf16, 3), Dtype::bf16);
  EXPECT_EQ(dtype(Stack::megatron_core, Mix::bf16, 1, GradientDtype::bf16), Dtype::bf16);
}

}  // namespace
}  // namespace orrery
