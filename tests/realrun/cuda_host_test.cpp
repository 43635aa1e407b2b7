// What the CUDA backend does on the CPU: numbers of every dtype, the offloaded optimizer, the job's environment.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include "realrun/cuda/host_kernels.h"
#include "realrun/cuda/host_numbers.h"
#include "realrun/cuda/nccl_communicator.h"
#include "sim/base/error.h"
#include "tests/realrun/kernel_harness.h"

namespace orrery::cuda {
namespace {

using cpu::random_values;
using cpu::shaped;
using cpu::Values;

template <class Stored>
float widened(Stored bits, Dtype dtype) {
  float value = 0;
  to_floats(&bits, dtype, &value, 1);
  return value;
}
template <class Stored>
Stored narrowed(float value, Dtype dtype) {
  Stored bits{};
  from_floats(&value, &bits, dtype, 1);
  return bits;
}

template <class Stored>
void expect_all_codes_survive(Dtype dtype) {
  for (std::uint32_t code = 0; code <= std::numeric_limits<Stored>::max(); ++code) {
    const auto stored = static_cast<Stored>(code);
    const float value = widened(stored, dtype);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(widened(narrowed<Stored>(value, dtype), dtype))) << code;
    } else {
      ASSERT_EQ(narrowed<Stored>(value, dtype), stored) << code;
    }
  }
}

TEST(HostNumbers, EveryCodeOfANarrowDtypeSurvives) {
  expect_all_codes_survive<std::uint8_t>(Dtype::fp8);
  expect_all_codes_survive<std::uint16_t>(Dtype::fp16);
  expect_all_codes_survive<std::uint16_t>(Dtype::bf16);
}

// Between two neighbours: the nearer, and of equals the one with an even last bit.
template <class Stored>
void expect_nearest(Dtype dtype, std::uint32_t largest) {
  for (std::uint32_t code = 0; code < largest; ++code) {
    const float low = widened(static_cast<Stored>(code), dtype), high = widened(static_cast<Stored>(code + 1), dtype);
    const double middle = (static_cast<double>(low) + high) / 2;
    ASSERT_EQ(narrowed<Stored>(static_cast<float>(middle), dtype), code % 2 == 0 ? code : code + 1) << code;
    ASSERT_EQ(narrowed<Stored>(std::nextafter(static_cast<float>(middle), low), dtype), code) << code;
    ASSERT_EQ(narrowed<Stored>(std::nextafter(static_cast<float>(middle), high), dtype), code + 1) << code;
  }
}

TEST(HostNumbers, RoundToTheNearestTiesToEven) {
  expect_nearest<std::uint8_t>(Dtype::fp8, 0x7e);
  expect_nearest<std::uint16_t>(Dtype::fp16, 0x7bff);
  // Normal numbers: halves of the smallest bf16 numbers are below float's own smallest.
  for (std::uint32_t code = 0x0080; code < 0x7f7f; ++code) {
    const std::uint32_t middle = code << 16 | 0x8000;
    ASSERT_EQ(narrowed<std::uint16_t>(std::bit_cast<float>(middle), Dtype::bf16), code % 2 == 0 ? code : code + 1);
    ASSERT_EQ(narrowed<std::uint16_t>(std::bit_cast<float>(middle - 1), Dtype::bf16), code);
    ASSERT_EQ(narrowed<std::uint16_t>(std::bit_cast<float>(middle + 1), Dtype::bf16), code + 1);
  }
}

TEST(HostNumbers, WhatIsTooLargeSaturatesOrIsInfinite) {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(widened(narrowed<std::uint8_t>(1e6f, Dtype::fp8), Dtype::fp8), 448);
  EXPECT_EQ(widened(narrowed<std::uint8_t>(-infinity, Dtype::fp8), Dtype::fp8), -448);
  EXPECT_EQ(widened(narrowed<std::uint16_t>(1e6f, Dtype::fp16), Dtype::fp16), infinity);
  EXPECT_EQ(widened(narrowed<std::uint16_t>(-infinity, Dtype::bf16), Dtype::bf16), -infinity);
  EXPECT_EQ(narrowed<std::uint8_t>(300, Dtype::uint8), 255);
  EXPECT_EQ(narrowed<std::int32_t>(-3e9f, Dtype::int32), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(narrowed<std::int64_t>(nan, Dtype::int64), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(narrowed<std::int64_t>(50256, Dtype::int64), 50256);
}

TEST(HostKernels, WorkersTouchEveryElementOnce) {
  for (const std::size_t threads : {0, 1, 3, 8})
    for (const std::int64_t elements : {0, 1, 63, 64, 1000, 4096}) {
      Workers workers(threads);
      std::vector<std::atomic<int>> touched(static_cast<std::size_t>(elements));
      for (int call = 0; call < 3; ++call)
        workers.divide(elements, 64, [&](std::int64_t begin, std::int64_t end) {
          EXPECT_EQ(begin % 64, 0);
          for (std::int64_t i = begin; i < end; ++i) ++touched[static_cast<std::size_t>(i)];
        });
      for (const auto& count : touched) ASSERT_EQ(count, 3) << threads << " threads, " << elements;
    }
}

// With and without master weights and decoupled decay, moments in bf16.
TEST(HostKernels, AdamIsTheCpuKernels) {
  Workers workers(3);
  const std::int64_t n = 5001;
  for (const bool master : {false, true})
    for (const bool decoupled : {false, true}) {
      const Dtype parameter_dtype = master ? Dtype::bf16 : Dtype::fp32;
      const Tensor fp32 = shaped({{n}}), narrow = shaped({{n}}, Category::activation, Dtype::bf16),
                   parameter = shaped({{n}}, Category::activation, parameter_dtype);
      std::array<Values, 4> values{random_values(n, 1), random_values(n, 2), random_values(n, 3, 0.1),
                                   random_values(n, 4, 0.1)};
      for (float& v : values[3]) v = std::abs(v);
      std::vector<std::uint16_t> second(n), written(n);
      from_floats(values[3].data(), second.data(), Dtype::bf16, n);
      to_floats(second.data(), Dtype::bf16, values[3].data(), n);
      std::array<Values, 4> expected = values;
      Values expected_parameter(static_cast<std::size_t>(n));
      KernelContext context;
      context.step = 5;
      context.weight_decay = 0.1;
      Op op;
      op.decoupled_weight_decay = decoupled;
      op.kind = OpKind::adam;
      op.name = "test";
      op.scale = 0.25;
      op.clip_limit = 3;  // a norm of 32 becomes 8, which is clipped
      Values square{32 * 32};
      const Tensor one = shaped({{1}});

      std::vector<Operand> in, out;
      for (Values& v : expected) in.push_back({v.data(), &fp32});
      in.push_back({square.data(), &one});
      if (master) out.push_back({expected_parameter.data(), &fp32});
      for (std::size_t i = 1; i < 4; ++i) out.push_back({expected[i].data(), &fp32});
      cpu::run_kernel(op, in, out, context);

      const std::vector<Operand> reads{{values[0].data(), &fp32},
                                       {values[1].data(), &fp32},
                                       {values[2].data(), &fp32},
                                       {second.data(), &narrow},
                                       {square.data(), &one}};
      std::vector<Operand> writes;
      if (master) writes.push_back({written.data(), &parameter});
      for (std::size_t i = 1; i < 4; ++i) writes.push_back(reads[i]);
      run_on_host(op, reads, writes, context, workers);
      to_floats(second.data(), Dtype::bf16, values[3].data(), n);
      for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
        ASSERT_NEAR(values[1][i], expected[1][i], 1e-6 * (1 + std::abs(expected[1][i])));
        ASSERT_NEAR(values[2][i], expected[2][i], 1e-6);
        ASSERT_NEAR(values[3][i], expected[3][i], expected[3][i] / 200);
        if (master) {
          ASSERT_EQ(written[i], narrowed<std::uint16_t>(values[1][i], Dtype::bf16));
        }
      }
    }
}

TEST(JobEnvironment, RankIsWhatTheLauncherSays) {
  const auto with = [](std::initializer_list<std::pair<const char*, const char*>> variables, auto check) {
    for (const auto& [name, value] : variables) setenv(name, value, 1);
    check();
    for (const auto& [name, value] : variables) unsetenv(name);
  };
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) unsetenv(name);
  EXPECT_FALSE(rank_of_environment());
  with({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}, [] {
    const auto rank = rank_of_environment();
    ASSERT_TRUE(rank);
    EXPECT_EQ(rank->rank, 3u);
    EXPECT_EQ(rank->ranks, 8u);
    EXPECT_EQ(rank->local_rank, 1u);
  });
  with({{"RANK", "x"}, {"WORLD_SIZE", "2"}}, [] { EXPECT_THROW(rank_of_environment(), InputError); });
  with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}, [] { EXPECT_THROW(rank_of_environment(), InputError); });
}

}  // namespace
}  // namespace orrery::cuda
