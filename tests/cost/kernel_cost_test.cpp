// Does the time of one kernel behave as theory says it must?
#include "sim/cost/kernel_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <vector>

#include "sim/cost/calibration.h"
#include "sim/cost/step_calibration.h"
#include "sim/hardware/presets.h"
#include "tests/cost/real.h"

namespace orrery {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kMultiprocessors = 100;

Device simple_device() {
  Device d;
  d.name = "simple";
  d.vendor = "NVIDIA";
  d.architecture = "Ampere";
  d.peak_flops_per_second = {50e12, 100e12, 100e12, 200e12};
  d.vector_flops_per_second = 10e12;
  d.memory_bytes_per_second = 1e12;
  d.multiprocessors = kMultiprocessors;
  return d;
}

// One tile, no losses but those a test adds.
Calibration simple_calibration() {
  Calibration c;
  c.name = "simple";
  MatmulCurve curve;
  curve.tiles = {{128, 128}};
  c.matmul.assign(7, curve);
  c.attention_kernels = {c.attention};
  c.memory_efficiency = 0.8;
  c.kernel_fixed_seconds = 2e-6;
  return c;
}

double gemm_bytes(const GemmShape& s, double width = 2) {
  const double b = real(s.batch), m = real(s.m), n = real(s.n), k = real(s.k);
  return b * (width * (m * k + k * n) + 2 * m * n);
}
double gemm_flops(const GemmShape& s) { return 2 * real(s.batch) * real(s.m) * real(s.n) * real(s.k); }

// x [m, k] . w [k, n] as an op of a Program.
struct Linear {
  std::vector<Tensor> tensors;
  Op op;
};
Tensor matrix(std::int64_t rows, std::int64_t columns, Dtype dtype = Dtype::bf16) {
  Tensor t;
  t.rank = 2;
  t.sizes[0] = rows;
  t.sizes[1] = columns;
  t.dtype = dtype;
  return t;
}
Linear linear(std::int64_t m, std::int64_t n, std::int64_t k, Dtype dtype = Dtype::bf16) {
  Linear l{{matrix(m, k, dtype), matrix(k, n, dtype), matrix(m, n)}, {}};
  l.op.kind = OpKind::linear;
  l.op.name = "fc1";
  l.op.compute_dtype = dtype;
  l.op.reads[0] = 0;
  l.op.reads[1] = 1;
  l.op.writes[0] = 2;
  return l;
}

AttentionShape attention(std::int64_t sequence, bool causal = false, std::int64_t head_dim = 128) {
  AttentionShape s;
  s.batch = 2;
  s.heads = s.kv_heads = 16;
  s.queries = s.keys = sequence;
  s.head_dim = s.value_head_dim = head_dim;
  s.causal = causal;
  return s;
}
double attention_flops(const AttentionShape& s, bool backward) {
  const double pairs = real(s.batch) * real(s.heads) * real(s.queries) * real(s.keys) * (s.causal ? 0.5 : 1);
  return (backward ? 5 : 2) * 2 * pairs * real(s.head_dim);
}
double attention_bytes(const AttentionShape& s) { return real(8 * s.batch * s.heads * s.queries * s.head_dim); }
double seconds_of(const KernelModel& model, const AttentionShape& s, bool backward = false) {
  return model.attention_seconds(s, Dtype::bf16, backward, attention_flops(s, backward), attention_bytes(s));
}

TEST(Matmul, TakesWholeWavesOfTiles) {
  const Device device = simple_device();
  const Calibration calibration = simple_calibration();
  const KernelModel model(device, calibration);
  // One tile: 2 * 128 * 128 * k FLOPs at a hundredth of the peak.
  const std::int64_t k = 4096;
  const double wave = 2.0 * 128 * 128 * real(k) / (100e12 / kMultiprocessors);
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 10, 128 * 10, k}, Dtype::bf16, 0), wave, 1e-9 * wave);
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 10, 128 * 10 + 1, k}, Dtype::bf16, 0), 2 * wave, 1e-9 * wave);
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 20, 128 * 10, k}, Dtype::bf16, 0), 2 * wave, 1e-9 * wave);
  // 60 tiles are not worth splitting over 100 multiprocessors.
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 6, 128 * 10, k}, Dtype::bf16, 0), wave, 1e-9 * wave);
}

TEST(Matmul, SplitsTheInnerDimensionOverIdleMultiprocessors) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  const std::int64_t k = 4096;
  const double wave = 2.0 * 128 * 128 * real(k) / (100e12 / kMultiprocessors);
  const GemmShape shape{1, 128 * 5, 128 * 5, k};  // 25 tiles: each four times over
  EXPECT_NEAR(KernelModel(device, calibration).matmul_seconds(shape, Dtype::bf16, 0), wave / 4, 1e-9 * wave);
  for (MatmulCurve& curve : calibration.matmul) curve.split_k = real(k);
  EXPECT_NEAR(KernelModel(device, calibration).matmul_seconds(shape, Dtype::bf16, 0), wave, 1e-9 * wave)
      << "splitting that costs more than it saves is not done";
}

// Half the multiprocessors idle: just enough for each tile's inner dimension to be split in two.
TEST(Matmul, SplitsOnceHalfOfTheMultiprocessorsIdle) {
  const Device device = simple_device();
  const Calibration calibration = simple_calibration();
  const KernelModel model(device, calibration);
  const std::int64_t k = 4096;
  const double wave = 2.0 * 128 * 128 * real(k) / (100e12 / kMultiprocessors);
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 5, 128 * 10, k}, Dtype::bf16, 0), wave / 2, 1e-9 * wave) << "50 tiles";
  EXPECT_NEAR(model.matmul_seconds({1, 128 * 3, 128 * 17, k}, Dtype::bf16, 0), wave, 1e-9 * wave) << "51 tiles";
}

TEST(Matmul, BatchesFillWavesTogether) {
  const Device device = simple_device();
  const Calibration calibration = simple_calibration();
  const KernelModel model(device, calibration);
  const GemmShape one{1, 128 * 7, 128 * 8, 128};  // 56 tiles of 100: one wave, half empty
  GemmShape batch = one;
  batch.batch = 25;  // 1400 tiles: 14 full waves instead of 25
  const double single = model.matmul_seconds(one, Dtype::bf16, 0);
  EXPECT_NEAR(model.matmul_seconds(batch, Dtype::bf16, 0), 14 * single, 1e-9 * single);
}

TEST(Matmul, MemoryBoundsThinProducts) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  for (MatmulCurve& curve : calibration.matmul) {
    curve.memory_efficiency = 0.25;
    curve.fixed_seconds = 3e-6;
    curve.overlap_loss = 0.25;
  }
  const KernelModel model(device, calibration);
  const Linear thin = linear(1, 8192, 8192);
  const KernelCost cost = model.cost(thin.op, thin.tensors);
  const double memory = cost.bytes / (0.25 * 1e12);
  // 64 tiles of 100 multiprocessors: one wave, too many to split.
  const double compute = 2.0 * 128 * 128 * 8192 / (100e12 / kMultiprocessors);
  EXPECT_NEAR(cost.seconds, 3e-6 + memory + 0.25 * compute, 1e-12);
  EXPECT_EQ(cost.bytes, 2.0 * (8192 + 8192.0 * 8192 + 8192));
  EXPECT_EQ(cost.bound, KernelCost::Bound::memory);

  const Linear thick = linear(8192, 8192, 8192);
  EXPECT_EQ(model.cost(thick.op, thick.tensors).bound, KernelCost::Bound::compute);
  const Linear tiny = linear(8, 8, 8);
  EXPECT_EQ(model.cost(tiny.op, tiny.tensors).bound, KernelCost::Bound::fixed);
  const Linear flat = linear(8192, 8192, 8);
  EXPECT_EQ(model.cost(flat.op, flat.tensors).bound, KernelCost::Bound::memory);
}

TEST(Matmul, PowerLimitSlowsLongProductsOnly) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  const KernelModel cool(device, calibration);
  Calibration limited = calibration;
  for (MatmulCurve& curve : limited.matmul) {
    curve.sustained_efficiency = 0.5;
    curve.sustained_seconds = 1e-3;
  }
  const KernelModel warm(device, limited);
  const GemmShape small{1, 1280, 1280, 128}, large{1, 128000, 128000, 4096};
  EXPECT_NEAR(warm.matmul_seconds(small, Dtype::bf16, 0) / cool.matmul_seconds(small, Dtype::bf16, 0), 1, 0.01);
  EXPECT_NEAR(warm.matmul_seconds(large, Dtype::bf16, 0) / cool.matmul_seconds(large, Dtype::bf16, 0), 2, 0.01);
}

TEST(Matmul, OfExpertsIsCostedByTheCurveOfGroups) {
  const Device device = find_device("A100-SXM4-80GB");
  Calibration calibration = find_calibration(device);
  calibration.grouped.assign(static_cast<std::size_t>(kDtypes), GroupedCurve{0.5, 1e-6, "a bench", {}, {}});
  const KernelModel model(device, calibration);
  const auto of_groups = [](std::int64_t rows, std::int64_t columns) {
    Tensor t = matrix(rows, columns);
    t.rank = 3;
    std::copy_backward(&t.sizes[0], &t.sizes[2], &t.sizes[3]);
    t.sizes[0] = 16;
    return t;
  };
  Linear l = linear(1024, 5120, 3584);
  for (Tensor& t : l.tensors) t = of_groups(t.sizes[0], t.sizes[1]);
  l.op.group_dims = 1;
  const GemmShape shape{16, 1024, 5120, 3584};
  const KernelCost cost = model.cost(l.op, l.tensors);
  EXPECT_DOUBLE_EQ(cost.seconds, model.grouped_seconds(shape, Dtype::bf16, cost.bytes));
  EXPECT_EQ(cost.flops, 2.0 * 16 * 1024 * 5120 * 3584);
  EXPECT_THAT(model.explain(l.op, l.tensors), HasSubstr("16 groups: at 50.0%"));
  // Compute bounds it: half the rate, and 15 groups behind the first.
  const double grouped = model.grouped_seconds(shape, Dtype::bf16, 0);
  calibration.grouped.clear();
  const double batched = KernelModel(device, calibration).matmul_seconds(shape, Dtype::bf16, 0);
  const double fixed = calibration.matmul[static_cast<std::size_t>(Dtype::bf16)].fixed_seconds;
  EXPECT_NEAR(grouped, 2 * (batched - fixed) + fixed + 15e-6, 1e-9);
}

TEST(Matmul, AWeightGradientPaysForAccumulating) {
  const Device device = find_device("A100-SXM4-80GB");
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  // tokens x k and tokens x n give k x n, in fp32.
  Linear gradient{{matrix(512, 4096), matrix(512, 4096), matrix(4096, 4096, Dtype::fp32)}, {}};
  gradient.op.kind = OpKind::linear_weight_gradient;
  gradient.op.reads[0] = 0;
  gradient.op.reads[1] = 1;
  gradient.op.writes[0] = 2;
  const KernelCost plain = model.cost(gradient.op, gradient.tensors);
  gradient.op.accumulate = true;
  const KernelCost accumulating = model.cost(gradient.op, gradient.tensors);
  EXPECT_EQ(accumulating.bytes - plain.bytes, 4.0 * 4096 * 4096);
  EXPECT_EQ(accumulating.flops, plain.flops);
  EXPECT_GT(accumulating.seconds, plain.seconds);
}

TEST(Matmul, Fp8IsFasterThanBf16WhereComputeBounds) {
  for (const char* name : {"H100-SXM5-80GB", "H200-SXM5-141GB", "B200-SXM-180GB", "GB200", "L40S"}) {
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    const KernelModel model(device, calibration);
    const GemmShape shape{1, 8192, 8192, 8192};
    const double bf16 = model.matmul_seconds(shape, Dtype::bf16, gemm_bytes(shape));
    const double fp8 = model.matmul_seconds(shape, Dtype::fp8, gemm_bytes(shape, 1));
    EXPECT_LT(fp8, bf16 / 1.3) << name;
    EXPECT_GT(fp8, bf16 / 2.5) << name;
  }
}

// What training multiplies: some thousand tokens by a layer's matrices.
TEST(Matmul, Nvfp4IsFasterThanFp8WhereComputeBounds) {
  for (const char* name : {"B200-SXM-180GB", "GB200", "B300-SXM-270GB", "GB300", "RTX-5090"}) {
    const Device device = find_device(name);
    const Calibration calibration = find_calibration(device);
    const KernelModel model(device, calibration);
    const double of_peaks = device.peak(Dtype::nvfp4) / device.peak(Dtype::fp8);
    for (const std::int64_t m : {4096, 8192, 16384})
      for (const std::int64_t n : {4096, 8192, 28672})
        for (const std::int64_t k : {4096, 8192, 28672}) {
          const GemmShape shape{1, m, n, k};
          const auto bytes = [&](Dtype dtype) {
            return real(bytes_of(dtype, m * k) + bytes_of(dtype, k * n) + bytes_of(Dtype::bf16, m * n));
          };
          const double fp8 = model.matmul_seconds(shape, Dtype::fp8, bytes(Dtype::fp8));
          const double nvfp4 = model.matmul_seconds(shape, Dtype::nvfp4, bytes(Dtype::nvfp4));
          EXPECT_LT(nvfp4, fp8) << name << ' ' << m << ' ' << n << ' ' << k;
          EXPECT_GT(nvfp4 * of_peaks * 1.1, fp8) << name << ' ' << m << ' ' << n << ' ' << k;
        }
  }
}

// A device that was not measured in it has fp8's curve, relative to its own peak.
TEST(Matmul, Nvfp4WithoutACurveHasThatOfFp8) {
  const Device device = find_device("B200-SXM-180GB");
  Calibration lent = find_calibration(device);
  EXPECT_FALSE(lent.lends_to(Dtype::nvfp4));
  const Device limited = find_device("B200-SXM-180GB-limited");
  const Calibration own = find_calibration(limited);
  EXPECT_TRUE(own.lends_to(Dtype::nvfp4));
  EXPECT_EQ(curve_origin(device, lent, Dtype::nvfp4), CurveOrigin::own);
  EXPECT_EQ(curve_origin(limited, own, Dtype::bf16), CurveOrigin::own);
  const Device l40s = find_device("L40S"), h200 = find_device("H200-SXM5-141GB");
  EXPECT_EQ(curve_origin(l40s, find_calibration(l40s), Dtype::bf16), CurveOrigin::same_vendor);  // an A100's attention
  EXPECT_EQ(curve_origin(h200, find_calibration(h200), Dtype::bf16), CurveOrigin::own);          // an H100's
  EXPECT_EQ(curve_origin(limited, own, Dtype::nvfp4), CurveOrigin::same_vendor);
  EXPECT_FALSE(KernelModel(limited, own).near_measured(GemmShape{1, 4096, 4096, 4096}, Dtype::nvfp4));
  Device without = find_device("L40S");
  const Calibration of_fp8 = find_calibration(without);
  without.peak_flops_per_second[static_cast<std::size_t>(Dtype::nvfp4)] = 2 * without.peak(Dtype::fp8);
  EXPECT_TRUE(of_fp8.lends_to(Dtype::nvfp4));
  const KernelModel model(without, of_fp8);
  const GemmShape shape{1, 16384, 16384, 16384};
  const double ratio = model.matmul_seconds(shape, Dtype::fp8, 0) / model.matmul_seconds(shape, Dtype::nvfp4, 0);
  EXPECT_NEAR(ratio, 2, 0.2);
}

TEST(Matmul, Fp8WithoutUnitsForItRunsAsBf16) {
  const Device device = find_device("A100-SXM4-80GB");
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  const GemmShape shape{1, 4096, 4096, 4096};
  EXPECT_EQ(model.matmul_seconds(shape, Dtype::fp8, 1e6), model.matmul_seconds(shape, Dtype::bf16, 1e6));
}

// Every preset, over a grid that crosses tile, wave and split boundaries.
class EveryDevice : public ::testing::TestWithParam<std::string> {
 protected:
  EveryDevice() : device(find_device(GetParam())), calibration(find_calibration(device)), model(device, calibration) {}
  Device device;
  Calibration calibration;
  KernelModel model;
};

const std::vector<std::int64_t> kSizes{1, 16, 63, 64, 65, 128, 200, 256, 257, 700, 1024, 1500, 3000, 4096, 7000, 12288};

TEST_P(EveryDevice, MatmulGrowsWithEachDimension) {
  for (const std::int64_t a : kSizes)
    for (const std::int64_t b : kSizes)
      for (const Dtype dtype : {Dtype::bf16, Dtype::fp8, Dtype::nvfp4, Dtype::fp32}) {
        double of_m = 0, of_n = 0, of_k = 0, of_batch = 0;
        for (const std::int64_t size : kSizes) {
          const auto next = [&](const GemmShape& s, double& last, const char* what) {
            const double seconds = model.matmul_seconds(s, dtype, gemm_bytes(s));
            EXPECT_GE(seconds, last * (1 - 1e-12)) << what << ' ' << s.batch << ' ' << s.m << ' ' << s.n << ' ' << s.k;
            last = seconds;
          };
          next({1, size, a, b}, of_m, "m");
          next({1, a, size, b}, of_n, "n");
          next({1, a, b, size}, of_k, "k");
          next({size, 128, a, b}, of_batch, "batch");
        }
      }
}

TEST_P(EveryDevice, NothingBeatsTheRoofline) {
  for (const std::int64_t m : kSizes)
    for (const std::int64_t n : kSizes)
      for (const std::int64_t k : kSizes)
        for (const Dtype dtype : {Dtype::bf16, Dtype::fp16, Dtype::fp8, Dtype::nvfp4, Dtype::fp32}) {
          const GemmShape s{1, m, n, k};
          const double seconds = model.matmul_seconds(s, dtype, gemm_bytes(s));
          ASSERT_GT(seconds, gemm_flops(s) / device.peak(dtype)) << m << ' ' << n << ' ' << k;
          ASSERT_GT(seconds, gemm_bytes(s) / device.memory_bytes_per_second) << m << ' ' << n << ' ' << k;
        }
  for (const AttentionCurve& curve : calibration.attention_kernels) {
    Calibration other = calibration;
    ASSERT_TRUE(use_attention_kernel(other, curve.name));
    const KernelModel attending(device, other);
    for (const std::int64_t sequence : {16, 512, 4096, 131072, 1048576})
      for (const std::int64_t head_dim : {32, 64, 128, 256, 576})
        for (const bool backward : {false, true})
          for (const bool causal : {false, true}) {
            const AttentionShape s = attention(sequence, causal, head_dim);
            EXPECT_GT(seconds_of(attending, s, backward), attention_flops(s, backward) / device.peak(Dtype::bf16))
                << curve.name << ' ' << sequence << ' ' << head_dim;
          }
  }
  EXPECT_GT(model.memory_seconds(1e9), 1e9 / device.memory_bytes_per_second);
}

TEST_P(EveryDevice, AttentionGrowsWithSequenceAndHalvesWhenCausal) {
  double last = 0;
  for (const std::int64_t sequence : {1, 64, 128, 129, 512, 1000, 4096, 16384, 131072}) {
    const double seconds = seconds_of(model, attention(sequence));
    EXPECT_GT(seconds, last) << sequence;
    last = seconds;
    EXPECT_GT(seconds_of(model, attention(sequence), true), seconds * (1 - 1e-9)) << "backward, " << sequence;
  }
  EXPECT_NEAR(seconds_of(model, attention(131072, true)) / last, 0.5, 0.02);
  EXPECT_GT(seconds_of(model, attention(512, true)) / seconds_of(model, attention(512)), 0.5)
      << "short causal rows pay the diagonal";
}

TEST_P(EveryDevice, AWindowCostsNoMoreThanTheWholeSequence) {
  AttentionShape windowed = attention(8192, true);
  windowed.window = 1024;
  const double pairs = 2.0 * 16 * 8192 * 1024;
  const double seconds =
      model.attention_seconds(windowed, Dtype::bf16, false, 4 * pairs * 128, attention_bytes(windowed));
  EXPECT_LT(seconds, seconds_of(model, attention(8192, true)));
}

// Causal attention and its backward over tensors 0 (queries, keys and values), 1 (the result) and 2 (gradients).
struct CausalAttention {
  Op forward, backward;

  CausalAttention() {
    forward.kind = OpKind::attention;
    forward.reads[0] = 0;
    forward.writes[0] = 1;
    backward.kind = OpKind::attention_backward;
    backward.reads[0] = backward.reads[1] = 1;
    backward.reads[3] = 0;
    backward.writes[0] = 2;
    forward.causal = backward.causal = true;
  }
};

// Dao 2023, section 3.3, with a window: its pairs are executed, and the multiprocessors that idle at the end wait for
// tiles of the window's keys, not of the sequence's. Queries whose window leaves out keys before them pay for its edge.
TEST(Attention, OfAWindowCostsItsPairsItsEdgeAndALastWaveOfItsKeys) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  AttentionCurve& curve = calibration.attention;
  curve.forward_efficiency = 0.7, curve.backward_efficiency = 0.5;
  curve.half_sequence = 100;
  curve.half_head_dim = 32, curve.backward_half_head_dim = 64;
  curve.forward_last_wave = 0.25, curve.backward_last_wave = 0.5;
  curve.forward_window_edge = 300, curve.backward_window_edge = 500;
  curve.fixed_seconds = 4e-6;
  const KernelModel model(device, calibration);
  constexpr std::int64_t kBatch = 2, kHeads = 16, kSequence = 8192, kWindow = 1024, kHeadDim = 128;
  const auto shape = [](std::int64_t parts, Dtype dtype = Dtype::bf16) {
    Tensor t;
    t.rank = 5;
    t.sizes = {kBatch, kSequence, kHeads, parts, kHeadDim, 1};
    t.dtype = dtype;
    return t;
  };
  const std::vector<Tensor> tensors{shape(3), shape(1), shape(3)};
  auto [forward, backward] = CausalAttention();
  for (const std::int64_t window : {std::int64_t{0}, kWindow, 2 * kSequence}) {
    const double keys = real(window == kWindow ? kWindow : kSequence), sequence = real(kSequence);
    const double rows = real(kBatch * kHeads * kSequence);
    const double pairs = real(kBatch * kHeads) * (sequence * keys - keys * keys / 2);
    forward.window = backward.window = window;
    const double cut = 1 - keys / sequence;  // of the queries
    const double waiting_forward = rows * (100 + 300 * cut) + 0.25 * kMultiprocessors * 128 * keys,
                 waiting_backward = rows * (100 + 500 * cut) + 0.5 * kMultiprocessors * 128 * keys;
    const double seconds_forward =
        4e-6 + 4 * real(kHeadDim) * (pairs + waiting_forward) / (100e12 * 0.7) * (1 + 32.0 / kHeadDim);
    const double seconds_backward =
        4e-6 + 10 * real(kHeadDim) * (pairs + waiting_backward) / (100e12 * 0.5) * (1 + 64.0 / kHeadDim);
    EXPECT_NEAR(model.cost(forward, tensors).seconds, seconds_forward, 1e-12 * seconds_forward) << window;
    EXPECT_NEAR(model.cost(backward, tensors).seconds, seconds_backward, 1e-12 * seconds_backward) << window;
  }
}

// cuDNN's kernels at gpt-oss's shapes (cudnn-frontend, sdpa_benchmark_training): in MXFP8 the forward skips what lies
// outside a window of 128 and takes as long as in 16 bits, the backward takes as long as without a window.
TEST(KernelCost, BackwardsInFp8ComputeWhatLiesOutsideAWindow) {
  const Device device = find_device("GB200");
  const KernelModel model(device, find_calibration(device));
  const auto [forward, backward] = CausalAttention();
  const auto seconds = [&](Op op, Dtype dtype, std::int64_t window) {
    op.window = window;
    const auto shape = [](std::int64_t parts, Dtype type) {
      Tensor t;
      t.rank = 5;
      t.sizes = {2, 4096, 128, parts, 64, 1};
      t.dtype = type;
      return t;
    };
    return model.cost(op, std::vector<Tensor>{shape(3, dtype), shape(1, Dtype::bf16), shape(3, Dtype::bf16)}).seconds;
  };
  EXPECT_EQ(seconds(backward, Dtype::mxfp8, 128), seconds(backward, Dtype::mxfp8, 0));
  EXPECT_NEAR(seconds(backward, Dtype::mxfp8, 128), 2.08e-3, 0.25 * 2.08e-3);
  EXPECT_LT(seconds(backward, Dtype::bf16, 128), 0.5 * seconds(backward, Dtype::bf16, 0));
  EXPECT_LT(seconds(forward, Dtype::mxfp8, 128), 0.5 * seconds(forward, Dtype::mxfp8, 0));
}

TEST_P(EveryDevice, MemoryBoundKernelsStreamAtTheirShareOfTheRate) {
  const double megabyte = model.memory_seconds(1e6), gigabyte = model.memory_seconds(1e9);
  EXPECT_NEAR((gigabyte - megabyte) * device.memory_bytes_per_second * calibration.memory_efficiency, 1e9 - 1e6, 1);
  EXPECT_LT(calibration.kernel_fixed_seconds, 20e-6);
  EXPECT_GT(calibration.memory_efficiency, 0.5);
}

std::string preset_test_name(const ::testing::TestParamInfo<std::string>& preset) {
  std::string name = preset.param;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}
// A CPU's kernels are not those whose behaviour is tested above: its attention computes what it masks, and most of its
// memory-bound kernels wait for arithmetic.
std::vector<std::string> accelerators() {
  std::vector<std::string> names = device_names();
  std::erase_if(names, [](const std::string& name) { return find_device(name).architecture == "CPU"; });
  return names;
}
INSTANTIATE_TEST_SUITE_P(Presets, EveryDevice, ::testing::ValuesIn(accelerators()), preset_test_name);

TEST(NearMeasured, IsAFactorOfTwoInEachDimension) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  calibration.measured_shapes = {{Dtype::bf16, 1024, 4096, 8192}};
  const KernelModel model(device, calibration);
  const auto near = [&](std::int64_t m, std::int64_t n, std::int64_t k, Dtype dtype = Dtype::bf16) {
    return model.near_measured(GemmShape{1, m, n, k}, dtype);
  };
  EXPECT_TRUE(near(1024, 4096, 8192));
  EXPECT_TRUE(near(512, 8192, 16384));
  EXPECT_TRUE(near(4096, 1024, 8192)) << "the transposed product";
  EXPECT_FALSE(near(511, 4096, 8192));
  EXPECT_FALSE(near(1024, 8193, 8192));
  EXPECT_FALSE(near(1024, 4096, 4095));
  EXPECT_TRUE(near(1024, 4096, 8192, Dtype::fp16)) << "the same units as bf16";
  EXPECT_FALSE(near(1024, 4096, 8192, Dtype::fp8));
  EXPECT_FALSE(model.near_measured(GemmShape{8, 1024, 4096, 8192}, Dtype::bf16)) << "batches were not measured";
}

TEST(NearMeasured, ReachesTheCost) {
  const Device device = find_device("A100-SXM4-80GB");
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  const Linear usual = linear(8192, 12288, 12288), odd = linear(8192, 37, 12288);
  EXPECT_TRUE(model.near_measured(usual.op, usual.tensors));
  EXPECT_FALSE(model.near_measured(odd.op, odd.tensors));
  EXPECT_TRUE(model.near_measured(attention(4096)));
  EXPECT_FALSE(model.near_measured(attention(64)));
}

TEST(Cost, EqualsTheShapesTimes) {
  const Device device = find_device("H100-SXM5-80GB");
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  const Linear l = linear(4096, 5120, 6144);
  const KernelCost cost = model.cost(l.op, l.tensors);
  EXPECT_EQ(cost.seconds, model.matmul_seconds({1, 4096, 5120, 6144}, Dtype::bf16, cost.bytes));
  EXPECT_EQ(cost.flops, 2.0 * 4096 * 5120 * 6144);

  std::vector<Tensor> tensors{matrix(1000, 1000), matrix(1000, 1000)};
  Op add;
  add.kind = OpKind::activation;
  add.reads[0] = 0;
  add.writes[0] = 1;
  EXPECT_EQ(model.cost(add, tensors).seconds, model.memory_seconds(4e6));
  // A cast of so many kernels: each begins and reads the operand. The result is written once.
  for (const int kernels : {0, 1, 2}) {
    add.passes = static_cast<std::uint8_t>(kernels);
    EXPECT_NEAR(
        model.cost(add, tensors).seconds,
        kernels * model.memory_seconds(0) + (model.memory_seconds((kernels + 1) * 2e6) - model.memory_seconds(0)),
        1e-12);
  }
  add.passes = 1;
  EXPECT_EQ(model.cost(add, tensors).flops, 0);
}

// Each op with a curve of its own, all curves different: an op that took another's would cost another's.
TEST(Cost, OfEveryKindOfMemoryBoundKernelIsThatOfItsOwnCurve) {
  const Device device = simple_device();
  Calibration calibration = simple_calibration();
  const std::vector<std::string> names = memory_curve_names();
  for (const std::string& name : names) {
    const double number = real(static_cast<std::int64_t>(calibration.memory_kinds.size())) + 1;
    MemoryCurve curve;
    curve.name = name;
    curve.efficiency = 1 / (1 + number);
    curve.fixed_seconds = number * 1e-3;
    calibration.memory_kinds.push_back(curve);
  }
  const KernelModel model(device, calibration);
  std::vector<std::string> met;
  const auto expect = [&](const Op& op, const std::string& name) {
    const auto curve = std::find_if(calibration.memory_kinds.begin(), calibration.memory_kinds.end(),
                                    [&](const MemoryCurve& c) { return c.name == name; });
    ASSERT_NE(curve, calibration.memory_kinds.end()) << name;
    const double expected = curve->fixed_seconds + 1e9 / (1e12 * curve->efficiency);
    EXPECT_NEAR(model.memory_seconds(op, 1e9), expected, 1e-12 * expected) << name;
    EXPECT_EQ(memory_curve_name(op), name);
    met.push_back(name);
  };
  for (int kind = 0; kind < kOpKinds; ++kind) {
    Op op;
    op.kind = static_cast<OpKind>(kind);
    if (is_matmul(op.kind) || is_attention(op.kind) || is_communication(op.kind) || is_copy(op.kind)) continue;
    const std::string name = name_of(op.kind);
    const bool activation = name.starts_with("activation");
    // Where the bias stands: op.h.
    Op biased = op;
    if (name == "activation") biased.reads[1] = 0;
    if (name == "activation_backward" || name == "add" || name == "dropout_add" || name == "norm") biased.reads[2] = 0;
    if (name == "norm_backward") biased.writes[2] = 0;
    const bool has_variant = biased.reads != op.reads || biased.writes != op.writes;
    const std::vector<std::string> functions{"gelu", "relu", "swiglu", "geglu", "quick_gelu", "relu2"};
    for (std::size_t f = 0; f < (activation ? functions.size() : 1); ++f) {
      op.function = biased.function = static_cast<ActivationFunction>(f);
      const std::string variant = activation ? name + "." + functions[f] : name;
      expect(op, variant);
      if (has_variant) expect(biased, variant + "+bias");
    }
  }
  for (const std::string& name : names)  // the others stand in for those that have none of their own
    EXPECT_TRUE(std::find(met.begin(), met.end(), name) != met.end() || name.starts_with("activation")) << name;
  EXPECT_EQ(std::count(met.begin(), met.end(), "norm_backward+bias"), 1);
}

// Nothing runs beside the update: what slows the kernels of the model leaves it as it is.
TEST(Cost, OfTheUpdateIsNotSlowedByTheStep) {
  Calibration alone = simple_calibration(), in_step = alone;
  in_step.memory_bound_slowdown = 3;
  const auto slower = [&](OpKind kind, Phase phase = Phase::forward) {
    Op op;
    op.kind = kind;
    op.phase = phase;
    const auto seconds = [&](const Calibration& c) {
      return KernelModel(simple_device(), c).memory_seconds(op, 2e9) -
             KernelModel(simple_device(), c).memory_seconds(op, 1e9);
    };
    return seconds(in_step) / seconds(alone);
  };
  for (const OpKind kind : {OpKind::activation, OpKind::norm, OpKind::add, OpKind::embedding, OpKind::scale})
    EXPECT_NEAR(slower(kind), 3, 1e-9) << name_of(kind);
  for (const OpKind kind : {OpKind::adam, OpKind::sgd, OpKind::gradient_norm})
    EXPECT_NEAR(slower(kind), 1, 1e-9) << name_of(kind);
  for (const OpKind kind : {OpKind::cast, OpKind::add, OpKind::quantise, OpKind::scale})
    EXPECT_NEAR(slower(kind, Phase::update), 1, 1e-9) << name_of(kind);
}

TEST(Explain, NamesFormulaNumbersAndSource) {
  const Device device = find_device("A100-SXM4-80GB");
  const Calibration calibration = find_calibration(device);
  const KernelModel model(device, calibration);
  const Linear l = linear(8192, 12288, 12288);
  const std::string text = model.explain(l.op, l.tensors);
  EXPECT_THAT(text, HasSubstr("fc1"));
  EXPECT_THAT(text, HasSubstr("8192 x 12288"));
  EXPECT_THAT(text, HasSubstr("aiconfigurator"));
  EXPECT_THAT(text, HasSubstr("80 points"));
  EXPECT_THAT(text, Not(HasSubstr("borrowed")));

  const Device other = find_device("V100-SXM2-32GB");
  const Calibration borrowed = find_calibration(other);
  EXPECT_THAT(KernelModel(other, borrowed).explain(l.op, l.tensors), HasSubstr("borrowed from A100"));
}

}  // namespace
}  // namespace orrery
