#include "realrun/cuda/host_numbers.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery::cuda {
namespace {

// A small floating-point format: sign, `kExponent` bits, `kMantissa` bits. Without infinity the largest exponent has
// numbers, but for one NaN, and conversions saturate.
template <class Bits, int kExponent, int kMantissa, bool kHasInfinity>
struct Format {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr std::uint32_t kMantissaMask = (1u << kMantissa) - 1, kTop = (1u << kExponent) - 1,
                                 kInfinity = kTop << kMantissa,
                                 kNan = kInfinity | (kHasInfinity ? 1u << (kMantissa - 1) : kMantissaMask),
                                 kMost = kHasInfinity ? kInfinity : kNan - 1;

  static float widen(Bits bits) {
    const std::uint32_t exponent = bits >> kMantissa & kTop, mantissa = bits & kMantissaMask;
    const float sign = bits >> (kExponent + kMantissa) != 0 ? -1.0f : 1.0f;
    if (exponent == kTop && (kHasInfinity || mantissa == kMantissaMask)) {
      if (kHasInfinity && mantissa == 0) return sign * std::numeric_limits<float>::infinity();
      return std::numeric_limits<float>::quiet_NaN();
    }
    const auto m = static_cast<float>(mantissa);
    if (exponent == 0) return sign * std::ldexp(m, 1 - kBias - kMantissa);
    return sign * std::ldexp(m + static_cast<float>(1u << kMantissa), static_cast<int>(exponent) - kBias - kMantissa);
  }
  static Bits narrow(float x) {
    const std::uint32_t sign = std::signbit(x) ? 1u << (kExponent + kMantissa) : 0;
    return static_cast<Bits>(sign | (std::isnan(x) ? kNan : std::min(magnitude(std::abs(x)), kMost)));
  }

 private:
  // Rounds to nearest, ties to even.
  static std::uint32_t magnitude(float x) {
    constexpr int kLeast = 1 - kBias;  // exponent of the smallest normal number
    if (x == 0) return 0;
    if (std::isinf(x)) return kMost;
    int exponent = 0;
    std::frexp(x, &exponent);
    exponent = std::max(exponent - 1, kLeast);
    const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(x, kMantissa - exponent)));
    // Steps of normal numbers include the hidden bit; a carry beyond it moves into the exponent.
    return steps + (static_cast<std::uint32_t>(exponent - kLeast) << kMantissa);
  }
};
using Half = Format<std::uint16_t, 5, 10, true>;
using Fp8 = Format<std::uint8_t, 4, 3, false>;

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

// Calls use(a stored element, the conversion to a float, the conversion from one).
template <class Use>
void with_dtype(Dtype dtype, Use use) {
  const auto integer = [&](auto stored) {
    using Stored = decltype(stored);
    use(
        stored, [](Stored x) { return static_cast<float>(x); }, float_to_integer<Stored>);
  };
  switch (dtype) {
    case Dtype::fp32:
      return use(
          float{}, [](float x) { return x; }, [](float x) { return x; });
    case Dtype::bf16:
      return use(std::uint16_t{}, bf16_to_float, float_to_bf16);
    case Dtype::fp16:
      return use(std::uint16_t{}, Half::widen, Half::narrow);
    case Dtype::fp8:
      return use(std::uint8_t{}, Fp8::widen, Fp8::narrow);
    case Dtype::int64:
      return integer(std::int64_t{});
    case Dtype::int32:
      return integer(std::int32_t{});
    case Dtype::uint8:
      return integer(std::uint8_t{});
    case Dtype::int8:
    case Dtype::int4:
    case Dtype::sign:
      return integer(std::int8_t{});
    case Dtype::nvfp4:
    case Dtype::fp8_blocks:
    case Dtype::nf4:
    case Dtype::mxfp8:
      break;
  }
  throw std::logic_error(std::string("no kernel stores ") + name_of(dtype));
}

}  // namespace

void to_floats(const void* from, Dtype dtype, float* to, std::int64_t elements) {
  with_dtype(dtype, [&](auto stored, auto widen, auto) {
    std::transform(static_cast<const decltype(stored)*>(from), static_cast<const decltype(stored)*>(from) + elements,
                   to, widen);
  });
}

void from_floats(const float* from, void* to, Dtype dtype, std::int64_t elements) {
  with_dtype(dtype, [&](auto stored, auto, auto narrow) {
    std::transform(from, from + elements, static_cast<decltype(stored)*>(to), narrow);
  });
}

}  // namespace orrery::cuda
