// Do kinds of memory-bound kernels have costs of their own, and do users' calibrations go before the bundled ones?
#include "sim/cost/user_calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/json_reader.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

Json mine() {
  return Json::parse(R"({
    "name": "mine", "source": "my bench", "date": "2026-01-01",
    "device": {"name": "mine", "vendor": "AMD", "architecture": "CPU", "fp32_flops_per_second": 1e11,
               "vector_flops_per_second": 1e11, "memory_bytes": 1e10, "memory_bytes_per_second": 1e10,
               "multiprocessors": 1, "pcie_bytes_per_second": 1e10, "source": "my bench"},
    "matmul": {"fp32": {"efficiency": 0.5, "memory_efficiency": 0.5, "fixed_seconds": 1e-6, "tiles": [[1, 1]]}},
    "memory": {"efficiency": 0.5, "fixed_seconds": 1e-6, "kinds": {
      "rotary": {"efficiency": 0.1, "fixed_seconds": 4e-6},
      "activation": {"efficiency": 0.2},
      "activation.gelu": {"efficiency": 0.05},
      "add+bias": {"efficiency": 0.25, "residual": {"points": 7, "median": 0.02}},
      "adam": {"efficiency": 0.4}}},
    "attention": {"default": "mine", "kernels": {"mine": {
      "forward_efficiency": 0.5, "backward_efficiency": 0.4, "half_head_dim": 64, "fixed_seconds": 1e-6}}},
    "host": {"processors": 4, "busy_share": 0.7}
  })");
}

Tensor flat(std::int64_t elements) {
  Tensor t;
  t.rank = 1;
  t.sizes[0] = elements;
  t.dtype = Dtype::fp32;
  return t;
}

// An op that reads so many tensors and writes one.
Op op_of(OpKind kind, std::size_t reads) {
  Op op;
  op.kind = kind;
  op.name = name_of(kind);
  for (std::size_t i = 0; i < reads; ++i) op.reads[i] = 0;
  op.writes[0] = 0;
  return op;
}

class MemoryKinds : public ::testing::Test {
 protected:
  UserCalibration user = read_user_calibration(mine(), {"mine.json", ""});
  KernelModel model{*user.device, *user.kernels};
  std::vector<Tensor> tensors{flat(250000)};  // 1 MB

  double seconds(const Op& op) { return model.cost(op, tensors).seconds; }
};

TEST_F(MemoryKinds, HaveTheirOwnEfficiencyAndFixedTime) {
  EXPECT_NEAR(seconds(op_of(OpKind::rotary, 1)), 4e-6 + 2e6 / 1e9, 1e-12);
  EXPECT_NEAR(seconds(op_of(OpKind::multiply, 2)), 1e-6 + 3e6 / 5e9, 1e-12) << "the common curve";
  EXPECT_NEAR(seconds(op_of(OpKind::adam, 4)), 5e6 / 4e9, 1e-12);
  EXPECT_NEAR(model.memory_seconds(op_of(OpKind::adam, 4), 1e9), 1e9 / 4e9, 1e-12);
}

TEST_F(MemoryKinds, AVariantWithoutNumbersTakesThoseOfItsKind) {
  Op gelu = op_of(OpKind::activation, 1), relu = gelu, with_bias = op_of(OpKind::activation, 2);
  gelu.function = with_bias.function = ActivationFunction::gelu;
  relu.function = ActivationFunction::relu;
  EXPECT_NEAR(seconds(gelu), 2e6 / 0.5e9, 1e-12);
  EXPECT_NEAR(seconds(relu), 2e6 / 2e9, 1e-12);
  EXPECT_NEAR(seconds(with_bias), 3e6 / 0.5e9, 1e-12);
  EXPECT_NEAR(seconds(op_of(OpKind::add, 3)), 4e6 / 2.5e9, 1e-12);
  EXPECT_NEAR(seconds(op_of(OpKind::add, 2)), 1e-6 + 3e6 / 5e9, 1e-12) << "no curve named add";
}

TEST_F(MemoryKinds, AreNamedByExplain) {
  EXPECT_THAT(model.explain(op_of(OpKind::add, 3), tensors), HasSubstr("of the kind add+bias, my bench; 7 points"));
  EXPECT_THAT(model.explain(op_of(OpKind::multiply, 2), tensors), ::testing::Not(HasSubstr("of the kind")));
}

TEST_F(MemoryKinds, EveryNameIsThatOfAnOp) {
  EXPECT_THAT(memory_curve_names(),
              IsSupersetOf({"norm", "norm+bias", "activation.swiglu", "activation_backward.gelu+bias",
                            "dropout_add+bias", "adam", "embedding_backward"}));
  Op op = op_of(OpKind::norm_backward, 4);
  EXPECT_EQ(memory_curve_name(op), "norm_backward");
  op.writes = {0, 0, 0, kNoTensor};
  EXPECT_EQ(memory_curve_name(op), "norm_backward+bias");
}

// Of each kind, function and bias: numbers under its name are that kernel's and nobody else's.
TEST(MemoryKindsFile, GivesEachVariantItsOwnNumbers) {
  Json json = mine();
  json["memory"]["kinds"] = Json::object();
  std::vector<std::string> names;
  for (const std::string& name : memory_curve_names()) {
    names.push_back(name);
    json["memory"]["kinds"][name] = {{"efficiency", 0.5}, {"fixed_seconds", 1e-6 * static_cast<double>(names.size())}};
  }
  const UserCalibration user = read_user_calibration(json, {"mine.json", ""});
  const KernelModel model(*user.device, *user.kernels);
  int variants = 0;
  for (const OpTraits& traits : op_traits::kTable) {
    if (!is_computation(traits.kind) || is_matmul(traits.kind) || is_attention(traits.kind)) continue;
    for (int variant = 0; variant < curves_of(traits); ++variant, ++variants) {
      const bool biased = traits.bias_read >= 0 || traits.bias_write >= 0;
      Op op;
      op.kind = traits.kind;
      op.function = static_cast<ActivationFunction>(variant / (biased ? 2 : 1) % kActivationFunctions);
      if (biased && variant % 2 == 1) op.reads.fill(0), op.writes.fill(0);
      const auto name = std::find(names.begin(), names.end(), memory_curve_name(op));
      ASSERT_NE(name, names.end()) << memory_curve_name(op);
      EXPECT_NEAR(model.memory_seconds(op, 0), 1e-6 * static_cast<double>(name - names.begin() + 1), 1e-12) << *name;
    }
  }
  EXPECT_GE(variants, static_cast<int>(op_traits::kTable.size()) - 16) << "kinds were skipped";
}

TEST(MemoryKindsFile, RefusesUnknownKinds) {
  Json json = mine();
  json["memory"]["kinds"]["rotery"] = {{"efficiency", 0.5}};
  try {
    read_user_calibration(json, {"mine.json", ""});
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().pointer, "/memory/kinds/rotery");
    EXPECT_EQ(error.nearest(), "rotary");
  }
}

TEST(AttentionCurve, ComputesTheMaskedPairsThatItDoesNotSkip) {
  Json json = mine();
  const UserCalibration skips = read_user_calibration(json, {});
  json["attention"]["kernels"]["mine"]["masked_share"] = 1;
  const UserCalibration computes = read_user_calibration(json, {});
  AttentionShape s{.batch = 1,
                   .heads = 4,
                   .kv_heads = 4,
                   .queries = 256,
                   .keys = 256,
                   .head_dim = 64,
                   .value_head_dim = 64,
                   .causal = true,
                   .window = 0};
  const double pairs = 4 * 256.0 * 256, flops = 4 * 64 * pairs;
  const KernelModel a(*skips.device, *skips.kernels), b(*computes.device, *computes.kernels);
  EXPECT_DOUBLE_EQ(a.attention_seconds(s, Dtype::fp32, false, flops, 0),
                   b.attention_seconds(s, Dtype::fp32, false, flops, 0));
  EXPECT_DOUBLE_EQ(b.attention_seconds(s, Dtype::fp32, false, flops / 2, 0),
                   a.attention_seconds(s, Dtype::fp32, false, flops, 0));
}

TEST(AttentionCurve, TheBackwardHasTheForwardsHalfHeadDimUnlessItHasItsOwn) {
  Json json = mine();
  const auto seconds = [&] {
    const UserCalibration user = read_user_calibration(json, {});
    AttentionShape s;
    s.head_dim = s.value_head_dim = 64;
    return KernelModel(*user.device, *user.kernels).attention_seconds(s, Dtype::fp32, true, 4e10, 0);
  };
  EXPECT_NEAR(seconds(), 4 * 1e-6 / 4 + 2.0, 1e-3);  // half of 40% of the peak
  json["attention"]["kernels"]["mine"]["backward_half_head_dim"] = 0;
  EXPECT_NEAR(seconds(), 1.0, 1e-3);
}

TEST(UserCalibration, ReplacesTheDeviceThatItDescribes) {
  const UserCalibration user = read_user_calibration(mine(), {"mine.json", ""});
  Cluster cluster = read_cluster(Json("dgx-h100"), {});
  user.apply(cluster);
  EXPECT_EQ(cluster.device.name, "mine");
  EXPECT_TRUE(user.kernels_of(cluster.device).measured);
  const Calibration borrowed = user.kernels_of(find_device("A100-SXM4-80GB"));
  EXPECT_FALSE(borrowed.measured);
  EXPECT_EQ(borrowed.borrowed_from, "mine");
  EXPECT_EQ(borrowed.name, "A100-SXM4-80GB");
}

TEST(UserCalibration, RefusesADeviceOfAnotherNameAndTwoOfTheSame) {
  Json json = mine();
  json["device"]["name"] = "yours";
  EXPECT_THROW(read_user_calibration(json, {}), InputError);
  const std::string path = testing::TempDir() + "/mine.json";
  { std::ofstream(path) << mine().dump(); }
  const std::vector<std::string> twice{path, path}, once{path};
  EXPECT_THROW(read_user_calibration(twice), InputError);
  EXPECT_TRUE(read_user_calibration(once).kernels.has_value());
  EXPECT_TRUE(read_user_calibration(std::span<const std::string>()).empty());
}

TEST(RankShare, FallsToTheBusyShareAndThenRanksTakeTurns) {
  const Calibration c = *read_user_calibration(mine(), {}).kernels;
  EXPECT_EQ(rank_share(c, 1), 1);
  EXPECT_NEAR(rank_share(c, 2), 0.9, 1e-12);
  EXPECT_NEAR(rank_share(c, 4), 0.7, 1e-12);
  EXPECT_NEAR(rank_share(c, 8), 0.35, 1e-12);
  EXPECT_EQ(rank_share(find_calibration(find_device("H100-SXM5-80GB")), 8), 1) << "a GPU is a rank's own";
}

TEST(TakeShare, MakesEverythingSlowerByTheSameFactor) {
  UserCalibration user = read_user_calibration(mine(), {});
  AttentionCurve& narrow = user.kernels->narrow_attention.emplace_back();
  narrow.dtype = Dtype::fp8, narrow.fixed_seconds = 1e-3;
  Device device = *user.device;
  Calibration calibration = *user.kernels;
  take_share(0.25, device, calibration);
  const KernelModel whole(*user.device, *user.kernels), quarter(device, calibration);
  const std::vector<Tensor> tensors{flat(250000)};
  for (const OpKind kind : {OpKind::rotary, OpKind::multiply, OpKind::adam, OpKind::add}) {
    const Op op = op_of(kind, 2);
    EXPECT_NEAR(quarter.cost(op, tensors).seconds, 4 * whole.cost(op, tensors).seconds, 1e-15) << name_of(kind);
  }
  const AttentionShape attention{1, 2, 2, 64, 64, 16, 16, false, 0};
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp8})
    EXPECT_NEAR(quarter.attention_seconds(attention, dtype, false, 1e6, 0) /
                    whole.attention_seconds(attention, dtype, false, 1e6, 0),
                4, 1e-9);
  for (const GemmShape shape : {GemmShape{1, 8, 8, 8}, GemmShape{1, 512, 512, 512}})
    EXPECT_NEAR(quarter.matmul_seconds(shape, Dtype::fp32, 1e5) / whole.matmul_seconds(shape, Dtype::fp32, 1e5), 4,
                1e-9);
  EXPECT_THROW(take_share(0, device, calibration), InputError);
  EXPECT_THROW(take_share(1.5, device, calibration), InputError);
}

}  // namespace
}  // namespace orrery
