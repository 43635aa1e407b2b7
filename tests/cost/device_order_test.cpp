// Is a device that is at least as good in every rate never slower, whichever kernel it runs?
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/cost/calibration.h"
#include "sim/hardware/cluster.h"
#include "sim/hardware/presets.h"
#include "tests/cost/real.h"

namespace orrery {
namespace {

// {no slower, other}: of presets.
std::vector<std::pair<Device, Device>> ordered_pairs() {
  std::vector<std::pair<Device, Device>> pairs;
  for (const std::string& name : device_names())
    for (const std::string& other : device_names())
      if (name != other && is_no_slower(find_device(name), find_device(other)))
        pairs.emplace_back(find_device(name), find_device(other));
  return pairs;
}

TEST(DeviceOrder, IsThatOfDataSheets) {
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& [device, other] : ordered_pairs()) found.emplace(device.name, other.name);
  for (const auto& [device, other] :
       std::vector<std::pair<const char*, const char*>>{{"H200-SXM5-141GB", "H100-SXM5-80GB"},
                                                        {"H100-SXM5-80GB", "H800-SXM5-80GB"},
                                                        {"H800-SXM5-80GB", "H100-SXM5-80GB"},  // links are the node's
                                                        {"H100-SXM5-80GB", "H100-SXM5-96GB-HBM2e"},
                                                        {"H100-SXM5-80GB", "H100-PCIe-80GB"},
                                                        {"GH200-141GB", "H200-SXM5-141GB"},
                                                        {"A100-SXM4-80GB", "A100-SXM4-40GB"},
                                                        {"A100-SXM4-80GB", "A100-PCIe-80GB"},
                                                        {"MI325X", "MI300X"},
                                                        {"MI355X", "MI350X"},
                                                        {"GB200", "B200-SXM-180GB"},
                                                        {"B300-SXM-270GB", "B200-SXM-180GB"},  // a revision
                                                        {"B200-SXM-180GB", "B200-SXM-180GB-limited"},
                                                        {"V100-SXM2-32GB", "V100-SXM2-16GB"}})
    EXPECT_TRUE(found.contains({device, other})) << device << " " << other;
  for (const auto& [device, other] :
       std::vector<std::pair<const char*, const char*>>{{"H100-SXM5-80GB", "H200-SXM5-141GB"},
                                                        {"H100-SXM5-80GB", "A100-SXM4-80GB"},  // another architecture
                                                        {"A100-SXM4-80GB", "A30"},  // more multiprocessors, each slower
                                                        {"H20-SXM-96GB", "H100-SXM5-80GB"},
                                                        {"B200-SXM-180GB-limited", "B200-SXM-180GB"}})
    EXPECT_FALSE(found.contains({device, other})) << device << " " << other;
}

TEST(DeviceOrder, HoldsForEveryKernel) {
  constexpr int kShapes = 60;
  constexpr double kRounding = 1e-3;  // curves state four digits, and meet a single measured product as nearly
  for (const auto& [device, other] : ordered_pairs())
    for (const char* attention : {"", "flash_attention_1", "flash_attention_2"}) {
      Calibration curves = find_calibration(device), others = find_calibration(other);
      if (*attention != 0) use_attention_kernel(curves, attention), use_attention_kernel(others, attention);
      EXPECT_LE(curves.overlap_slowdown, others.overlap_slowdown);
      EXPECT_LE(curves.group_issue_seconds, others.group_issue_seconds);
      const KernelModel a(device, curves), b(other, others);
      const std::string what = device.name + " against " + other.name + ", " + attention + ": ";
      std::mt19937 random(1);
      // Even in the logarithm, without the library's distributions: the same everywhere.
      const auto size = [&](double most) {
        return static_cast<std::int64_t>(std::exp(std::log(most) * static_cast<double>(random()) / 4294967295.0));
      };
      for (int i = 0; i < kShapes; ++i) {
        const GemmShape s{size(64), size(65536), size(65536), size(32768)};
        const auto dtype = std::array{Dtype::bf16, Dtype::fp16, Dtype::fp32, Dtype::fp8, Dtype::nvfp4}[i % 5];
        const double m = real(s.m), n = real(s.n), k = real(s.k);
        const double bytes = real(s.batch) * (2 * m * n + real(bytes_of(dtype, 16)) / 16 * (m * k + k * n));
        const auto shape = [&] {
          return what + std::string(name_of(dtype)) + " " + std::to_string(s.batch) + " x " + std::to_string(s.m) +
                 " x " + std::to_string(s.n) + " x " + std::to_string(s.k);
        };
        if (*attention == 0) {
          EXPECT_LE(a.matmul_seconds(s, dtype, bytes), b.matmul_seconds(s, dtype, bytes) * (1 + kRounding)) << shape();
          EXPECT_LE(a.grouped_seconds(s, dtype, bytes), b.grouped_seconds(s, dtype, bytes) * (1 + kRounding))
              << "groups of " << shape();
          EXPECT_LE(a.memory_seconds(bytes), b.memory_seconds(bytes) * (1 + kRounding)) << what << bytes << " bytes";
        }
        const std::int64_t sequence = 16 * size(8192), heads = size(128), dim = 32 << (i % 4);
        const AttentionShape at{size(16), heads, heads, sequence, sequence, dim, dim, i % 2 == 0, 0};
        const double rows = real(at.batch * heads) * real(sequence);
        const double flops = 4 * real(dim) * rows * real(sequence) * (at.causal ? 0.5 : 1);
        const double moved = 8 * rows * real(dim);
        for (const Dtype operands : {Dtype::bf16, Dtype::fp8, Dtype::mxfp8})
          for (const bool backward : {false, true})
            EXPECT_LE(a.attention_seconds(at, operands, backward, flops, moved),
                      b.attention_seconds(at, operands, backward, flops, moved) * (1 + kRounding))
                << what << name_of(operands) << " attention of " << at.batch << " x " << heads << " heads of " << dim
                << ", " << sequence << " tokens" << (backward ? ", backward" : "");
      }
    }
}

}  // namespace
}  // namespace orrery
