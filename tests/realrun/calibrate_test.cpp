// Does a calibration find what it measures, keep what it measured, and refuse what it cannot use?
#include "realrun/calibrate/calibrate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "realrun/calibrate/collective_fit.h"
#include "realrun/calibrate/journal.h"
#include "realrun/calibrate/least_squares.h"
#include "realrun/calibrate/nccl_log.h"
#include "realrun/calibrate/overlap.h"
#include "realrun/calibrate/published.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/cost/calibration.h"
#include "sim/cost/user_calibration.h"
#include "sim/hardware/presets.h"
#include "sim/hardware/read_cluster.h"

namespace orrery {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::path(testing::TempDir()) / "orrery_calibrate_XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// --- The sweep

TEST(Sweep, HasEachPointOnceAndEveryKindOfCurve) {
  std::set<std::string> ids, groups;
  for (const KernelPoint& p : sweep(cpu_sweep())) {
    EXPECT_TRUE(ids.insert(p.id).second) << p.id;
    groups.insert(p.group);
    for (const Tensor& t : p.tensors) EXPECT_GT(t.elements(), 0) << p.id;
    EXPECT_EQ(p.contents.size(), p.tensors.size());
  }
  EXPECT_GE(ids.size(), 600u);
  for (const char* group : {"matmul fp32", "attention fp32", "memory norm+bias", "memory norm_backward+bias",
                            "memory rotary", "memory activation.gelu+bias", "memory dropout_add", "memory adam",
                            "memory cross_entropy", "memory embedding_backward", "copy copy_to_host"})
    EXPECT_THAT(groups, Contains(group));
}

TEST(Sweep, AnyBeginningCoversEveryGroup) {
  const std::vector<KernelPoint> points = sweep(cpu_sweep());
  std::map<std::string, int> all, early;
  for (std::size_t i = 0; i < points.size(); ++i) {
    ++all[points[i].group];
    if (i < points.size() / 2) ++early[points[i].group];
  }
  for (const auto& [group, count] : all) EXPECT_NEAR(early[group], 0.5 * count, 1.5) << group;
}

TEST(Sweep, HoldsShapesOutEvenly) {
  int products = 0, held_out = 0;
  for (const KernelPoint& p : sweep(cpu_sweep())) {
    if (p.group != "matmul fp32") continue;
    ++products;
    held_out += p.held_out ? 1 : 0;
  }
  EXPECT_EQ(held_out, products / 5);
}

TEST(Meter, TimesEveryKindOfPointOnTheCpu) {
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  Meter meter(*backend, 1e5);
  std::set<std::string> met;
  SweepOptions small = cpu_sweep();
  small.most_tokens = small.most_sequence = 64, small.most_hidden = 64, small.most_vocabulary = 256;
  small.products = 6, small.attentions = 4, small.of_a_kind = 2;
  for (const KernelPoint& p : sweep(small)) {
    if (!met.insert(p.group).second || p.group.starts_with("copy")) continue;
    const Measurement m = meter.measure(p, 0);
    EXPECT_GT(m.seconds, 0) << p.id;
    EXPECT_GE(m.repetitions, 5) << p.id;
  }
  EXPECT_GE(met.size(), 40u);
}

// --- The fit

TEST(LeastSquares, FindsParametersThroughOutliers) {
  const std::vector<double> x{1, 2, 4, 8, 16, 32, 64, 128};
  std::vector<double> y;
  for (const double v : x) y.push_back(3 + 0.5 * v);
  y[3] *= 2;  // another process had the core
  const FitResult fit = fit_least_squares({{"fixed", 1, 1e-3, 1e3}, {"slope", 1, 1e-3, 1e3}}, [&](const auto& p) {
    std::vector<double> errors;
    for (std::size_t i = 0; i < x.size(); ++i) errors.push_back(std::log((p[0] + p[1] * x[i]) / y[i]));
    return errors;
  });
  EXPECT_NEAR(fit.values[0], 3, 0.3);
  EXPECT_NEAR(fit.values[1], 0.5, 0.03);
  EXPECT_GT(fit.factor_95[0], 1);
}

// Nine points of a constant, and one that is predicted far too slow or too fast. Beyond 0.1 its pull grows no more
// (where it is too slow) or falls as 0.01 / error.
TEST(LeastSquares, OutliersPullAsSlowPredictionsDoAndAsFastOnesDoNot) {
  const auto fitted = [](double outlier) {
    const auto log_errors = [&](const std::vector<double>& values) {
      std::vector<double> errors(10, std::log(values[0]));
      errors.back() += outlier;
      return errors;
    };
    return std::log(fit_least_squares({{"constant", 1, 1e-2, 1e2}}, log_errors).values[0]);
  };
  EXPECT_NEAR(fitted(2), -0.1 / 9, 2e-3);
  EXPECT_NEAR(fitted(-2), 0.01 / 2 / 9, 2e-4);
}

// Of a constant, the mean's standard error: ten points 5 % off either way, nine degrees of freedom.
TEST(LeastSquares, StatesTheIntervalOfTheNormalDistribution) {
  const auto log_errors = [](const std::vector<double>& values) {
    std::vector<double> errors;
    for (int i = 0; i < 10; ++i) errors.push_back(std::log(values[0]) + (i % 2 == 0 ? 0.05 : -0.05));
    return errors;
  };
  const FitResult fit = fit_least_squares({{"constant", 2, 1e-2, 1e2}}, log_errors);
  EXPECT_NEAR(fit.values[0], 1, 1e-6);
  EXPECT_NEAR(std::log(fit.factor_95[0]), 1.96 * std::sqrt(10 * 0.05 * 0.05 / 9 / 10), 1e-6);
}

TEST(LeastSquares, SaysWhichParametersThePointsLeaveOpen) {
  const FitResult fit = fit_least_squares({{"used", 1, 1e-3, 1e3}, {"unused", 1, 1e-3, 1e3}},
                                          [](const auto& p) { return std::vector<double>(5, std::log(p[0] / 7)); });
  EXPECT_NEAR(fit.values[0], 7, 1e-6);
  EXPECT_EQ(fit.factor_95[1], 0);
}

// One parameter that cannot move: the loss of each point is a parabola up to 0.1, beyond it a
// straight line where the prediction is too slow, and Cauchy's logarithm where it is too fast.
TEST(LeastSquares, LossIsThatOfEachPoint) {
  const auto loss = [](std::vector<double> errors, FitLoss of) {
    return fit_least_squares(
               {{"held", 2, 2, 2}}, [&](const auto&) { return errors; }, of)
        .loss;
  };
  const double cauchy = 0.01 * (0.5 + std::log(3.0));
  EXPECT_DOUBLE_EQ(loss({0.05}, {}), 0.05 * 0.05 / 2);
  EXPECT_DOUBLE_EQ(loss({-0.05}, {}), 0.05 * 0.05 / 2);
  EXPECT_NEAR(loss({0.3}, {}), 0.1 * (0.3 - 0.05), 1e-15);
  EXPECT_NEAR(loss({-0.3}, {}), cauchy, 1e-15);
  EXPECT_NEAR(loss({-0.3}, published_loss()), 0.1 * (0.3 - 0.05), 1e-15) << "both sides count alike";
  EXPECT_NEAR(loss({0.05, 0.3, -0.3, 0}, {}), (0.00125 + 0.025 + cauchy) / 4, 1e-15) << "the mean";
  EXPECT_NEAR(loss({0.05, 0.3}, {.weights = {0.5, 1.5}}), (0.5 * 0.00125 + 1.5 * 0.025) / 2, 1e-15);
  EXPECT_EQ(loss({}, {}), 0);
  // All three pieces meet at 0.1.
  for (const double beyond : {0.1 - 1e-9, 0.1 + 1e-9})
    for (const double sign : {1.0, -1.0}) EXPECT_NEAR(loss({sign * beyond}, {}), 0.005, 1e-9);
}

// As many points as make no interval: none, one, as many as there are parameters; and points that are all alike.
TEST(LeastSquares, FewAndEqualPointsGiveValuesWithoutIntervals) {
  const auto fit = [](std::vector<FitParameter> parameters, std::vector<double> measured) {
    return fit_least_squares(parameters, [&](const std::vector<double>& values) {
      std::vector<double> errors;
      for (std::size_t i = 0; i < measured.size(); ++i)
        errors.push_back(std::log(values[i % values.size()] / measured[i]));
      return errors;
    });
  };
  const FitResult none = fit({{"a", 3, 1e-2, 1e2}}, {});
  EXPECT_NEAR(none.values.at(0), 3, 1e-12) << "where it starts";
  EXPECT_EQ(none.factor_95, std::vector<double>{0});
  const FitResult one = fit({{"a", 3, 1e-2, 1e2}}, {7});
  EXPECT_NEAR(one.values.at(0), 7, 1e-6);
  EXPECT_EQ(one.factor_95, std::vector<double>{0});
  const FitResult two = fit({{"a", 3, 1e-2, 1e2}, {"b", 3, 1e-2, 1e2}}, {7, 0.5});
  EXPECT_NEAR(two.values.at(0), 7, 1e-6);
  EXPECT_NEAR(two.values.at(1), 0.5, 1e-6);
  EXPECT_EQ(two.factor_95, (std::vector<double>{0, 0}));
  const FitResult alike = fit({{"a", 3, 1e-2, 1e2}}, {7, 7, 7});
  EXPECT_NEAR(alike.values.at(0), 7, 1e-6);
  EXPECT_NEAR(alike.factor_95.at(0), 1, 1e-6) << "they leave nothing open";
  const FitResult spread = fit({{"a", 3, 1e-2, 1e2}, {"b", 3, 1e-2, 1e2}}, {7, 0.5, 7 * 1.02, 0.5 / 1.04});
  EXPECT_NEAR(spread.values.at(0), 7 * std::sqrt(1.02), 1e-5);
  // Two degrees of freedom are left; each mean is of two points.
  const double variance = (2 * std::pow(std::log(1.02) / 2, 2) + 2 * std::pow(std::log(1.04) / 2, 2)) / 2;
  for (const double factor : spread.factor_95) EXPECT_NEAR(std::log(factor), 1.96 * std::sqrt(variance / 2), 1e-4);
}

// A parameter stays within its bounds, wherever it starts and whatever the points want, and has no interval at one; the
// others are what they would be alone.
TEST(LeastSquares, BoundsHold) {
  const auto fit = [](double start, double measured, FitLoss loss) {
    return fit_least_squares(
        {{"bounded", start, 0.5, 2}, {"free", 1, 1e-3, 1e3}},
        [&](const std::vector<double>& values) {
          return std::vector<double>{std::log(values[0] / measured), std::log(values[0] / measured),
                                     std::log(values[1] / 5) + 0.02, std::log(values[1] / 5) - 0.02};
        },
        loss);
  };
  for (const FitLoss& loss : {FitLoss{}, published_loss()})
    for (const double start : {0.01, 1.0, 100.0}) {
      for (const auto& [measured, expected] : {std::pair{30.0, 2.0}, {1e-3, 0.5}}) {
        const FitResult at_bound = fit(start, measured, loss);
        EXPECT_NEAR(at_bound.values[0], expected, 1e-9) << start;
        EXPECT_EQ(at_bound.factor_95[0], 0) << start;
        EXPECT_NEAR(at_bound.values[1], 5, 1e-4) << start;
        EXPECT_GT(at_bound.factor_95[1], 1) << start;
      }
      const FitResult inside = fit(start, 1.5, loss);
      EXPECT_NEAR(inside.values[0], 1.5, 1e-4) << start;
      EXPECT_GT(inside.factor_95[0], 1) << start;
    }
}

// The mean of logarithms goes by the weights.
TEST(LeastSquares, WeightsAreOfThePoints) {
  FitLoss loss = published_loss();
  loss.weights = {2, 0.5, 0.5};
  const FitResult fit = fit_least_squares(
      {{"constant", 1, 1e-2, 1e2}},
      [](const std::vector<double>& values) {
        return std::vector<double>{std::log(values[0]), std::log(values[0]) - 0.06, std::log(values[0]) - 0.03};
      },
      loss);
  EXPECT_NEAR(std::log(fit.values[0]), (0.06 + 0.03) / 2 / 3, 1e-5);
}

// A CPU that costs exactly what the formulas say.
struct Ideal {
  Device device;
  Calibration calibration;
  std::map<std::string, Measurement> measured;
  std::vector<KernelPoint> points = sweep(cpu_sweep());

  Ideal() {
    device.name = "ideal";
    device.peak_flops_per_second[0] = 40e9;
    device.vector_flops_per_second = 40e9;
    device.memory_bytes_per_second = 20e9;
    device.multiprocessors = 1;
    MatmulCurve matmul;
    matmul.tiles = {{1, 1}};
    matmul.efficiency = 0.8;
    matmul.half_k = 12;
    matmul.memory_efficiency = 0.3;
    matmul.overlap_loss = 0.9;
    matmul.fixed_seconds = 1e-6;
    calibration.matmul.assign(7, matmul);
    calibration.memory_efficiency = 0.5;
    calibration.kernel_fixed_seconds = 2e-7;
    calibration.memory_kinds = {{"rotary", 0.02, 3e-7, {}}, {"activation.gelu", 0.01, 1e-7, {}}};
    AttentionCurve& a = calibration.attention;
    a.forward_efficiency = 0.5, a.backward_efficiency = 0.4, a.half_sequence = 10, a.half_head_dim = 100;
    a.backward_half_head_dim = 20, a.masked_share = 1, a.fixed_seconds = 2e-6;
    const KernelModel model(device, calibration);
    for (const KernelPoint& p : points)
      if (!p.group.starts_with("copy"))
        measured[p.id] = {
            .seconds = model.cost(p.op, p.tensors).seconds, .spread = 0, .issue_seconds = 0, .repetitions = 5};
  }
};

TEST(CalibrationFit, MeetsAnIdealDeviceOnShapesItHasNotSeen) {
  const Ideal ideal;
  const BackendFacts facts{"cpu", "An Ideal CPU @ 3GHz", "software", 4, 1e9};
  const CalibrationFit fit = fit_calibration(ideal.points, ideal.measured, facts, std::nullopt);
  EXPECT_EQ(fit.device.name, "An-Ideal-3GHz");
  EXPECT_TRUE(fit.device_is_measured);
  for (const CurveFit& curve : fit.curves) {
    EXPECT_LT(curve.residual.median, 0.02) << curve.name;
    if (curve.name != "memory") {
      EXPECT_LT(curve.held_out.median, 0.02) << curve.name;
    }
  }
  const KernelModel model(fit.device, fit.calibration);
  for (const KernelPoint& p : ideal.points) {
    if (p.group.starts_with("copy") || p.group == "memory pool") continue;
    const double seconds = model.cost(p.op, p.tensors).seconds;
    EXPECT_THAT(seconds / ideal.measured.at(p.id).seconds, AllOf(Ge(0.9), Le(1.1))) << p.id;
  }
}

TEST(CalibrationFit, WritesAFileThatReadsBackAsWhatWasFitted) {
  const Ideal ideal;
  const BackendFacts facts{"cpu", "Ideal", "software", 4, 1e9};
  const CalibrationFit fit = fit_calibration(ideal.points, ideal.measured, facts, std::nullopt);
  const std::string text = calibration_text(fit, "a test", "2026-11-22", "synthetic");
  const UserCalibration user = read_user_calibration(parse_json(text, "ideal.json"), {"ideal.json", ""});
  ASSERT_TRUE(user.kernels && user.device);
  EXPECT_EQ(user.kernels->date, "2026-11-22");
  EXPECT_EQ(user.kernels->host_processors, 4);
  const KernelModel fitted(fit.device, fit.calibration), read(*user.device, *user.kernels);
  for (const KernelPoint& p : ideal.points)
    if (!p.group.starts_with("copy")) {
      EXPECT_DOUBLE_EQ(fitted.cost(p.op, p.tensors).seconds, read.cost(p.op, p.tensors).seconds) << p.id;
    }
}

TEST(CalibrationFit, StatesNoIntervalThatSaysNothing) {
  CalibrationFit fit;
  fit.curves.push_back({.name = "matmul fp32",
                        .parameters = {{"known", 0.5, 1.25}, {"at_bound", 1, 0}, {"open", 3, 28043259148656.46}},
                        .residual = {},
                        .held_out = {}});
  EXPECT_THAT(fit_table(fit),
              AllOf(HasSubstr("known 0.5 (x 1.25), at_bound 1, open 3 (x -)\n"),
                    HasSubstr("x -: the points do not determine the parameter within a factor of 100\n")));
  fit.curves.front().parameters.pop_back();
  EXPECT_THAT(fit_table(fit), ::testing::Not(HasSubstr("x -")));
}

TEST(CalibrationFit, FitsACutOffSweepAndSaysWhatIsMissing) {
  Ideal ideal;
  const std::size_t kept = ideal.points.size() / 4;
  for (std::size_t i = kept; i < ideal.points.size(); ++i) ideal.measured.erase(ideal.points[i].id);
  const BackendFacts facts{"cpu", "Ideal", "software", 1, 1e9};
  const CalibrationFit fit = fit_calibration(ideal.points, ideal.measured, facts, std::nullopt);
  EXPECT_FALSE(fit.calibration.matmul.empty());
  EXPECT_THAT(fit_table(fit), HasSubstr("matmul fp32"));
  ideal.measured.clear();
  EXPECT_THROW(fit_calibration(ideal.points, ideal.measured, facts, std::nullopt), InputError);
}

TEST(CalibrationFit, KnowsWhatBusyRanksKeep) {
  Ideal ideal;
  for (const KernelPoint& p : ideal.points)
    if (p.group == "matmul fp32") {
      Measurement busy = ideal.measured.at(p.id);
      busy.seconds /= 0.6;
      ideal.measured[busy_id(p.id)] = busy;
    }
  const BackendFacts facts{"cpu", "Ideal", "software", 2, 1e9};
  EXPECT_NEAR(fit_calibration(ideal.points, ideal.measured, facts, std::nullopt).calibration.busy_share, 0.6, 1e-4);
}

OverlapPair pair_of(Place to, const std::string& id) {
  OverlapPair pair;
  pair.copy.op.kind = OpKind::copy;
  pair.copy.tensors.resize(2);
  pair.copy.tensors[to == Place::host ? 1 : 0].place = Place::host;
  pair.copy.op.reads[0] = 0, pair.copy.op.writes[0] = 1;
  pair.compute_alone = id + " 1", pair.copy_alone = id + " 2", pair.compute_beside = id + " 3",
  pair.copy_beside = id + " 4";
  return pair;
}

TEST(OverlapFit, IsTheMeanSlowdownOfEachDirectionWithItsScatter) {
  const std::vector<OverlapPair> pairs{pair_of(Place::device, "a"), pair_of(Place::device, "b"),
                                       pair_of(Place::host, "c"), pair_of(Place::host, "d")};
  std::map<std::string, Measurement> measured;
  const auto put = [&](const OverlapPair& pair, double product, double copy) {
    measured[pair.compute_alone].seconds = 2, measured[pair.compute_beside].seconds = 2 * product;
    measured[pair.copy_alone].seconds = 5, measured[pair.copy_beside].seconds = 5 * copy;
  };
  put(pairs[0], 1.2, 1.05);
  put(pairs[1], 1.25, 1.05);
  EXPECT_FALSE(fit_overlaps(pairs, measured)) << "of one direction alone";
  put(pairs[2], 1.5, 0.99);
  const auto fit = fit_overlaps(pairs, measured);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->to_device.product_slowdown, std::sqrt(1.2 * 1.25) - 1, 1e-4);
  EXPECT_NEAR(fit->to_device.copy_slowdown, 0.05, 1e-4);
  EXPECT_EQ(fit->to_device.product_residual.points, 2);
  EXPECT_NEAR(fit->to_device.product_residual.median, 0.0204, 1e-3);
  EXPECT_NEAR(fit->to_host.product_slowdown, 0.5, 1e-4);
  EXPECT_EQ(fit->to_host.product_residual.points, 1) << "the other was not measured";
  EXPECT_EQ(fit->to_host.copy_slowdown, 0) << "faster is noise";
}

// Attention at a length: forward behind which a step copies to the host, backward behind which it copies back.
TEST(OverlapFit, HasAttentionBesideCopiesLengthByLength) {
  SweepOptions options = cpu_sweep();
  const std::size_t products = overlap_pairs(options).size();
  options.overlap_sequences = {512, 1024};
  const std::vector<OverlapPair> pairs = overlap_pairs(options);
  ASSERT_EQ(pairs.size(), products + 4);
  std::map<std::string, Measurement> measured;
  double times = 1.1;
  for (const OverlapPair& pair : pairs) {
    const bool attention = is_attention(pair.compute.op.kind);
    measured[pair.compute_alone].seconds = 2, measured[pair.compute_beside].seconds = 2 * (attention ? times : 1.5);
    measured[pair.copy_alone].seconds = 0.25, measured[pair.copy_beside].seconds = 0.25 * 1.02;
    if (attention) times += 0.1;
  }
  const auto fit = fit_overlaps(pairs, measured);
  ASSERT_TRUE(fit);
  EXPECT_NEAR(fit->to_host.product_slowdown, 0.5, 1e-4) << "of products alone";
  ASSERT_EQ(fit->attention.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const AttentionOverlap& row = fit->attention[i];
    const bool backward = i % 2 == 1;
    EXPECT_THAT(row.attention, HasSubstr(i < 2 ? "1 x 512 x" : "1 x 1024 x"));
    EXPECT_EQ(row.attention.starts_with("attention_backward"), backward) << row.attention;
    EXPECT_THAT(row.copy, HasSubstr(backward ? "copy_to_device" : "copy_to_host"));
    EXPECT_EQ(row.attention_seconds, 2);
    EXPECT_NEAR(row.attention_slowdown, 0.1 * static_cast<double>(i + 1), 1e-4);
    EXPECT_NEAR(row.copy_slowdown, 0.02, 1e-4);
    EXPECT_GT(row.copy_bytes_per_second, 1e6);
  }
  measured.erase(pairs.back().copy_beside);
  EXPECT_EQ(fit_overlaps(pairs, measured)->attention.size(), 3u) << "what was measured";
}

TEST(OverlapFit, IsWrittenWithItsSourceAndReadBack) {
  const Ideal ideal;
  CalibrationFit fit =
      fit_calibration(ideal.points, ideal.measured, BackendFacts{"cpu", "Ideal", "software", 4, 1e9}, std::nullopt);
  CopyOverlaps overlaps;
  overlaps.to_device.product_slowdown = 0.2, overlaps.to_device.copy_slowdown = 0.05;
  overlaps.to_device.product_residual.points = 6;
  overlaps.to_host.product_slowdown = 1.5, overlaps.to_host.copy_slowdown = 0.07;
  overlaps.attention = {{"attention at 32K", "64 MiB to the host", 0.5, 0.01, 5e10, 0.03}};
  overlaps.source = "a test of copies";
  fit.overlaps = overlaps;
  EXPECT_THAT(fit_table(fit), HasSubstr("attention at 32K during 64 MiB to the host: 500 ms, 1.010 times as long "
                                        "during the copy; 50 GB/s, 1.030 times as long"));
  const auto read = [](const std::string& text) {
    return read_user_calibration(parse_json(text, "ideal.json"), {"ideal.json", ""});
  };
  const std::string text = calibration_text(fit, "a test", "2026-11-22", "synthetic");
  const std::optional<CopyOverlaps> back = read(text).copy_overlaps;
  ASSERT_TRUE(back);
  EXPECT_EQ(back->to_device.product_slowdown, 0.2);
  EXPECT_EQ(back->to_device.copy_slowdown, 0.05);
  EXPECT_EQ(back->to_device.product_residual.points, 6);
  EXPECT_EQ(back->to_host.product_slowdown, 1.5);
  EXPECT_EQ(back->to_host.copy_slowdown, 0.07);
  EXPECT_EQ(back->source, "a test of copies");
  ASSERT_EQ(back->attention.size(), 1u);
  EXPECT_EQ(back->attention[0].attention, "attention at 32K");
  EXPECT_EQ(back->attention[0].copy, "64 MiB to the host");
  EXPECT_EQ(back->attention[0].attention_seconds, 0.5);
  EXPECT_EQ(back->attention[0].attention_slowdown, 0.01);
  EXPECT_EQ(back->attention[0].copy_bytes_per_second, 5e10);
  EXPECT_EQ(back->attention[0].copy_slowdown, 0.03);
  nlohmann::json bad = parse_json(text, "ideal.json");
  bad["overlap"]["copy_to_host"]["copy_slowdown"] = -1;
  EXPECT_THROW(read_user_calibration(bad, {"ideal.json", ""}), InputError);
  bad["overlap"] = {{"copy_to_host", bad["overlap"]["copy_to_host"]}};
  EXPECT_THROW(read_user_calibration(bad, {"ideal.json", ""}), InputError);
}

// --- The fit of published points

// The numbers of one die's products, which have little to choose from, are those of the bundled calibration; no curve
// fits worse; what is no fitted number stays.
TEST(PublishedFit, GivesTheBundledNumbersOfKernels) {
  nlohmann::json document = parse_json_file(ORRERY_SOURCE_DIR "/results/published/kernels.json");
  nlohmann::json& fits = document["fits"];
  using nlohmann::json;
  fits["dies"]["boards"] = json::array({json::array({"H100-SXM5-80GB", "H200-SXM5-141GB"})});
  fits["attention"] = {{"curves", json::array()}, {"lent", json::array()}, {"windows", json::array()}};
  fits["grouped"]["curves"] = json::array({fits["grouped"]["curves"].back()});
  const PublishedFit fit = fit_published_kernels(document, "kernels.json", "2026-11-28");
  ASSERT_EQ(fit.files.size(), 2u);
  EXPECT_THAT(fit.table, ::testing::HasSubstr("| H100-SXM5-80GB | matmul fp8 | 90 |"));
  const std::string name = "H100-SXM5-80GB.json";
  const auto found = nlohmann::json::parse(fit.files.at(name));
  auto bundled = parse_json_file(ORRERY_SOURCE_DIR "/results/calibration/" + name);
  for (const char* number : {"efficiency", "half_k", "operand_cost", "split_k", "sustained_efficiency",
                             "sustained_seconds", "memory_efficiency", "overlap_loss", "fixed_seconds"}) {
    const double value = bundled["matmul"]["bf16"][number];
    EXPECT_NEAR(found["matmul"]["bf16"][number].get<double>(), value, 2e-3 * value) << number;
  }
  EXPECT_NEAR(found["memory"]["efficiency"].get<double>(), bundled["memory"]["efficiency"].get<double>(), 1e-3);
  for (const char* curve : {"/matmul/bf16", "/matmul/fp8", "/grouped/fp8", "/memory"}) {
    const nlohmann::json::json_pointer at(std::string(curve) + "/residual/geometric_std");
    EXPECT_LE(found[at], bundled[at]) << curve;
  }
  for (const char* kept : {"method", "relative_to", "attention", "measured_shapes", "measured_attention", "source"})
    EXPECT_EQ(found[kept], bundled[kept]) << kept;
}

// Each number of a revision's curves is at least as good as that of the board that it revises.
TEST(PublishedFit, MakesNoKernelSlowerOnARevision) {
  using nlohmann::json;
  json document = parse_json_file(ORRERY_SOURCE_DIR "/results/published/kernels.json");
  json& fits = document["fits"];
  fits["dies"]["boards"] =
      json::array({json::array({"B200-SXM-180GB", "GB200"}), json::array({"B300-SXM-270GB", "GB300"})});
  fits["attention"] = {{"curves", json::array()}, {"lent", json::array()}, {"windows", json::array()}};
  fits["grouped"]["curves"] = json::array();
  const PublishedFit fit = fit_published_kernels(document, "kernels.json", "2026-11-28");
  for (const auto& [name, revised] : {std::pair{"B300-SXM-270GB", "B200-SXM-180GB"}, {"GB300", "GB200"}}) {
    const auto own = json::parse(fit.files.at(std::string(name) + ".json"));
    const auto its = json::parse(fit.files.at(std::string(revised) + ".json"));
    for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4}) {
      const std::string type(name_of(dtype));
      SCOPED_TRACE(name + (" " + type));
      const json &a = own["matmul"][type], &b = its["matmul"][type];
      const double gain = find_device(name).peak(dtype) / find_device(revised).peak(dtype);
      const double rates = gain * a["efficiency"].get<double>() / b["efficiency"].get<double>();
      EXPECT_GE(rates, 0.999);
      EXPECT_LE(a["half_k"].get<double>(), 1.001 * rates * b["half_k"].get<double>());
      for (const char* cost : {"operand_cost", "overlap_loss", "fixed_seconds"})
        EXPECT_LE(a[cost].get<double>(), b[cost].get<double>()) << cost;
      EXPECT_GE(a["memory_efficiency"].get<double>(), b["memory_efficiency"].get<double>());
    }
    EXPECT_GE(own["memory"]["efficiency"].get<double>(), its["memory"]["efficiency"].get<double>());
    EXPECT_LE(own["memory"]["fixed_seconds"].get<double>(), its["memory"]["fixed_seconds"].get<double>());
  }
}

TEST(PublishedFit, FitsOneClassOfCollectivesAloneAsWellAsTheBundledOne) {
  const auto curves = parse_json_file(ORRERY_SOURCE_DIR "/results/published/collectives.json");
  const PublishedFit fit = fit_published_collectives(curves, "collectives.json", "EFA v1");
  const auto found = nlohmann::json::parse(fit.files.at("collectives.json"));
  const auto bundled = parse_json_file(ORRERY_SOURCE_DIR "/results/calibration/collectives.json");
  EXPECT_EQ(found["node_classes"], bundled["node_classes"]);
  for (std::size_t i = 0; i < bundled["network_classes"].size(); ++i) {
    const auto &f = found["network_classes"][i], &b = bundled["network_classes"][i];
    if (b["name"] != "EFA v1") {
      EXPECT_EQ(f, b);
      continue;
    }
    EXPECT_NE(f["parameters"], b["parameters"]);
    EXPECT_LT(f["residual"]["median_error"], 0.07);
    EXPECT_LT(f["residual"]["median_error_from_1_mib"], 0.05);
  }
}

TEST(PublishedFit, RefusesADocumentThatHasNoFits) {
  EXPECT_THROW(fit_published_kernels({{"points", nlohmann::json::array()}}, "mine.json", ""), InputError);
  nlohmann::json other = {{"points", {{{"source", "mine"}, {"device", "mine"}}}}};
  other["fits"] = {{"dies", {{"boards", {{"a", "b"}}}}}, {"grouped", {{"curves", {{{"board", "other"}}}}}}};
  EXPECT_THROW(fit_published_kernels(other, "mine.json", ""), InputError);
  EXPECT_THROW(fit_published_collectives({{"curves", {{{"id", "mine"}}}}}, "mine.json", ""), InputError);
}

// --- What is checked in

TEST(CheckedInCpuCalibration, StatesTheResidualsThatItsPointsHave) {
  const std::string folder = ORRERY_SOURCE_DIR "/results/calibration/";
  int journals = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    constexpr std::string_view kSuffix = ".points.jsonl";
    std::string name = file.path().filename().string();
    if (!name.ends_with(kSuffix)) continue;
    name.resize(name.size() - kSuffix.size());
    SCOPED_TRACE(name);
    ++journals;
    const JournalContents journal = read_journal(file.path().string());
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    ASSERT_TRUE(calibration.measured);
    const KernelModel model(device, calibration);
    std::map<std::string, std::vector<double>> errors;
    for (const KernelPoint& p : sweep(cpu_sweep()))
      if (const auto found = journal.points.find(p.id); found != journal.points.end())
        errors[p.group].push_back(std::log(model.cost(p.op, p.tensors).seconds / found->second.seconds));
    const auto expect = [&](const std::string& group, const Residual& stated) {
      const Residual found = residual_of(errors[group]);
      EXPECT_EQ(found.points, stated.points) << group;
      EXPECT_NEAR(found.median, stated.median, 1e-4) << group;
      EXPECT_NEAR(found.bias, stated.bias, 1e-4) << group;
    };
    expect("matmul fp32", calibration.matmul[0].residual);
    expect("attention fp32", calibration.attention.residual);
    ASSERT_GE(calibration.memory_kinds.size(), 40u);
    for (const MemoryCurve& kind : calibration.memory_kinds) expect("memory " + kind.name, kind.residual);
  }
  EXPECT_GE(journals, 1);
}

// --- The journal

const JournalHeader kHeader{"cpu", "a CPU", "a compiler", "2026-11-22"};

TEST(Journal, GoesOnWhereItWasAndKeepsTheFastest) {
  const Folder folder;
  const std::string path = folder / "points.jsonl";
  {
    Journal journal(path, kHeader);
    journal.add("one", {.seconds = 2, .spread = 0, .issue_seconds = 0, .repetitions = 5});
  }
  JournalHeader tomorrow = kHeader;
  tomorrow.date = "2026-11-23";
  Journal journal(path, tomorrow);
  EXPECT_EQ(journal.header().date, "2026-11-22");
  journal.add("one", {.seconds = 3, .spread = 0, .issue_seconds = 0, .repetitions = 5});
  journal.add("one", {.seconds = 1, .spread = 0, .issue_seconds = 0, .repetitions = 5});
  EXPECT_EQ(read_journal(path).points.at("one").seconds, 1);
  EXPECT_EQ(read_journal(path).points.at("one").repetitions, 15);
}

TEST(Journal, LosesNoMoreThanTheLineThatWasCutOff) {
  const Folder folder;
  const std::string path = folder / "points.jsonl";
  { Journal(path, kHeader).add("one", {.seconds = 2, .spread = 0, .issue_seconds = 0, .repetitions = 5}); }
  { std::ofstream(path, std::ios::app) << "{\"id\": \"two\", \"sec"; }
  { Journal(path, kHeader).add("three", {.seconds = 4, .spread = 0, .issue_seconds = 0, .repetitions = 5}); }
  const JournalContents contents = read_journal(path);
  EXPECT_EQ(contents.points.size(), 2u);
  EXPECT_EQ(contents.points.count("three"), 1u);
}

TEST(Journal, OfAnotherMachineIsRefusedAndLeftAlone) {
  const Folder folder;
  const std::string path = folder / "points.jsonl";
  { Journal(path, kHeader).add("one", {.seconds = 2, .spread = 0, .issue_seconds = 0, .repetitions = 5}); }
  const std::string before = text_of(path);
  JournalHeader other = kHeader;
  other.device = "another CPU";
  EXPECT_THROW(Journal(path, other), InputError);
  { std::ofstream(folder / "notes.txt") << "hello\n"; }
  EXPECT_THROW(Journal(folder / "notes.txt", kHeader), InputError);
  EXPECT_EQ(text_of(folder / "notes.txt"), "hello\n");
  EXPECT_THROW(Journal(folder / "nowhere/points.jsonl", kHeader), InputError);
  EXPECT_EQ(text_of(path), before);
}

TEST(Calibrate, ACompleteJournalIsFittedWithoutMeasuring) {
  const Folder folder;
  const Ideal ideal;
  CalibrateOptions options = options_for(make_cpu_backend()->facts());
  const BackendFacts facts = make_cpu_backend()->facts();
  options.journal = folder / "points.jsonl";
  options.date = "2026-11-22";
  options.passes = 1;
  {
    Journal journal(options.journal, {facts.kind, facts.device, facts.software, options.date});
    for (const auto& [id, m] : ideal.measured) journal.add(id, m);
  }
  options.budget_seconds = 1e-9;  // nothing is measured: copies are not in the journal, and stay out
  const std::string before = text_of(options.journal);
  const CalibrateResult result = calibrate([] { return make_cpu_backend(); }, options);
  EXPECT_EQ(text_of(options.journal), before);
  EXPECT_EQ(result.measured, ideal.measured.size());
  const nlohmann::json json = parse_json(result.text, "calibration");
  EXPECT_EQ(json.at("overlap").at("not_measured"), "the backend runs its streams one after another");
  EXPECT_THAT(fit_table(result.fit), HasSubstr("copies beside products           not measured"));
  EXPECT_FALSE(read_user_calibration(json, {}).copy_overlaps);
}

// --- Logs of nccl-tests

constexpr const char* kLog = R"(# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 4 minBytes 1024 maxBytes 67108864 step: 256(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid   6899 on     host-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid   6899 on     host-a device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid   6899 on     host-a device  2 [0000:0b:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid   6899 on     host-a device  3 [0000:0c:00] NVIDIA H100 80GB HBM3
host-a:6899 [0] NCCL INFO NET/Plugin: none
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    20.00    0.05    0.08      0    19.00    0.05    0.08      0
      262144         65536     float     sum      -1    25.00   10.49   15.73      0    24.00   10.92   16.38    N/A
    67108864      16777216     float     sum      -1   400.00  167.77  251.66      0   390.00  172.07  258.11      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 90.2
)";

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  const std::size_t at = text.find(what);
  if (at == std::string::npos) throw std::logic_error(what);
  return text.replace(at, what.size(), with);
}

CollectiveCurve only_curve(const std::string& text, const LogOptions& options = {}) {
  CollectiveLog log = parse_nccl_log(text, "my.log", options);
  if (log.curves.size() != 1) throw std::logic_error("not one curve");
  return log.curves.front();
}

TEST(NcclLog, ReadsBothColumnsAndTheHeader) {
  const CollectiveCurve curve = only_curve(kLog);
  EXPECT_EQ(curve.collective, "all_reduce");
  EXPECT_EQ(curve.ranks, 4);
  EXPECT_EQ(curve.nodes, 1);
  EXPECT_EQ(curve.device, "NVIDIA H100 80GB HBM3");
  EXPECT_EQ(curve.dtype, "float");
  ASSERT_EQ(curve.points.size(), 3u);
  EXPECT_EQ(curve.points[1].bytes, 262144);
  EXPECT_NEAR(curve.points[1].seconds, 25e-6, 1e-12);
  EXPECT_NEAR(only_curve(kLog, {.in_place = true, .collective = {}}).points[2].seconds, 390e-6, 1e-12);
  EXPECT_EQ(only_curve(replaced(kLog, "Collective test starting: all_reduce_perf", ""),
                       {.in_place = false, .collective = "all_reduce"})
                .kind,
            OpKind::all_reduce);
}

TEST(NcclLog, ReadsWhatMinusJWrites) {
  const char* json = R"({"version":1,"args":["./build/alltoall_perf","-g","2"],"nccl_version":22807,
    "config":{"nthreads":1,"ngpus":2,"devices":[{"rank":0,"hostname":"a","device_info":"NVIDIA A100"},
      {"rank":2,"hostname":"b","device_info":"NVIDIA A100"}]},
    "results":[{"size":1024,"count":128,"type":"float","redop":"none","root":"    -1",
      "out_of_place":{"time":30.5,"alg_bw":0.03,"bus_bw":0.02,"nwrong":0.0},
      "in_place":{"time":31.5,"alg_bw":0.03,"bus_bw":0.02,"nwrong":null}}]})";
  const CollectiveCurve curve = only_curve(json);
  EXPECT_EQ(curve.collective, "all_to_all");
  EXPECT_EQ(curve.ranks, 4);
  EXPECT_EQ(curve.nodes, 2);
  ASSERT_EQ(curve.points.size(), 1u);
  EXPECT_NEAR(curve.points[0].seconds, 30.5e-6, 1e-12);
}

void expect_refused(const std::string& log, const std::string& file_and_line, const char* says) {
  try {
    parse_nccl_log(log, "my.log", {});
    FAIL() << "was accepted: " << says;
  } catch (const InputError& error) {
    EXPECT_EQ(error.where().file, file_and_line);
    EXPECT_THAT(std::string(error.what()), HasSubstr(says));
  }
}

TEST(NcclLog, MalformedLogsAreRefusedAtTheirLine) {
  expect_refused("hello\n", "my.log", "not a log");
  expect_refused(replaced(kLog, "    25.00   10.49", "    fast   10.49"), "my.log:16", "fast");
  for (const char* size : {"     262144x ", "     -262144 ", "       2.6e5 "})
    expect_refused(replaced(kLog, "      262144 ", size), "my.log:16", "a row of ");
  expect_refused(replaced(kLog, "10.49   15.73      0    24.00   10.92   16.38    N/A", ""), "my.log:16", "truncated");
  expect_refused(replaced(kLog, "15.73      0", "15.73      7"), "my.log:16", "wrong");
  expect_refused(std::string(kLog).substr(0, std::string(kLog).find("# Out of")), "my.log:17", "complete");
  expect_refused(replaced(replaced(kLog, "# Collective test starting: all_reduce_perf", "#"), "#       size", "#"),
                 "my.log:15", "header");
  std::string one_rank = kLog;
  for (const char* rank : {"#  Rank  1", "#  Rank  2", "#  Rank  3"}) one_rank = replaced(one_rank, rank, "#  X");
  expect_refused(one_rank, "my.log", "2 ranks");
  expect_refused(replaced(kLog, "# Collective test starting: all_reduce_perf", "#"), "my.log", "--collective");
  expect_refused("{\"version\": 1}", "my.log", "-J");
}

// kLog as `before` makes each of its lines.
template <class Before>
std::string with_lines(Before before) {
  std::istringstream lines(kLog);
  std::string text;
  for (std::string line; std::getline(lines, line);) text += before(line) + "\n";
  return text;
}

TEST(NcclLog, WhatLaunchersPutBeforeALineIsOverlooked) {
  const CollectiveCurve plain = only_curve(kLog);
  for (const char* tag : {"[1,0]<stdout>:", "[1,0]<stdout> ", "[prterun-a-1@1,0]<stdout>: ", "0: ", " 00: ", "[0] ",
                          "[mpi-job-launcher-xyz] ", "[pod/nccl-worker-0/nccl] ", "node-17: ", "worker-1  | ",
                          "2025-01-02T03:04:05Z ", "2025-01-02T03:04:05.1234567Z ", "2025-01-02 03:04:05,123 INFO ",
                          "[2025-01-02 03:04:05] [1,0]<stdout>:", "\x1b[0m", "\x1b[36mhost-a\x1b[0m | "}) {
    const CollectiveCurve curve =
        only_curve(with_lines([&](const std::string& line) { return tag + line + "\x1b[0m\r"; }));
    EXPECT_EQ(curve.collective, plain.collective) << tag;
    EXPECT_EQ(curve.ranks, plain.ranks) << tag;
    EXPECT_EQ(curve.hosts, plain.hosts) << tag;
    ASSERT_EQ(curve.points.size(), plain.points.size()) << tag;
    for (std::size_t i = 0; i < plain.points.size(); ++i) {
      EXPECT_EQ(curve.points[i].bytes, plain.points[i].bytes) << tag;
      EXPECT_EQ(curve.points[i].seconds, plain.points[i].seconds) << tag;
    }
  }
  // A report that was pasted loses "#".
  const CollectiveCurve lost =
      only_curve(with_lines([](const std::string& line) { return line.starts_with('#') ? line.substr(1) : line; }));
  EXPECT_EQ(lost.ranks, plain.ranks);
  EXPECT_EQ(lost.points.size(), plain.points.size());
}

TEST(NcclLog, ProcessesThatRanByThemselvesAreNoCommunicator) {
  const std::string ranks =
      "#  Rank  0 Group  0 Pid   6899 on     host-a device  0 [0000:04:00] NVIDIA H100 80GB HBM3\n";
  expect_refused(replaced(kLog, ranks, ranks + ranks), "my.log", "rank 0 twice, in lines 6 and 7");
  // Two copies one after the other are two measurements; with their lines mixed they are none.
  EXPECT_EQ(parse_nccl_log(std::string(kLog) + kLog, "my.log", {}).curves.size(), 2u);
  const std::string rows = std::string(kLog).substr(std::string(kLog).find("        1024 "));
  expect_refused(kLog + rows, "my.log:20", "mixed");
  expect_refused(replaced(kLog, "167.77  251.66", "167.77    0.00"), "my.log:17", "a bus bandwidth of 0");
  std::string groups = kLog;
  for (const char* i : {"1", "2", "3"})
    groups = replaced(groups, fmt::format("Rank  {} Group  0", i), fmt::format("Rank  {} Group  {}", i, i));
  expect_refused(groups, "my.log", "4 groups of one rank");
  expect_refused(replaced(kLog, "Rank  3", "Rank  5"), "my.log", "rank 5 without rank 3");
  expect_refused(replaced(kLog, "values : 0 OK", "values : 3 FAILED"), "my.log:18", "3 values out of bounds");
}

TEST(NcclLog, GroupsWithinAHostAreOneOfThem) {
  std::string groups =
      replaced(replaced(kLog, "Rank  2 Group  0", "Rank  2 Group  1"), "Rank  3 Group  0", "Rank  3 Group  1");
  EXPECT_EQ(only_curve(groups).ranks, 2);
  for (const char* rank : {"Rank  1", "Rank  3"}) {
    const std::size_t host = groups.find("host-a", groups.find(rank));
    groups.replace(host, 6, "host-b");
  }
  expect_refused(groups, "my.log", "2 groups that run at once over 2 hosts");
}

TEST(NcclLog, SeveralTestsInOneLogAreTold) {
  const std::string two = kLog + replaced(replaced(kLog, "all_reduce_perf", "all_gather_perf"), "400.00", "300.00");
  const CollectiveLog both = parse_nccl_log(two, "my.log", {});
  ASSERT_EQ(both.curves.size(), 2u);
  EXPECT_EQ(both.curves[0].collective, "all_reduce");
  EXPECT_EQ(both.curves[1].collective, "all_gather");
  EXPECT_NEAR(both.curves[1].points[2].seconds, 300e-6, 1e-12);
  const CollectiveLog one = parse_nccl_log(two, "my.log", {.in_place = false, .collective = "all_gather"});
  ASSERT_EQ(one.curves.size(), 1u);
  EXPECT_EQ(one.curves[0].collective, "all_gather");
  EXPECT_THAT(one.left_out, ElementsAre(HasSubstr("all_reduce")));
  try {
    parse_nccl_log(two, "my.log", {.in_place = false, .collective = "broadcast"});
    FAIL() << "was accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("all_reduce, line"), HasSubstr("all_gather, line")));
  }
  std::string fewer = kLog;
  for (const char* rank : {"#  Rank  2", "#  Rank  3"}) fewer = replaced(fewer, rank, "#  X");
  const CollectiveLog sizes = parse_nccl_log(kLog + fewer, "my.log", {});
  ASSERT_EQ(sizes.curves.size(), 2u);
  EXPECT_EQ(sizes.curves[1].ranks, 2);
}

// Of four ranks, an all-reduce has a busbw of 1.5 times its algbw, a reduce-scatter of 0.75 times.
TEST(NcclLog, BandwidthsTellTestsWithoutNamesApart) {
  const std::string all_reduce = replaced(kLog, "# Collective test starting: all_reduce_perf", "#");
  std::string reduce_scatter = all_reduce;
  for (const auto& [from, to] :
       {std::pair{"10.49   15.73", "10.49    7.87"}, std::pair{"10.92   16.38", "10.92    8.19"},
        std::pair{"167.77  251.66", "167.77  125.83"}, std::pair{"172.07  258.11", "172.07  129.05"}})
    reduce_scatter = replaced(reduce_scatter, from, to);
  const auto read = [](const std::string& log, const char* collective) {
    return parse_nccl_log(log, "my.log", {.in_place = false, .collective = collective});
  };
  const CollectiveLog one = read(all_reduce + reduce_scatter, "all_reduce");
  EXPECT_EQ(one.curves.size(), 1u);
  EXPECT_THAT(one.left_out, ElementsAre(HasSubstr("of a reduction whose busbw is 0.75 times its algbw, line ")));
  EXPECT_EQ(read(reduce_scatter, "reduce_scatter").curves.size(), 1u);
  EXPECT_THROW(read(reduce_scatter, "all_reduce"), InputError);
  EXPECT_THROW(read(all_reduce, "reduce_scatter"), InputError);
  EXPECT_THROW(read(all_reduce, "reduce"), InputError);
  EXPECT_THROW(parse_nccl_log(reduce_scatter, "all_reduce.log", {}), InputError) << "the file's name is wrong";
  const std::string json = R"({"version":1,"args":[],"config":{"nthreads":1,"ngpus":4,"devices":[
      {"rank":0,"hostname":"a","device_info":"NVIDIA A100"}]},
    "results":[{"size":1048576,"out_of_place":{"time":30.5,"alg_bw":34.4,"bus_bw":25.8}}]})";
  EXPECT_EQ(read(json, "all_gather").curves.size(), 1u);
  EXPECT_THROW(read(json, "all_reduce"), InputError);
}

// A log of four ranks with this table.
std::string log_with(const std::string& table) {
  const std::string log = kLog;
  const std::string header =
      replaced(log.substr(0, log.find("#       size")), "# Collective test starting: all_reduce_perf", "#");
  return header + table + "# Avg bus bandwidth : 1\n";
}

TEST(NcclLog, LayoutsOfAllVersionsAreRead) {
  const auto points = [](const std::string& table, const char* collective, bool in_place = false) {
    return only_curve(log_with(table), {.in_place = in_place, .collective = collective}).points;
  };
  // The header has redop, the rows of what does not reduce leave it empty.
  const std::string empty =
      "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "#        (B)    (elements)                       (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
      "   268435456       1048576     float           520935    0.52    0.39  0e+00   519562    0.52    0.39  1e+00\n";
  EXPECT_NEAR(points(empty, "all_to_all").at(0).seconds, 0.520935, 1e-9);
  EXPECT_NEAR(points(empty, "all_to_all", true).at(0).seconds, 0.519562, 1e-9);
  const std::string without =
      "#       size         count      type     time   algbw   busbw  error     time   algbw   busbw  error\n"
      "   268435456       1048576     float   520935    0.52    0.39  0e+00      N/A     N/A     N/A    N/A\n";
  EXPECT_NEAR(points(without, "all_gather").at(0).seconds, 0.520935, 1e-9);
  try {
    points(without, "all_gather", true);
    FAIL() << "N/A was taken for a time";
  } catch (const InputError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("in-place"));
  }
  const std::string rooted =
      "#       size         count      type    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
      "   268435456      67108864     float       0   1500.0  178.96  178.96      0   1500.0  178.96  178.96    N/A\n";
  EXPECT_NEAR(points(rooted, "broadcast").at(0).seconds, 1500e-6, 1e-12);
  // The oldest count in milliseconds, and do not say so.
  const std::string oldest =
      "#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res\n"
      "    10000000       2500000   float     sum    0.628  15.93  23.90    0e+00    0.629  15.90  23.85    0e+00\n";
  EXPECT_NEAR(points(oldest, "all_reduce").at(0).seconds, 628e-6, 1e-12);
  // What was reduced is no all-gather.
  EXPECT_THROW(points(oldest, "all_gather"), InputError);
  EXPECT_THROW(points(empty, "all_reduce"), InputError);
}

TEST(NcclLog, RcclTestsAreReadAlike) {
  std::string log = replaced(kLog, "# nccl-tests version 2.17.6 nccl-headers=22807 nccl-library=22807",
                             "rccl-tests: Version develop:3a2dd5a");
  for (int i = 0; i < 4; ++i) log = replaced(log, "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X");
  const CollectiveCurve curve = only_curve(log);
  EXPECT_EQ(curve.device, "AMD Instinct MI300X");
  EXPECT_EQ(curve.ranks, 4);
  EXPECT_EQ(curve.points.size(), 3u);
}

CollectiveCurve curve_on(OpKind kind, std::int64_t ranks, std::int64_t hosts, std::vector<CollectivePoint> points) {
  return {.id = "mine",
          .source = "mine.log",
          .collective = "all_reduce",
          .kind = kind,
          .ranks = ranks,
          .hosts = hosts,
          .nodes = hosts,
          .device = {},
          .dtype = "float",
          .points = std::move(points)};
}

TEST(PlaceOn, HostsOfARackAreOneNode) {
  const Cluster rack = read_cluster({{"node", "gb200-nvl72"}, {"nodes", 2}}, {});
  const auto nodes_of = [&](std::int64_t ranks, std::int64_t hosts) {
    CollectiveCurve curve = curve_on(OpKind::all_reduce, ranks, hosts, {});
    place_on(rack, curve);
    return curve.nodes;
  };
  EXPECT_EQ(nodes_of(72, 18), 1);
  EXPECT_EQ(nodes_of(16, 4), 1);
  EXPECT_EQ(nodes_of(144, 36), 2);
  EXPECT_THROW(nodes_of(76, 19), InputError);
  EXPECT_THROW(nodes_of(288, 72), InputError);
  const Cluster two = read_cluster({{"node", "dgx-h100"}, {"nodes", 2}}, {});
  CollectiveCurve halves = curve_on(OpKind::all_reduce, 8, 2, {});
  place_on(two, halves);
  EXPECT_EQ(halves.nodes, 2);
}

TEST(PlaceOn, ALogOfAnotherDeviceIsRefused) {
  const Cluster cluster = read_cluster(nlohmann::json("dgx-h100"), {});
  CollectiveCurve curve = curve_on(OpKind::all_reduce, 8, 1, {});
  for (const char* same : {"NVIDIA H100 80GB HBM3", "NVIDIA Graphics Device", "", "NVIDIA H100-SXM5-80GB"}) {
    curve.device = same;
    EXPECT_NO_THROW(place_on(cluster, curve)) << same;
  }
  for (const char* other :
       {"NVIDIA A100-SXM4-80GB", "Tesla V100-SXM2-32GB", "AMD Instinct MI300X", "NVIDIA GeForce RTX 3090"}) {
    curve.device = other;
    EXPECT_THROW(place_on(cluster, curve), InputError) << other;
  }
}

TEST(CollectiveFit, LeavesNoAlgorithmFasterThanWhatWasMeasured) {
  const Cluster cluster =
      read_cluster({{"device", "V100-SXM2-32GB"}, {"nodes", 8}, {"inter_node_bytes_per_second", 12.5e9}}, {});
  const CollectiveCurve reduced =
      curve_on(OpKind::all_reduce, 64, 8, {{268435456, 0.122131, 6}, {536870912, 0.244833, 7}});
  CollectiveCurve gathered = reduced;
  gathered.kind = OpKind::all_gather;
  for (CollectivePoint& p : gathered.points) p.seconds /= 2;
  GroupSpan span;
  span.ranks = 64, span.nodes = span.ranks_per_node = 8;
  for (const CollectiveCurve& curve : {reduced, gathered}) {
    const CollectiveFit fit = fit_collectives(cluster, {curve}, "a test");
    const CollectiveModel model(cluster, find_collective_calibration(cluster, fit.classes));
    for (const CollectivePoint& p : curve.points)
      EXPECT_NEAR(model.cost(curve.kind, p.bytes, span).seconds, p.seconds, 0.02 * p.seconds);
    EXPECT_FALSE(fit.errors.front().is_missed());
    // Links that are slow for a ring are slow for trees and exchanges.
    const double bytes = 536870912, reduction = model.cost(OpKind::all_reduce, bytes, span).seconds;
    EXPECT_GT(reduction, 0.9 * 0.244833);
    EXPECT_GT(model.cost(OpKind::all_to_all, bytes, span).seconds,
              1.5 * CollectiveModel(cluster, find_collective_calibration(cluster))
                        .cost(OpKind::all_to_all, bytes, span)
                        .seconds);
  }
}

TEST(CollectiveFit, SaysWhichPointsNoFitMeets) {
  const Cluster cluster = read_cluster(nlohmann::json("dgx-h100"), {});
  const CollectiveFit fit = fit_collectives(
      cluster, {curve_on(OpKind::all_gather, 8, 1, {{1e9, 3e-3, 1}, {1e9, 3e-3, 2}, {1e9, 60e-3, 3}, {1e9, 60e-6, 4}})},
      "a test");
  EXPECT_TRUE(fit.errors.front().is_missed());
  ASSERT_EQ(fit.errors.front().missed.size(), 2u);
  EXPECT_EQ(fit.errors.front().missed[0].point.line, 3u);
  CurveError error{.id = "mine", .points = 20, .before = 0, .after = 0, .missed = {{{1e9, 3e-3, 1}, 9e-3}}};
  EXPECT_FALSE(error.is_missed());
  error.missed.push_back({{1e9, 3e-3, 2}, 90e-3});
  EXPECT_TRUE(error.is_missed());
}

TEST(CollectiveFit, MeetsCurvesOfTheModelItselfWithOtherParameters) {
  const Cluster cluster = read_cluster(nlohmann::json("dgx-h100"), {});
  CollectiveCalibration other = find_collective_calibration(cluster);
  other.intra.ring_share *= 0.8;
  for (double& seconds : other.intra.base_seconds) seconds *= 2;
  const CollectiveModel model(cluster, other);
  CollectiveCurve curve{.id = "mine",
                        .source = "mine.log",
                        .collective = "all_gather",
                        .kind = OpKind::all_gather,
                        .ranks = 8,
                        .hosts = 1,
                        .nodes = 1,
                        .device = {},
                        .dtype = "float",
                        .points = {}};
  GroupSpan span;
  span.ranks = span.ranks_per_node = 8;
  for (double bytes = 1024; bytes < 5e9; bytes *= 2)
    curve.points.push_back({bytes, model.cost(curve.kind, bytes, span).seconds, 0});
  const CollectiveFit fit = fit_collectives(cluster, {curve}, "a test");
  ASSERT_EQ(fit.errors.size(), 1u);
  EXPECT_GT(fit.errors[0].before, 0.1);
  EXPECT_LT(fit.errors[0].after, 0.02);

  const std::string text = collectives_json(fit, "test").dump();
  const UserCalibration user = read_user_calibration(parse_json(text, "nccl.json"), {"nccl.json", ""});
  const CollectiveCalibration used = find_collective_calibration(cluster, user.collectives);
  EXPECT_EQ(used.intra_source, "a test");
  EXPECT_NEAR(used.intra.ring_share / other.intra.ring_share, 1, 0.05);
  const auto curves = parse_json(curves_text(cluster, {curve}, "test"), "curves.json");
  EXPECT_EQ(curves["curves"][0]["points"].size(), curve.points.size());

  CollectiveCurve larger = curve;
  larger.ranks = 16;
  EXPECT_THROW(place_on(cluster, larger), InputError);
}

}  // namespace
}  // namespace orrery
