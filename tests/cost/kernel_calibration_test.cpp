// Are the calibrations what they say they are, and are bad ones refused?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/hardware/presets.h"
#include "tests/cost/real.h"

namespace orrery {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;

Residual residual_of(const std::vector<double>& fitted_over_measured) {
  Residual r;
  r.points = static_cast<std::int64_t>(fitted_over_measured.size());
  std::vector<double> errors;
  double logs = 0, squares = 0;
  for (const double ratio : fitted_over_measured) {
    errors.push_back(std::fabs(ratio - 1));
    logs += std::log(ratio);
    squares += std::log(ratio) * std::log(ratio);
  }
  std::sort(errors.begin(), errors.end());
  const std::size_t n = errors.size();
  r.median = n % 2 == 1 ? errors[n / 2] : (errors[n / 2 - 1] + errors[n / 2]) / 2;
  r.percentile_90 = errors[std::min(n - 1, n * 9 / 10)];
  r.geometric_std = std::exp(std::sqrt(squares / static_cast<double>(n))) - 1;
  r.bias = std::exp(logs / static_cast<double>(n)) - 1;
  return r;
}

void expect_equal(const Residual& stated, const Residual& found, const std::string& what) {
  SCOPED_TRACE(what);
  constexpr double kRounding = 6e-5;  // the files state four digits
  EXPECT_EQ(stated.points, found.points);
  EXPECT_NEAR(stated.median, found.median, kRounding);
  EXPECT_NEAR(stated.percentile_90, found.percentile_90, kRounding);
  EXPECT_NEAR(stated.geometric_std, found.geometric_std, kRounding);
  EXPECT_NEAR(stated.bias, found.bias, kRounding);
}

const Json& published_kernels() {
  static const Json json = parse_json_file(ORRERY_SOURCE_DIR "/results/published/kernels.json");
  return json;
}

// As the fit does (realrun/calibrate/published_kernels.cpp, usable()).
bool usable(const Json& p) {
  const double m = p["shape"][1], n = p["shape"][2], k = p["shape"][3];
  const double width = p["dtype"] == "nvfp4" ? 4.5 / 8 : p["dtype"] == "fp8" ? 1 : 2;
  const double moved = width * (m * k + n * k) + 2 * m * n;
  if (p.contains("best_of_search")) return false;
  return p["device"] != "L40S" || moved > 96e6;
}

class EveryCalibration : public ::testing::TestWithParam<std::string> {
 protected:
  EveryCalibration()
      : device(find_device(GetParam())), calibration(find_calibration(device)), model(device, calibration) {}
  Device device;
  Calibration calibration;
  KernelModel model;
};

TEST_P(EveryCalibration, StatesTheMatmulResidualsThatItHas) {
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) {
    const MatmulCurve& curve = calibration.matmul[static_cast<std::size_t>(dtype)];
    if (!curve.measured) continue;
    std::vector<double> ratios;
    for (const Json& p : published_kernels()["points"]) {
      if (p["device"] != GetParam() || p["op"] != "matmul" || p["dtype"] != name_of(dtype) || !usable(p)) continue;
      const GemmShape s{p["shape"][0], p["shape"][1], p["shape"][2], p["shape"][3]};
      const double m = real(s.m), n = real(s.n), k = real(s.k), width = real(bytes_of(dtype, 16)) / 16;
      const double out = p.value("out", "bf16") == "fp32" ? 4 : 2;
      const double bytes = width * (m * k + k * n) + out * m * n * (p.contains("accumulate") ? 2 : 1);
      double seconds = model.matmul_seconds(s, dtype, bytes);
      if (curve.point_quantise_seconds > 0)
        seconds += curve.point_quantise_seconds +
                   curve.point_quantise_bytes * m * k / (device.memory_bytes_per_second * curve.memory_efficiency);
      ratios.push_back(seconds / p["seconds"].get<double>());
    }
    ASSERT_GE(ratios.size(), 30u);
    expect_equal(curve.residual, residual_of(ratios), name_of(dtype));
    EXPECT_LT(curve.residual.median, 0.07);
    EXPECT_LT(std::fabs(curve.residual.bias), 0.02);
  }
}

// A measured forward, input gradient or weight gradient of a layer's product [groups, rows, outputs, inputs].
struct GroupedPoint {
  GemmShape shape;
  Dtype dtype = Dtype::bf16;
  double bytes = 0, seconds = 0;
};
GroupedPoint grouped_point(const Json& p) {
  GroupedPoint g;
  const std::int64_t groups = p["shape"][0], rows = p["shape"][1], outputs = p["shape"][2], inputs = p["shape"][3];
  const std::string stage = p.value("stage", "fwd");
  g.shape = stage == "bwd_grad_w"     ? GemmShape{groups, outputs, inputs, rows}
            : stage == "bwd_grad_act" ? GemmShape{groups, rows, inputs, outputs}
                                      : GemmShape{groups, rows, outputs, inputs};
  g.dtype = p["dtype"] == "fp8" ? Dtype::fp8 : Dtype::bf16;
  const double m = real(g.shape.m), n = real(g.shape.n), k = real(g.shape.k);
  const double out = stage == "bwd_grad_w" && p["main_grad"] == "fp32" ? 4 : 2;
  g.bytes =
      real(groups) * (real(bytes_of(g.dtype, 1)) * (m * k + k * n) + out * m * n * (p.contains("accumulate") ? 2 : 1));
  g.seconds = p["seconds"];
  return g;
}

TEST_P(EveryCalibration, StatesTheResidualsOfGroupedProductsThatItHas) {
  ASSERT_EQ(calibration.grouped.size(), static_cast<std::size_t>(kDtypes));
  EXPECT_GT(calibration.group_issue_seconds, 1e-6);
  EXPECT_LT(calibration.group_issue_seconds, 2e-5);
  for (const Dtype dtype : {Dtype::bf16, Dtype::fp8}) {
    const GroupedCurve& curve = calibration.grouped[static_cast<std::size_t>(dtype)];
    EXPECT_THAT(curve.source, HasSubstr("github"));
    // Boards of the same chip: fewer NVLinks do not multiply more slowly.
    const std::string measured_on = GetParam() == "H100-SXM5-80GB" ? "H800-SXM5-80GB" : GetParam();
    std::vector<double> ratios;
    for (const Json& p : published_kernels()["points"]) {
      if (p["device"] != measured_on || p["op"] != "grouped_matmul" || p["dtype"] != name_of(dtype)) continue;
      if (p.contains("multiprocessors")) continue;  // beside a collective
      const GroupedPoint g = grouped_point(p);
      // Nor faster than the host of that measurement launched, where the smallest groups were bound by it.
      const double issued =
          measured_on == "B200-SXM-180GB-limited" ? real(g.shape.batch) * calibration.group_issue_seconds : 0;
      ratios.push_back(std::max(model.grouped_seconds(g.shape, g.dtype, g.bytes), issued) / g.seconds);
      EXPECT_TRUE(model.near_measured(g.shape, g.dtype, true));
    }
    if (ratios.empty()) {
      EXPECT_TRUE(!curve.borrowed_from.empty() || dtype == Dtype::fp8) << name_of(dtype);
      continue;
    }
    EXPECT_TRUE(curve.borrowed_from.empty());
    ASSERT_GE(ratios.size(), 10u);
    expect_equal(curve.residual, residual_of(ratios), std::string("grouped ") + name_of(dtype));
    EXPECT_LT(curve.residual.median, 0.1);
    EXPECT_LT(std::fabs(curve.residual.bias), 0.02);
  }
}

TEST_P(EveryCalibration, StatesTheAttentionResidualsThatItHas) {
  if (!calibration.attention_borrowed_from.empty()) {
    const Calibration lender = find_calibration(find_device(calibration.attention_borrowed_from));
    EXPECT_EQ(calibration.attention.forward_efficiency, lender.attention.forward_efficiency);
    return;
  }
  std::vector<AttentionCurve> curves = calibration.attention_kernels;
  curves.insert(curves.end(), calibration.narrow_attention.begin(), calibration.narrow_attention.end());
  for (const AttentionCurve& curve : curves) {
    const bool narrow = curve.dtype != Dtype::bf16;
    if (curve.residual.points == 0) {  // of the same die's other board
      EXPECT_NE(curve.name, calibration.attention.name);
      continue;
    }
    Calibration chosen = calibration;
    ASSERT_TRUE(narrow || use_attention_kernel(chosen, curve.name));
    const KernelModel attending(device, chosen);
    std::vector<double> ratios, within_windows;
    for (const Json& p : published_kernels()["points"]) {
      if (p["device"] != GetParam() || p["op"] != "attention") continue;
      const bool of_narrow = p["dtype"] == "fp8" || p["dtype"] == "mxfp8";
      if (narrow ? p["dtype"] != name_of(curve.dtype) : of_narrow || p["kernel"] != curve.name) continue;
      AttentionShape s{p["shape"][0], p["shape"][1], p["shape"][2],
                       p["shape"][3], p["shape"][3], p["shape"][4],
                       p["shape"][5], p["causal"],   p.value("window", std::int64_t{0})};
      const double d = real(s.head_dim), dv = real(s.value_head_dim), h = real(s.heads), kv = real(s.kv_heads);
      const double rows = real(s.batch * s.queries), window = real(s.window);
      const double seen = s.window > 0 ? window * (1 - window / real(2 * s.keys)) : real(s.keys) * (s.causal ? 0.5 : 1);
      const double pairs = rows * h * seen;
      // q, k, v and the output, which has 16 bits; backward their gradients too.
      const double bytes = rows * ((narrow ? 1 : 2) * (h * d + kv * (d + dv)) + 2 * h * dv);
      double seconds = 0;
      if (p["phase"] != "backward")
        seconds += attending.attention_seconds(s, curve.dtype, false, 2 * (d + dv) * pairs, bytes);
      if (p["phase"] != "forward")
        seconds += attending.attention_seconds(s, curve.dtype, true, 2 * (3 * d + 2 * dv) * pairs, 2 * bytes);
      (s.window > 0 ? within_windows : ratios).push_back(seconds / p["seconds"].get<double>());
    }
    ASSERT_GE(ratios.size(), 12u);
    expect_equal(curve.residual, residual_of(ratios), curve.name);
    EXPECT_LT(curve.residual.median, 0.12);
    if (!within_windows.empty()) {
      EXPECT_LT(residual_of(within_windows).median, 0.14) << curve.name << " in windows";
    }
  }
}

TEST_P(EveryCalibration, StatesTheMemoryResidualThatItHas) {
  std::vector<double> ratios;
  for (const Json& p : published_kernels()["points"]) {
    if (p["device"] != GetParam() || p["dtype"] != "bf16" || (p["op"] != "matmul" && p["op"] != "gemv")) continue;
    if (p["shape"][1] != 1 || !usable(p)) continue;
    const double n = p["shape"][2], k = p["shape"][3];
    ratios.push_back(model.memory_seconds(2 * (k + n * k + n)) / p["seconds"].get<double>());
  }
  if (ratios.size() < 5) {  // the same chip on another board
    const std::string& source = calibration.memory_source;
    const std::size_t of = source.rfind("(of ");
    ASSERT_NE(of, std::string::npos) << source;
    const std::string lender = source.substr(of + 4, source.size() - of - 5);
    EXPECT_EQ(calibration.memory_efficiency, find_calibration(find_device(lender)).memory_efficiency);
    return;
  }
  expect_equal(calibration.memory_residual, residual_of(ratios), "memory");
}

TEST_P(EveryCalibration, IsRelativeToThePresetsPeaks) {
  const std::string file = "results/calibration/" + GetParam() + ".json";
  const auto files = embedded_files(file);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_LT(files[0].text.size(), 60000u) << "start-up reads it";
  const Json relative_to = parse_json(files[0].text, file)["relative_to"];
  EXPECT_EQ(relative_to["bf16"], device.peak(Dtype::bf16));
  if (relative_to.contains("fp8")) {
    EXPECT_EQ(relative_to["fp8"], device.peak(Dtype::fp8));
  }
  if (relative_to.contains("nvfp4")) {
    EXPECT_EQ(relative_to["nvfp4"], device.peak(Dtype::nvfp4));
  }
  EXPECT_EQ(relative_to["memory"], device.memory_bytes_per_second);
  EXPECT_EQ(relative_to["multiprocessors"], device.multiprocessors);
}

TEST_P(EveryCalibration, NamesItsSourceAndShapes) {
  EXPECT_EQ(calibration.name, GetParam());
  EXPECT_TRUE(calibration.measured);
  EXPECT_TRUE(calibration.borrowed_from.empty());
  EXPECT_THAT(calibration.source, HasSubstr("github"));
  EXPECT_THAT(calibration.overlap_source, HasSubstr("arXiv"));
  EXPECT_EQ(calibration.date.size(), std::string("2026-11-21").size());
  EXPECT_GE(calibration.measured_shapes.size(), 60u);
  for (const MeasuredShape& s : calibration.measured_shapes)
    EXPECT_TRUE(model.near_measured(GemmShape{1, s.m, s.n, s.k}, s.dtype)) << s.m << ' ' << s.n << ' ' << s.k;
}

std::string device_test_name(const ::testing::TestParamInfo<std::string>& device) {
  std::string name = device.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
// Those fitted to published kernels; what `orrery calibrate` measured is held against its own points by
// tests/realrun/calibrate_test.cpp.
std::vector<std::string> published_devices() {
  std::vector<std::string> names = calibrated_devices();
  std::erase_if(names, [](const std::string& name) { return find_device(name).architecture == "CPU"; });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Devices, EveryCalibration, ::testing::ValuesIn(published_devices()), device_test_name);

// DeepSeek-V3's profile: 20 of 132 multiprocessors dispatch and combine meanwhile. What is left of the device
// multiplies as fast as calibrated without them, and the interference that a step is predicted with is what they take
// away.
TEST(GroupedProducts, BesideACollectiveLackItsMultiprocessors) {
  const Device whole = find_device("H800-SXM5-80GB");
  const Calibration calibration = find_calibration(whole);
  int points = 0;
  for (const Json& p : published_kernels()["points"]) {
    if (!p.contains("multiprocessors")) continue;
    ++points;
    Device rest = whole;
    rest.multiprocessors = p["multiprocessors"];
    const double share = real(rest.multiprocessors) / real(whole.multiprocessors);
    for (double& peak : rest.peak_flops_per_second) peak *= share;
    const GroupedPoint g = grouped_point(p);
    EXPECT_NEAR(KernelModel(rest, calibration).grouped_seconds(g.shape, g.dtype, g.bytes) / g.seconds, 1, 0.05);
    EXPECT_NEAR(1 + calibration.overlap_slowdown, 1 / share, 0.02);
  }
  EXPECT_EQ(points, 1);
}

TEST(GroupedProducts, CostMoreWithMoreGroupsOfFewerRows) {
  for (const char* name : {"A100-SXM4-80GB", "H100-SXM5-80GB", "B200-SXM-180GB", "GB300"}) {
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    const KernelModel model(device, calibration);
    double before = 0;
    for (std::int64_t groups = 1; groups <= 256; groups *= 2) {
      const GemmShape shape{groups, 32768 / groups, 4096, 7168};
      const double bytes = 2 * (32768.0 * (4096 + 7168) + real(groups) * 4096 * 7168);
      const double seconds = model.grouped_seconds(shape, Dtype::bf16, bytes);
      EXPECT_GE(seconds, 0.999 * before) << name << ' ' << groups;
      EXPECT_GE(seconds, model.matmul_seconds(shape, Dtype::bf16, bytes)) << name << ' ' << groups;
      before = seconds;
    }
  }
}

TEST(GroupedProducts, OfNarrowTypesHaveTheNextWiderCurve) {
  const Calibration c = find_calibration(find_device("H800-SXM5-80GB"));
  const auto at = [&](Dtype dtype) { return c.grouped[static_cast<std::size_t>(dtype)]; };
  EXPECT_LT(at(Dtype::fp8).relative, at(Dtype::bf16).relative);
  EXPECT_EQ(at(Dtype::nvfp4).relative, at(Dtype::fp8).relative);
  EXPECT_EQ(at(Dtype::fp16).group_seconds, at(Dtype::bf16).group_seconds);
  EXPECT_EQ(at(Dtype::bf16).borrowed_from, "A100-PCIe-80GB");
  // A plain product of the shape is measured, one of groups is not.
  const Device device = find_device("H100-SXM5-80GB");
  const Calibration h100 = find_calibration(device);
  const KernelModel model(device, h100);
  EXPECT_TRUE(model.near_measured(GemmShape{1, 1024, 4096, 4096}, Dtype::bf16, true));
  EXPECT_FALSE(model.near_measured(GemmShape{8, 1024, 4096, 4096}, Dtype::bf16, true));
  EXPECT_TRUE(model.near_measured(GemmShape{8, 1024, 4096, 7168}, Dtype::fp8, true));
}

TEST(GroupedProducts, AreLaunchedOneByOneInLessTimeThanAsOps) {
  const Device device = find_device("H100-SXM5-80GB");
  Calibration calibration = find_calibration(device);
  const double each = calibration.group_issue_seconds;
  EXPECT_DOUBLE_EQ(KernelModel(device, calibration).issue_seconds(8, 5e-5), 5e-5 + 7 * each);
  EXPECT_DOUBLE_EQ(KernelModel(device, calibration).issue_seconds(1, 5e-5), 5e-5);
  calibration.group_issue_seconds = -1;
  EXPECT_DOUBLE_EQ(KernelModel(device, calibration).issue_seconds(8, 5e-5), 4e-4) << "not measured";
}

TEST(FindCalibration, KnowsEveryPreset) {
  const auto calibrated = calibrated_devices();
  EXPECT_THAT(calibrated, ::testing::Contains("A100-SXM4-80GB"));
  EXPECT_THAT(calibrated, ::testing::Contains("H100-SXM5-80GB"));
  for (const std::string& name : device_names()) {
    SCOPED_TRACE(name);
    const Calibration c = find_calibration(find_device(name));
    EXPECT_EQ(c.name, name);
    const bool own = std::find(calibrated.begin(), calibrated.end(), name) != calibrated.end();
    EXPECT_EQ(c.measured, own);
    EXPECT_EQ(c.borrowed_from.empty(), own);
    if (!own) {
      EXPECT_THAT(calibrated, ::testing::Contains(c.borrowed_from));
      EXPECT_FALSE(c.note.empty());
    }
    ASSERT_EQ(c.matmul.size(), static_cast<std::size_t>(kDtypes));
  }
}

TEST(FindCalibration, BorrowsFromTheDeviceThenTheArchitectureThenTheVendor) {
  const auto lender = [](const char* name, const char* architecture, const char* vendor) {
    Device d = find_device("A100-SXM4-80GB");
    d.name = name;
    d.architecture = architecture;
    d.vendor = vendor;
    return find_calibration(d).borrowed_from;
  };
  EXPECT_EQ(lender("H800-SXM5-80GB", "Ampere", "NVIDIA"), "H100-SXM5-80GB");
  EXPECT_EQ(lender("mine", "Ada", "NVIDIA"), "L40S");
  EXPECT_EQ(lender("mine", "Rubin", "NVIDIA"), "A100-SXM4-80GB");
  EXPECT_EQ(lender("mine", "unheard of", "nobody"), "A100-SXM4-80GB");
  EXPECT_EQ(lender("borrowed", "Ada", "NVIDIA"), "L40S") << "the table is not a device";
}

TEST(FindCalibration, ScalesABorrowedCurveToTheDevicesOwnMeasurement) {
  const Device device = find_device("MI300X");
  const Calibration calibration = find_calibration(device);
  const GemmShape shape{1, 10240, 15360, 8192};
  const double bytes = 2.0 * (10240.0 * 8192 + 8192.0 * 15360 + 10240.0 * 15360);
  EXPECT_NEAR(KernelModel(device, calibration).matmul_seconds(shape, Dtype::bf16, bytes) / 3.85545e-3, 1, 0.005);
  EXPECT_THAT(calibration.note, HasSubstr("mamf"));
  EXPECT_THAT(calibration.memory_source, HasSubstr("BabelStream"));
}

// cuDNN's benchmark (cudnn-frontend, sdpa_benchmark_training): 64 query and 8 key heads of 128, 8,192 tokens, causal.
// The ratios are measured: a forward in fp8 gains on all devices, a backward loses on H200.
TEST(AttentionKernels, InFp8GainWhatWasMeasured) {
  const auto gain = [](const char* name, bool backward, Dtype dtype, std::int64_t head_dim = 128) {
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    const KernelModel model(device, calibration);
    const AttentionShape shape{2, 64, 8, 8192, 8192, head_dim, head_dim, true, 0};
    const double flops = flops_per_pair(shape, backward) * 2 * 64 * 8192.0 * 8192 / 2;
    return model.attention_seconds(shape, Dtype::bf16, backward, flops, 0) /
           model.attention_seconds(shape, dtype, backward, flops, 0);
  };
  constexpr double kOfTheCurves = 0.17;  // two curves, each 3 to 5 % off in the median
  EXPECT_NEAR(gain("GB300", false, Dtype::fp8), 1.56, kOfTheCurves);
  EXPECT_NEAR(gain("GB300", true, Dtype::fp8), 1.24, kOfTheCurves);
  EXPECT_NEAR(gain("GB300", false, Dtype::mxfp8), 1.38, kOfTheCurves);
  EXPECT_NEAR(gain("GB300", true, Dtype::mxfp8), 0.98, kOfTheCurves);
  EXPECT_NEAR(gain("GB200", false, Dtype::fp8), 1.30, kOfTheCurves);
  EXPECT_NEAR(gain("GB200", true, Dtype::fp8), 1.09, kOfTheCurves);
  for (const char* hopper : {"H100-SXM5-80GB", "H200-SXM5-141GB", "H100-PCIe-80GB"}) {
    EXPECT_NEAR(gain(hopper, false, Dtype::fp8), 1.50, kOfTheCurves) << hopper;
    EXPECT_NEAR(gain(hopper, true, Dtype::fp8), 0.80, kOfTheCurves) << hopper;
  }
  // The softmax does not shrink with head_dim: a forward gains the less.
  EXPECT_LT(gain("GB300", false, Dtype::fp8, 64), gain("GB300", false, Dtype::fp8, 128));
  EXPECT_LT(gain("GB200", false, Dtype::mxfp8, 64), gain("GB200", false, Dtype::mxfp8, 128));
  EXPECT_NEAR(gain("H100-SXM5-80GB", false, Dtype::fp8, 64), 1.50, kOfTheCurves);
  // No curve of its own: as in 16 bits.
  EXPECT_EQ(gain("A100-SXM4-80GB", false, Dtype::fp8), 1);
  EXPECT_EQ(gain("L40S", true, Dtype::fp8), 1);
}

// TensorRT-LLM's forwards (aiconfigurator): with a head_dim of 64 they take 0.73 to 0.85 of the time with 128 on GB200
// and GB300, not half of it, and with 256 twice.
TEST(AttentionKernels, OnBlackwellHardlyShrinkBelowAHeadDimOf100) {
  for (const char* name : {"B200-SXM-180GB", "GB200", "GB300", "B300-SXM-270GB"}) {
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    const KernelModel model(device, calibration);
    const auto seconds = [&](std::int64_t head_dim, bool backward) {
      const AttentionShape shape{2, 64, 64, 16384, 16384, head_dim, head_dim, false, 0};
      const double flops = flops_per_pair(shape, backward) * 2 * 64 * 16384.0 * 16384;
      return model.attention_seconds(shape, Dtype::bf16, backward, flops, 0);
    };
    EXPECT_NEAR(seconds(64, false) / seconds(128, false), 0.79, 0.06) << name;
    EXPECT_NEAR(seconds(256, false) / seconds(128, false), 2, 0.02) << name;
    EXPECT_NEAR(seconds(64, true) / seconds(128, true), 0.5, 0.02) << name;
  }
}

TEST(AttentionKernels, CanBeChosenByGeneration) {
  Calibration h100 = find_calibration(find_device("H100-SXM5-80GB"));
  EXPECT_EQ(h100.attention.name, "cudnn");
  const double cudnn = h100.attention.forward_efficiency;
  EXPECT_TRUE(use_attention_kernel(h100, "flash_attention_2"));
  EXPECT_LT(h100.attention.forward_efficiency, cudnn);
  EXPECT_FALSE(use_attention_kernel(h100, "flash_attention_9"));
  EXPECT_EQ(h100.attention.name, "flash_attention_2");
}

// --- Files that must be refused
// ---------------------------------------------------------------------------------------

Json valid() {
  return Json::parse(R"({
    "name": "mine", "source": "my bench", "date": "2026-01-01",
    "matmul": {"bf16": {"efficiency": 0.9, "memory_efficiency": 0.8, "tiles": [[128, 128]]}},
    "memory": {"efficiency": 0.8, "fixed_seconds": 1e-6},
    "attention": {"default": "mine", "kernels": {"mine": {"forward_efficiency": 0.5, "backward_efficiency": 0.4}}},
    "overlap_slowdown": 0.1,
    "measured_shapes": {"bf16": [[1, 2, 3]]},
    "measured_attention": [[512, 64]]
  })");
}

TEST(ReadCalibration, TakesAUsersFile) {
  const Calibration c = read_calibration(valid(), {"mine.json", ""});
  EXPECT_EQ(c.name, "mine");
  EXPECT_TRUE(c.measured);
  EXPECT_EQ(c.matmul[static_cast<std::size_t>(Dtype::bf16)].efficiency, 0.9);
  EXPECT_TRUE(c.matmul[static_cast<std::size_t>(Dtype::fp16)].measured);
  EXPECT_FALSE(c.matmul[static_cast<std::size_t>(Dtype::fp8)].measured);
  EXPECT_EQ(c.attention.name, "mine");
  EXPECT_EQ(c.memory_efficiency, 0.8);
  EXPECT_EQ(c.memory_source, "my bench");
  EXPECT_EQ(c.overlap_slowdown, 0.1);
  ASSERT_EQ(c.measured_shapes.size(), 1u);
  EXPECT_EQ(c.measured_shapes[0].k, 3);
}

TEST(ReadCalibration, TakesSectionsFromAnotherDevice) {
  Json json = valid();
  json["attention"] = {{"borrowed_from", "H100-SXM5-80GB"}};
  json["memory"] = {{"borrowed_from", "A100-SXM4-80GB"}};
  const Calibration c = read_calibration(json, {"mine.json", ""});
  EXPECT_EQ(c.attention.name, "cudnn");
  EXPECT_EQ(c.attention_borrowed_from, "H100-SXM5-80GB");
  EXPECT_EQ(c.memory_efficiency, find_calibration(find_device("A100-SXM4-80GB")).memory_efficiency);
}

struct Bad {
  const char* title;
  const char* at;     // where the value goes (or, when null, what is removed)
  const char* value;  // JSON; nullptr removes
  const char* pointer;
  const char* says;
};

class BadCalibration : public ::testing::TestWithParam<Bad> {};

TEST_P(BadCalibration, IsRefusedAtItsPointer) {
  const Bad& bad = GetParam();
  Json json = valid();
  const Json::json_pointer at(bad.at);
  if (bad.value != nullptr) {
    json[at] = Json::parse(bad.value);
  } else {
    json[at.parent_pointer()].erase(at.back());
  }
  try {
    read_calibration(json, {"mine.json", "/calibration"});
    FAIL() << "was accepted";
  } catch (const InputError& e) {
    EXPECT_EQ(e.where().file, "mine.json");
    EXPECT_EQ(e.where().pointer, std::string("/calibration") + bad.pointer);
    EXPECT_THAT(std::string(e.what()), HasSubstr(bad.says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadCalibration,
    ::testing::Values(
        Bad{"no_name", "/name", nullptr, "/name", "name of a device"},
        Bad{"unknown_key", "/efficency", "1", "/efficency", "unknown key"},
        Bad{"no_matmul", "/matmul", nullptr, "/matmul", "bf16"},
        Bad{"no_bf16", "/matmul/bf16", nullptr, "/matmul/bf16", "matmul curve"},
        Bad{"unknown_dtype", "/matmul/bf61", "{}", "/matmul/bf61", "bf16"},
        Bad{"no_efficiency", "/matmul/bf16/efficiency", nullptr, "/matmul/bf16/efficiency", "number"},
        Bad{"efficiency_above_1", "/matmul/bf16/efficiency", "1.01", "/matmul/bf16/efficiency", "at most 1"},
        Bad{"efficiency_zero", "/matmul/bf16/efficiency", "0", "/matmul/bf16/efficiency", "greater than 0"},
        Bad{"efficiency_text", "/matmul/bf16/efficiency", "\"0.9\"", "/matmul/bf16/efficiency", "number"},
        Bad{"negative_fixed", "/matmul/bf16/fixed_seconds", "-1e-6", "/matmul/bf16/fixed_seconds", "at least 0"},
        Bad{"no_tiles", "/matmul/bf16/tiles", nullptr, "/matmul/bf16/tiles", "1 to 8"},
        Bad{"empty_tiles", "/matmul/bf16/tiles", "[]", "/matmul/bf16/tiles", "1 to 8"},
        Bad{"nine_tiles", "/matmul/bf16/tiles", "[[1,1],[1,1],[1,1],[1,1],[1,1],[1,1],[1,1],[1,1],[1,1]]",
            "/matmul/bf16/tiles", "1 to 8"},
        Bad{"tile_of_three", "/matmul/bf16/tiles", "[[128,128],[1,2,3]]", "/matmul/bf16/tiles/1", "[m, n]"},
        Bad{"tile_of_zero", "/matmul/bf16/tiles", "[[0,128]]", "/matmul/bf16/tiles/0", "positive"},
        Bad{"bad_residual", "/matmul/bf16/residual", "[]", "/matmul/bf16/residual", "object"},
        Bad{"grouped_too_fast", "/grouped", R"({"bf16": {"relative": 1.2}})", "/grouped/bf16/relative", "at most 1"},
        Bad{"grouped_without_a_rate", "/grouped", R"({"bf16": {"group_seconds": 1e-6}})", "/grouped/bf16/relative",
            "number"},
        Bad{"grouped_of_a_stranger", "/grouped", R"({"bf17": {"relative": 1}})", "/grouped/bf17", "bf16"},
        Bad{"grouped_of_a_cpu", "/grouped", R"({"bf16": {"borrowed_from": "AMD-EPYC"}})", "/grouped/bf16",
            "grouped products"},
        Bad{"issue_of_text", "/grouped", R"({"issue": {"seconds": "8 us"}})", "/grouped/issue/seconds", "number"},
        Bad{"groups_of_two", "/measured_groups", R"({"bf16": [[1,2]]})", "/measured_groups/bf16/0", "[m, n, k]"},
        Bad{"no_memory", "/memory", nullptr, "/memory", "memory-bound"},
        Bad{"memory_of_nobody", "/memory", R"({"borrowed_from": "A100-SXM4-80G"})", "/memory/borrowed_from",
            "A100-SXM4-80GB"},
        Bad{"no_attention", "/attention", nullptr, "/attention", "attention curves"},
        Bad{"no_kernels", "/attention/kernels", "{}", "/attention/kernels", "by kernel"},
        Bad{"wrong_default", "/attention/default", "\"mina\"", "/attention/default", "mine"},
        Bad{"no_default", "/attention/default", nullptr, "/attention/default", "mine"},
        Bad{"attention_too_fast", "/attention/kernels/mine/forward_efficiency", "1.2",
            "/attention/kernels/mine/forward_efficiency", "at most 1"},
        Bad{"overlap_above_1", "/overlap_slowdown", "1.5", "/overlap_slowdown", "from 0 to 1"},
        Bad{"shape_of_two", "/measured_shapes/bf16", "[[1,2,3],[4,5]]", "/measured_shapes/bf16/1", "[m, n, k]"},
        Bad{"shape_of_text", "/measured_shapes/bf16", "[[1,2,\"3\"]]", "/measured_shapes/bf16/0", "[m, n, k]"},
        Bad{"shapes_not_an_array", "/measured_shapes/bf16", "7", "/measured_shapes/bf16", "array"},
        Bad{"attention_shape", "/measured_attention", "[[512]]", "/measured_attention/0", "head_dim"}),
    [](const ::testing::TestParamInfo<Bad>& bad) { return std::string(bad.param.title); });

}  // namespace
}  // namespace orrery
