// Codes of few bits and their scales; the largest of many numbers.
#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>
#include <vector>

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

// Returns the nearest number of fp8 e4m3, of equals the one with an even mantissa. |x| <= 448.
float nearest_fp8(float x) {
  constexpr int kMantissaBits = 3, kLeastExponent = -6;
  const float step = std::ldexp(1.0f, std::max(std::ilogb(x), kLeastExponent) - kMantissaBits);
  return x == 0 ? x : std::nearbyint(x / step) * step;
}

// `plain(i)`: the number of the i-th code, without the error.
template <class Plain>
void write_codes(const Call& call, const QuantiserShapes& s, Plain plain) {
  const CodesShape& shape = s.written;
  const Buffer &codes = call.write(0), &scales = call.write(1), error(s.error), new_error(s.new_error);
  const float largest = largest_code(call, codes);
  const Dtype dtype = codes.tensor->dtype;
  const bool signs = dtype == Dtype::sign;
  const auto nearest = [&](float x) { return dtype == Dtype::fp8 ? nearest_fp8(x) : std::nearbyint(x); };
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
                        : scale > 0 ? nearest(std::clamp(x / scale, -largest, largest))
                                    : 0;
        if (new_error.data != nullptr && i < s.numbers) new_error.data[i] = x - scale * codes.data[i];
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

// Magnitudes compare as their bits do: what is no number is larger than any, and is sent.
void sparsify(const Call& call) {
  const SparseShape s = sparse_shape(call);
  const Buffer x = call.read(0), values = call.write(0), indices = call.write(1), error(s.error),
               new_error(s.new_error);
  std::vector<float> numbers;
  std::vector<std::int64_t> order;
  for (std::int64_t g = 0; g < s.groups; ++g) {
    const std::int64_t begin = s.begin(g), count = s.begin(g + 1) - begin, kept = std::min(s.kept, count);
    numbers.clear(), order.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(static_cast<float>(call.op.scale) * x.data[begin + i] +
                        (error.data != nullptr ? error.data[begin + i] : 0.0f));
      order.push_back(i);
    }
    const auto bits = [&](std::int64_t i) {
      return std::bit_cast<std::uint32_t>(std::abs(numbers[static_cast<std::size_t>(i)]));
    };
    std::ranges::nth_element(order, order.begin() + kept, [&](std::int64_t a, std::int64_t b) {
      return std::pair(bits(b), a) < std::pair(bits(a), b);
    });
    order.resize(static_cast<std::size_t>(kept));
    std::ranges::sort(order);
    std::fill_n(values.data + g * s.kept, s.kept, 0.0f);
    std::fill_n(indices.data + g * s.kept, s.kept, 0.0f);
    if (new_error.data != nullptr) std::ranges::copy(numbers, new_error.data + begin);
    for (std::size_t k = 0; k < order.size(); ++k) {
      values.data[g * s.kept + static_cast<std::int64_t>(k)] = numbers[static_cast<std::size_t>(order[k])];
      indices.data[g * s.kept + static_cast<std::int64_t>(k)] = static_cast<float>(order[k]);
      if (new_error.data != nullptr) new_error.data[begin + order[k]] = 0;
    }
  }
}

void densify(const Call& call) {
  const SparseShape s = sparse_shape(call);
  const Buffer values = call.read(0), indices = call.read(1), y = call.write(0);
  std::ranges::fill(y.span(), 0.0f);
  for (std::int64_t i = 0; i < s.parts * s.groups * s.kept; ++i)
    if (values.data[i] != 0)
      y.data[s.begin(i / s.kept % s.groups) + static_cast<std::int64_t>(indices.data[i])] +=
          static_cast<float>(call.op.scale) * values.data[i];
}

}  // namespace orrery::cpu
