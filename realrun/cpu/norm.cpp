// LayerNorm (Ba et al. 2016, arXiv 1607.06450, eq. 4) and RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467, eq. 4).
#include <algorithm>
#include <cmath>
#include <vector>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
void norm(const Call& call) {
  const Buffer &x = call.read(0), &weight = call.read(1), &y = call.write(0), &statistics = call.write(1);
  const NormShape s = norm_shape(call);
  for (std::int64_t v = 0; v < s.vectors; ++v) {
    const float* in = x.data + v * s.length;
    float* out = y.data + v * s.length;
    float* const stored = statistics.data + v * (s.centred ? 2 : 1);
    const std::int64_t row = s.weight_row(v);
    if (row < 0) {
      std::copy(in, in + s.length, out);
      std::fill(stored, stored + (s.centred ? 2 : 1), 0.0f);
      continue;
    }
    const auto n = static_cast<double>(s.width);
    double mean = 0, square = 0;
    if (s.centred) {
      for (std::int64_t i = 0; i < s.width; ++i) mean += in[i];
      mean /= n;
    }
    for (std::int64_t i = 0; i < s.width; ++i) square += (in[i] - mean) * (in[i] - mean);
    const double reciprocal = 1 / std::sqrt(square / n + static_cast<double>(call.op.epsilon));
    for (std::int64_t i = 0; i < s.width; ++i) {
      const double bias = call.has_read(2) ? call.read(2).data[row * s.width + i] : 0;
      out[i] = static_cast<float>((in[i] - mean) * reciprocal * weight.data[row * s.width + i] + bias);
    }
    std::copy(in + s.width, in + s.length, out + s.width);
    if (s.centred) stored[0] = static_cast<float>(mean);
    stored[s.centred ? 1 : 0] = static_cast<float>(reciprocal);
  }
}

// With z = (x - mean) r and g = dy weight:  dx = r (g - mean(g) - z mean(g z)), the second term for LayerNorm only.
void norm_backward(const Call& call) {
  const Buffer &dy = call.read(0), &x = call.read(1), &weight = call.read(2), &statistics = call.read(3),
               &dx = call.write(0);
  const NormShape s = norm_shape(call);
  std::vector<double> dweight(static_cast<std::size_t>(weight.elements())), dbias(dweight.size());
  for (std::int64_t v = 0; v < s.vectors; ++v) {
    const float* in = x.data + v * s.length;
    const float* gradient = dy.data + v * s.length;
    float* out = dx.data + v * s.length;
    const std::int64_t row = s.weight_row(v);
    if (row < 0) {
      std::copy(gradient, gradient + s.length, out);
      continue;
    }
    const float* stored = statistics.data + v * (s.centred ? 2 : 1);
    const double mean = s.centred ? stored[0] : 0, reciprocal = stored[s.centred ? 1 : 0];
    const auto z = [&](std::int64_t i) { return (in[i] - mean) * reciprocal; };
    const auto g = [&](std::int64_t i) { return static_cast<double>(gradient[i]) * weight.data[row * s.width + i]; };
    double mean_g = 0, mean_gz = 0;
    for (std::int64_t i = 0; i < s.width; ++i) {
      const auto w = static_cast<std::size_t>(row * s.width + i);
      dweight[w] += gradient[i] * z(i);
      dbias[w] += gradient[i];
      if (s.centred) mean_g += g(i) / static_cast<double>(s.width);
      mean_gz += g(i) * z(i) / static_cast<double>(s.width);
    }
    for (std::int64_t i = 0; i < s.width; ++i)
      out[i] = static_cast<float>(reciprocal * (g(i) - mean_g - z(i) * mean_gz));
    std::copy(gradient + s.width, gradient + s.length, out + s.width);
  }
  const auto put = [&](const std::vector<double>& sum, std::size_t i) {
    if (!call.has_write(i)) return;
    float* const to = call.write(i).data;
    for (std::size_t e = 0; e < sum.size(); ++e)
      to[e] = static_cast<float>(sum[e]) + (call.op.accumulate ? to[e] : 0.0f);
  };
  put(dweight, 1);
  put(dbias, 2);
}

}  // namespace orrery::cpu
