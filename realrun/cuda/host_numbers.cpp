#include "realrun/cuda/host_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery::cuda {
namespace {

// A small floating-point format: sign, `kExponent` bits, `kMantissa` bits.
template <int kExponent, int kMantissa>
struct Format {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kMantissaMask = (1u << kMantissa) - 1;
  static constexpr int kFloatMantissa = 23;
};

template <class F, int kExponent, int kMantissa, bool kHasInfinity>
float widen(std::uint32_t bits) {
  const std::uint32_t exponent = bits >> kMantissa & ((1u << kExponent) - 1), mantissa = bits & F::kMantissaMask;
  const float sign = bits >> (kExponent + kMantissa) != 0 ? -1.0f : 1.0f;
  constexpr std::uint32_t kTop = (1u << kExponent) - 1;
  if (exponent == kTop && (kHasInfinity || mantissa == F::kMantissaMask)) {
    if (kHasInfinity && mantissa == 0) return sign * std::numeric_limits<float>::infinity();
    return std::numeric_limits<float>::quiet_NaN();
  }
  const auto m = static_cast<float>(mantissa);
  if (exponent == 0) return sign * std::ldexp(m, 1 - F::kBias - kMantissa);
  return sign * std::ldexp(m + static_cast<float>(1u << kMantissa), static_cast<int>(exponent) - F::kBias - kMantissa);
}

// Rounds to nearest, ties to even, by adding a number whose last bit equals the format's last bit.
template <class F, int kExponent, int kMantissa>
std::uint32_t narrow_finite(float magnitude) {
  constexpr int kLeast = 1 - F::kBias;  // exponent of the smallest normal number
  if (magnitude == 0) return 0;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent = std::max(exponent - 1, kLeast);
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, kMantissa - exponent)));
  // `steps` of normal numbers include the hidden bit; a carry beyond it moves into the exponent.
  return steps + (static_cast<std::uint32_t>(exponent - kLeast) << kMantissa);
}

constexpr int kHalfExponent = 5, kHalfMantissa = 10, kFp8Exponent = 4, kFp8Mantissa = 3;
using Half = Format<kHalfExponent, kHalfMantissa>;
using Fp8 = Format<kFp8Exponent, kFp8Mantissa>;
constexpr std::uint32_t kHalfInfinity = 0x7c00, kHalfNan = 0x7e00, kFp8Nan = 0x7f, kFp8Largest = 0x7e;

float half_to_float(std::uint16_t bits) { return widen<Half, kHalfExponent, kHalfMantissa, true>(bits); }
std::uint16_t float_to_half(float x) {
  const std::uint32_t sign = std::signbit(x) ? 1u << (kHalfExponent + kHalfMantissa) : 0;
  if (std::isnan(x)) return static_cast<std::uint16_t>(sign | kHalfNan);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | kHalfInfinity);
  const std::uint32_t bits = narrow_finite<Half, kHalfExponent, kHalfMantissa>(std::abs(x));
  return static_cast<std::uint16_t>(sign | std::min(bits, kHalfInfinity));
}

float fp8_to_float(std::uint8_t bits) { return widen<Fp8, kFp8Exponent, kFp8Mantissa, false>(bits); }
std::uint8_t float_to_fp8(float x) {
  const std::uint32_t sign = std::signbit(x) ? 1u << (kFp8Exponent + kFp8Mantissa) : 0;
  if (std::isnan(x)) return static_cast<std::uint8_t>(sign | kFp8Nan);
  const float magnitude = std::min(std::abs(x), kLargestFp8);
  const std::uint32_t bits = narrow_finite<Fp8, kFp8Exponent, kFp8Mantissa>(magnitude);
  return static_cast<std::uint8_t>(sign | std::min(bits, kFp8Largest));
}

constexpr int kBf16Dropped = 16;  // bits of a float's mantissa that bf16 does not have

float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << kBf16Dropped);
}
std::uint16_t float_to_bf16(float x) {
  constexpr std::uint32_t kBelowHalf = (1u << (kBf16Dropped - 1)) - 1, kQuiet = 0x40;
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t rounded = (bits + kBelowHalf + ((bits >> kBf16Dropped) & 1)) >> kBf16Dropped;
  const std::uint32_t nan = bits >> kBf16Dropped | kQuiet;  // its payload may be only in the lower half
  return static_cast<std::uint16_t>(x != x ? nan : rounded);
}

template <class Integer>
Integer float_to_integer(float x) {
  constexpr auto kLeast = static_cast<float>(std::numeric_limits<Integer>::min());
  // Rounded up, so that values from here on saturate.
  constexpr auto kMost = static_cast<float>(std::numeric_limits<Integer>::max());
  if (std::isnan(x) || x >= kMost) return std::numeric_limits<Integer>::max();
  if (x <= kLeast) return std::numeric_limits<Integer>::min();
  return static_cast<Integer>(x);
}

template <class Stored, class Convert>
void widen_all(const void* from, float* to, std::int64_t elements, Convert convert) {
  const auto* const stored = static_cast<const Stored*>(from);
  for (std::int64_t i = 0; i < elements; ++i) to[i] = convert(stored[i]);
}

template <class Stored, class Convert>
void narrow_all(const float* from, void* to, std::int64_t elements, Convert convert) {
  auto* const stored = static_cast<Stored*>(to);
  for (std::int64_t i = 0; i < elements; ++i) stored[i] = convert(from[i]);
}

}  // namespace

void to_floats(const void* from, Dtype dtype, float* to, std::int64_t elements) {
  switch (dtype) {
    case Dtype::fp32:
      std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
      return;
    case Dtype::bf16:
      return widen_all<std::uint16_t>(from, to, elements, bf16_to_float);
    case Dtype::fp16:
      return widen_all<std::uint16_t>(from, to, elements, half_to_float);
    case Dtype::fp8:
      return widen_all<std::uint8_t>(from, to, elements, fp8_to_float);
    case Dtype::int64:
      return widen_all<std::int64_t>(from, to, elements, [](std::int64_t x) { return static_cast<float>(x); });
    case Dtype::int32:
      return widen_all<std::int32_t>(from, to, elements, [](std::int32_t x) { return static_cast<float>(x); });
    case Dtype::uint8:
      return widen_all<std::uint8_t>(from, to, elements, [](std::uint8_t x) { return static_cast<float>(x); });
    case Dtype::nvfp4:
    case Dtype::int4:
    case Dtype::fp8_blocks:
      break;
  }
  throw std::logic_error(std::string("no kernel reads ") + name_of(dtype));
}

void from_floats(const float* from, void* to, Dtype dtype, std::int64_t elements) {
  switch (dtype) {
    case Dtype::fp32:
      std::memcpy(to, from, static_cast<std::size_t>(elements) * sizeof(float));
      return;
    case Dtype::bf16:
      return narrow_all<std::uint16_t>(from, to, elements, float_to_bf16);
    case Dtype::fp16:
      return narrow_all<std::uint16_t>(from, to, elements, float_to_half);
    case Dtype::fp8:
      return narrow_all<std::uint8_t>(from, to, elements, float_to_fp8);
    case Dtype::int64:
      return narrow_all<std::int64_t>(from, to, elements, float_to_integer<std::int64_t>);
    case Dtype::int32:
      return narrow_all<std::int32_t>(from, to, elements, float_to_integer<std::int32_t>);
    case Dtype::uint8:
      return narrow_all<std::uint8_t>(from, to, elements, float_to_integer<std::uint8_t>);
    case Dtype::nvfp4:
    case Dtype::int4:
    case Dtype::fp8_blocks:
      break;
  }
  throw std::logic_error(std::string("no kernel writes ") + name_of(dtype));
}

}  // namespace orrery::cuda
