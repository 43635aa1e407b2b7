#include "sim/hardware/device_order.h"

#include <array>
#include <string_view>

namespace orrery {
namespace {

// Data sheets round the rates of equal parts differently.
constexpr double kRounding = 1e-3;
bool reaches(double rate, double other) { return rate >= other * (1 - kRounding); }

bool is_revision(std::string_view architecture, std::string_view of) {
  return architecture == of || (architecture.starts_with(of) && architecture[of.size()] == ' ');
}

}  // namespace

bool is_no_slower(const Device& device, const Device& other) {
  if (device.vendor != other.vendor || !is_revision(device.architecture, other.architecture)) return false;
  const auto multiprocessors = static_cast<double>(device.multiprocessors);
  const auto others = static_cast<double>(other.multiprocessors);
  for (const Dtype dtype : {Dtype::fp32, Dtype::fp16, Dtype::bf16, Dtype::fp8, Dtype::nvfp4})
    if (!reaches(device.peak(dtype), other.peak(dtype)) ||
        !reaches(device.peak(dtype) * others, other.peak(dtype) * multiprocessors))
      return false;
  return reaches(device.vector_flops_per_second, other.vector_flops_per_second) &&
         reaches(device.memory_bytes_per_second, other.memory_bytes_per_second) &&
         reaches(device.l2_bytes, other.l2_bytes) && device.multiprocessors >= other.multiprocessors &&
         reaches(device.tdp_watts, other.tdp_watts);
}

}  // namespace orrery
