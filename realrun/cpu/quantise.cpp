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

// `number(i)`: the number of the i-th code.
template <class Number>
void write_codes(const Call& call, const CodesShape& shape, Number number) {
  const Buffer &codes = call.write(0), &scales = call.write(1);
  const float largest = largest_code(call, codes);
  for (std::int64_t row = 0; row < shape.rows; ++row)
    for (std::int64_t g = 0; g < shape.groups; ++g) {
      const std::int64_t begin = row * shape.columns + std::min(g * shape.group(), shape.columns),
                         end = row * shape.columns + std::min((g + 1) * shape.group(), shape.columns);
      float most = 0;  // NaN if any number is
      for (std::int64_t i = begin; i < end; ++i)
        if (const float magnitude = std::abs(number(i)); !(magnitude <= most) && !std::isnan(most)) most = magnitude;
      const float scale = most / largest;
      scales.data[row * shape.groups + g] = scale;
      for (std::int64_t i = begin; i < end; ++i)
        codes.data[i] = scale > 0 ? std::clamp(std::nearbyint(number(i) / scale), -largest, largest) : 0;
    }
}

}  // namespace

void quantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer x = call.read(0);
  write_codes(call, s.written, [&](std::int64_t i) { return i < s.numbers ? x.data[i] : 0.0f; });
}

void requantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer codes = call.read(0), scales = call.read(1);
  write_codes(call, s.written, [&](std::int64_t i) { return sum_at(s.read, codes, scales, i); });
}

void dequantise(const Call& call) {
  const QuantiserShapes s = quantiser_shapes(call);
  const Buffer &codes = call.read(0), &scales = call.read(1), &y = call.write(0);
  for (std::int64_t i = 0; i < s.numbers; ++i) {
    const float number = sum_at(s.read, codes, scales, i);
    y.data[i] = call.op.accumulate ? y.data[i] + number : number;
  }
}

}  // namespace orrery::cpu
