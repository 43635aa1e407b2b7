// Codes of few bits and their scales.
#include <algorithm>
#include <cmath>

#include "realrun/cpu/kernel_call.h"

namespace orrery::cpu {
namespace {

// Returns the number that a code stands for: the sum over all contributions, in their order.
float sum_at(const CodesShape& shape, const Buffer& codes, const Buffer& scales, std::int64_t i) {
  float sum = 0;
  for (std::int64_t p = 0; p < shape.parts; ++p)
    sum += scales.data[p * shape.rows * shape.groups + shape.scale_of(i)] * codes.data[p * shape.codes() + i];
  return sum;
}

// `plain(i)`: the number of the i-th code, without the error.
template <class Plain>
void write_codes(const Call& call, const QuantiserShapes& s, Plain plain) {
  const CodesShape& shape = s.written;
  const Buffer &codes = call.write(0), &scales = call.write(1), error(s.error), new_error(s.new_error);
  const float largest = largest_code(call, codes);
  const bool signs = codes.tensor->dtype == Dtype::sign;
  const auto number = [&](std::int64_t i) {
    const bool feeds_back = error.data != nullptr && i < s.numbers;
    return static_cast<float>(call.op.scale) * plain(i) + (feeds_back ? error.data[i] : 0.0f);
  };
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      const std::int64_t begin = row * shape.columns + std::min(g * shape.group(), shape.columns),
                         end = row * shape.columns + std::min((g + 1) * shape.group(), shape.columns);
      float most = 0;  // NaN if any number is
      double squares = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        const float x = number(i);
        if (const float magnitude = std::abs(x); !(magnitude <= most) && !std::isnan(most)) most = magnitude;
        squares += static_cast<double>(x) * x;
      }
      const auto members = static_cast<double>(std::max<std::int64_t>(end - begin, 1));
      const float scale = signs ? static_cast<float>(std::sqrt(squares / members)) : most / largest;
      scales.data[row * shape.groups + g] = scale;
      for (std::int64_t i = begin; i < end; ++i) {
        const float x = number(i);
        codes.data[i] = signs       ? (x < 0 ? -1.0f : 1.0f)
                        : scale > 0 ? std::clamp(std::nearbyint(x / scale), -largest, largest)
                                    : 0;
        if (error.data != nullptr && i < s.numbers) new_error.data[i] = x - scale * codes.data[i];
      }
    }
}

}  // namespace

void quantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer x = call.read(0);
  write_codes(call, s, [&](std::int64_t i) { return i < s.numbers ? x.data[i] : 0.0f; });
}

void requantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer codes = call.read(0), scales = call.read(1);
  write_codes(call, s, [&](std::int64_t i) { return sum_at(s.read, codes, scales, i); });
}

void dequantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer &codes = call.read(0), &scales = call.read(1), &y = call.write(0);
  for (std::int64_t i = 0; i < s.numbers; ++i) {
    const float number = static_cast<float>(call.op.scale) * sum_at(s.read, codes, scales, i);
    y.data[i] = call.op.accumulate ? y.data[i] + number : number;
  }
}

}  // namespace orrery::cpu
