// Whether the stand-in for a GPU does what the PTX ISA says, and complains where CUDA leaves a kernel undefined.
#include <gmock/gmock.h>

#include <random>

#include "tests/realrun/cuda_harness.h"
#include "tests/realrun/cuda_stand_in/stand_in.h"

namespace orrery::stand_in {
namespace {

using cuda::launch;

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "no error";
}

class EverySchedule : public testing::TestWithParam<Schedule> {
 protected:
  void SetUp() override { set_schedule(GetParam()); }
  void TearDown() override { set_schedule(Schedule::forward); }
};
INSTANTIATE_TEST_SUITE_P(StandIn, EverySchedule,
                         testing::Values(Schedule::forward, Schedule::reverse, Schedule::shuffled));

void reverse_in_shared(float* data) {
  auto* const shared = reinterpret_cast<float*>(cuda::dynamic_shared());
  shared[threadIdx.x] = data[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  data[blockIdx.x * blockDim.x + threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
TEST_P(EverySchedule, BarriersOrderAllThreadsOfABlock) {
  std::vector<float> data(3 * 128);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i);
  launch("reverse", reverse_in_shared, 3, 128, 128 * 4, nullptr, data.data());
  for (int b = 0; b < 3; ++b)
    for (int i = 0; i < 128; ++i) EXPECT_EQ(data[b * 128 + i], b * 128 + 127 - i);
}

void warp_functions(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  out[lane] = __shfl_xor_sync(kAll, lane * lane, 5);
  out[32 + lane] = __shfl_sync(kAll, lane * lane, (lane + 3) % kWarp);
  out[64 + lane] = static_cast<int>(__ballot_sync(kAll, lane % 3 == 0));
}
TEST_P(EverySchedule, ShufflesAndVotesAreThoseOfTheLanes) {
  std::vector<int> out(96);
  launch("warp", warp_functions, 1, kWarp, 0, nullptr, out.data());
  unsigned votes = 0;
  for (int lane = 0; lane < kWarp; lane += 3) votes |= 1u << lane;
  for (int lane = 0; lane < kWarp; ++lane) {
    EXPECT_EQ(out[lane], (lane ^ 5) * (lane ^ 5));
    EXPECT_EQ(out[32 + lane], ((lane + 3) % kWarp) * ((lane + 3) % kWarp));
    EXPECT_EQ(static_cast<unsigned>(out[64 + lane]), votes);
  }
}

// a and b from shared memory by ldmatrix, as the kernels do.
void product(const std::uint16_t* a, const std::uint16_t* b, float* c, bool b_by_rows) {
  auto* const sa = reinterpret_cast<std::uint16_t*>(cuda::dynamic_shared());  // [16][16]
  std::uint16_t* const sb = sa + 256;                                         // [16 k][8 n], or [8 n][16 k]
  for (unsigned i = threadIdx.x; i < 256; i += kWarp) sa[i] = a[i];
  for (unsigned i = threadIdx.x; i < 128; i += kWarp) sb[i] = b[i];
  __syncwarp();
  const unsigned lane = threadIdx.x;
  std::uint32_t fa[4], fb[4];
  cuda::load_matrices(fa, sa + lane % 16 * 16 + lane / 16 * 8);
  if (b_by_rows) {
    cuda::load_matrices_transposed(fb, sb + lane % 16 * 8);
  } else {
    cuda::load_matrices(fb, sb + lane % 8 * 16 + lane / 8 % 2 * 8);
  }
  float sum[4] = {1, 1, 1, 1};
  cuda::multiply_add_bf16(sum, fa, fb[0], fb[1]);
  for (unsigned i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = sum[i];
}
TEST_P(EverySchedule, TensorCoresMultiplyWhatLdmatrixLoads) {
  std::mt19937 generator(1);
  std::vector<float> a(256), b(128);  // b is [k][n]
  for (float& x : a) x = static_cast<float>(static_cast<int>(generator() % 17) - 8);
  for (float& x : b) x = static_cast<float>(static_cast<int>(generator() % 17) - 8);
  const auto packed = [](const std::vector<float>& values) {
    std::vector<std::uint16_t> out;
    for (const float x : values) out.push_back(float_to_bf16(x));
    return out;
  };
  std::vector<float> b_columns(128);
  for (int k = 0; k < 16; ++k)
    for (int n = 0; n < 8; ++n) b_columns[n * 16 + k] = b[k * 8 + n];
  for (const bool by_rows : {false, true}) {
    const auto pa = packed(a), pb = packed(by_rows ? b : b_columns);
    std::vector<float> c(128);
    launch("product", product, 1, kWarp, 768, nullptr, pa.data(), pb.data(), c.data(), by_rows);
    for (int m = 0; m < 16; ++m)
      for (int n = 0; n < 8; ++n) {
        float sum = 1;
        for (int k = 0; k < 16; ++k) sum += a[m * 16 + k] * b[k * 8 + n];
        EXPECT_EQ(c[m * 8 + n], sum) << m << " " << n;
      }
  }
}

void half_of_the_block(int) {
  if (threadIdx.x < 64) __syncthreads();
}
void half_of_the_warp(int) {
  if (threadIdx.x < 16) __syncwarp();
}
void both_halves_apart(int) {
  if (threadIdx.x < 16) {
    __syncwarp();
  } else {
    __ballot_sync(kAll, true);
  }
}
void forgets_its_copies(const void* from) {
  cuda::copy_async(cuda::dynamic_shared(), from, 16);
  cuda::commit_copies();
}
void writes_behind_its_memory(int) { cuda::dynamic_shared()[100] = 1; }
TEST_P(EverySchedule, WhatCudaLeavesUndefinedIsAnError) {
  using testing::HasSubstr;
  EXPECT_THAT(error_of([] { launch("k", half_of_the_block, 1, 128, 0, nullptr, 1); }),
              HasSubstr("has returned while others wait at a barrier"));
  EXPECT_THAT(error_of([] { launch("k", half_of_the_warp, 1, 64, 0, nullptr, 1); }),
              HasSubstr("waits in __syncwarp for lanes that do not come"));
  EXPECT_THAT(error_of([] { launch("k", both_halves_apart, 1, 32, 0, nullptr, 1); }),
              HasSubstr("different warp operations"));
  alignas(16) const std::array<char, 16> source{};
  EXPECT_THAT(error_of([&] { launch("k", forgets_its_copies, 1, 32, 16, nullptr, source.data()); }),
              HasSubstr("never awaited"));
  EXPECT_THAT(error_of([] { launch("k", writes_behind_its_memory, 1, 32, 96, nullptr, 1); }),
              HasSubstr("written behind its end"));
  EXPECT_THAT(error_of([] { launch("k", half_of_the_block, 1, 100, 0, nullptr, 1); }), HasSubstr("whole warps"));
  EXPECT_THAT(error_of([] { launch("k", half_of_the_block, 1, 128, 228 << 10, nullptr, 1); }),
              HasSubstr("shared memory are too many"));
}

void copies(const float* from, float* out) {
  auto* const shared = reinterpret_cast<float*>(cuda::dynamic_shared());
  const unsigned at = threadIdx.x * 4;
  cuda::copy_async(shared + at, from + at, 16);
  cuda::commit_copies();
  cuda::copy_async(shared + 128 + at, from, 0);
  cuda::commit_copies();
  out[at] = shared[at];  // too early
  cuda::await_copies<1>();
  out[at + 1] = shared[at + 1];
  out[at + 2] = shared[128 + at];  // too early
  cuda::await_copies<0>();
  out[at + 3] = shared[128 + at];
}
TEST_P(EverySchedule, CopiesArriveWhenTheyAreAwaited) {
  alignas(16) std::array<float, 128> from, out{};
  for (int i = 0; i < 128; ++i) from[i] = static_cast<float>(i);
  launch("copies", copies, 1, kWarp, 1024, nullptr, from.data(), out.data());
  for (int t = 0; t < kWarp; ++t) {
    EXPECT_TRUE(std::isnan(out[4 * t]));
    EXPECT_EQ(out[4 * t + 1], 4 * t + 1);
    EXPECT_TRUE(std::isnan(out[4 * t + 2]));
    EXPECT_EQ(out[4 * t + 3], 0);
  }
}

void no_barrier(float* out) {
  auto* const shared = reinterpret_cast<float*>(cuda::dynamic_shared());
  shared[threadIdx.x] = 1;
  out[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
TEST(StandIn, AMissingBarrierShowsInSomeOrder) {
  int wrong = 0;
  for (const Schedule s : {Schedule::forward, Schedule::reverse}) {
    set_schedule(s);
    std::array<float, 64> out;
    launch("no_barrier", no_barrier, 1, 64, 256, nullptr, out.data());
    for (const float x : out) wrong += x != 1;
  }
  set_schedule(Schedule::forward);
  EXPECT_EQ(wrong, 64);
}

TEST(StandIn, ConversionsAreThoseOfTheHarness) {
  const auto check = [](Dtype dtype, unsigned codes, auto to_float, auto from_float) {
    const auto bytes_per = static_cast<std::size_t>(bytes_of(dtype, 1));
    for (unsigned code = 0; code < codes; ++code) {
      std::vector<unsigned char> bytes{static_cast<unsigned char>(code), static_cast<unsigned char>(code >> 8)};
      bytes.resize(bytes_per);
      const float expected = cuda_test::numbers(bytes, dtype)[0], x = to_float(code);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(x)) << code;
        continue;
      }
      ASSERT_EQ(x, expected) << code;
      // The number, and what lies between it and the next one.
      for (const float y : {x, x * 1.0001f, x * 1.03125f, x * 1.0009765625f / 2 * 2, x * 1.00390625f, x * 1.0625f}) {
        const std::vector<float> one{y};
        const auto stored = cuda_test::stored(one, dtype);
        const unsigned given = from_float(y), wanted = stored[0] | (bytes_per > 1 ? stored[1] << 8 : 0);
        ASSERT_EQ(given, wanted) << name_of(dtype) << " " << y;
      }
    }
  };
  check(
      Dtype::bf16, 0x10000, [](unsigned c) { return bf16_to_float(static_cast<std::uint16_t>(c)); },
      [](float x) -> unsigned { return float_to_bf16(x); });
  check(
      Dtype::fp16, 0x10000, [](unsigned c) { return half_to_float(static_cast<std::uint16_t>(c)); },
      [](float x) -> unsigned { return float_to_half(x); });
  check(
      Dtype::fp8, 0x100, [](unsigned c) { return e4m3_to_float(static_cast<std::uint8_t>(c)); },
      [](float x) -> unsigned { return float_to_e4m3(x); });
}

}  // namespace
}  // namespace orrery::stand_in
