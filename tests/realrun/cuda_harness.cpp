#include "tests/realrun/cuda_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

namespace orrery::cuda_test {
namespace {

// The code of a float of `exponent_bits` and `mantissa_bits` that is nearest to x, found among all of one sign: by
// search, for want of a second formula. `largest`: of the finite codes.
float decode(std::uint32_t code, int exponent_bits, int mantissa_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const auto exponent = static_cast<int>(code >> mantissa_bits);
  const double fraction = static_cast<double>(code & ((1u << mantissa_bits) - 1)) / (1 << mantissa_bits);
  const auto power_of_two = [](int e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); };
  return static_cast<float>(exponent == 0 ? fraction * power_of_two(1 - bias)
                                          : (1 + fraction) * power_of_two(exponent - bias));
}

std::uint32_t encode(float x, int exponent_bits, int mantissa_bits, std::uint32_t largest, std::uint32_t beyond,
                     std::uint32_t nan) {
  const std::uint32_t sign = std::signbit(x) ? 1u << (exponent_bits + mantissa_bits) : 0;
  if (std::isnan(x)) return nan;
  const float magnitude = std::abs(x);
  std::uint32_t low = 0, high = largest + 1;  // decode(low) <= magnitude < decode(high)
  if (magnitude >= decode(high, exponent_bits, mantissa_bits)) return sign | beyond;
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (decode(middle, exponent_bits, mantissa_bits) <= magnitude ? low : high) = middle;
  }
  const double below = static_cast<double>(magnitude) - decode(low, exponent_bits, mantissa_bits),
               above = static_cast<double>(decode(high, exponent_bits, mantissa_bits)) - magnitude;
  const bool up = below > above || (below == above && low % 2 == 1);
  const std::uint32_t code = up ? high : low;
  return sign | (code > largest ? beyond : code);
}

template <class T>
void append(std::vector<unsigned char>& bytes, T value) {
  const auto* p = reinterpret_cast<const unsigned char*>(&value);
  bytes.insert(bytes.end(), p, p + sizeof value);
}

template <class T>
T take(std::span<const unsigned char> bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof value, sizeof value);
  return value;
}

constexpr std::uint32_t kLargestHalf = 0x7bff, kInfiniteHalf = 0x7c00, kNanHalf = 0x7e00;
constexpr std::uint32_t kLargestE4m3 = 0x7e, kNanE4m3 = 0x7f;

}  // namespace

std::vector<unsigned char> stored(std::span<const float> values, Dtype dtype) {
  std::vector<unsigned char> bytes;
  for (const float x : values) switch (dtype) {
      case Dtype::fp32:
        append(bytes, x);
        break;
      case Dtype::bf16: {
        // Half a unit of the last kept place, of the value's own binade, decides.
        const auto bits = std::bit_cast<std::uint32_t>(x);
        const std::uint32_t kept = bits >> 16, rest = bits & 0xffff;
        const bool up = !std::isnan(x) && (rest > 0x8000 || (rest == 0x8000 && kept % 2 == 1));
        append(bytes, static_cast<std::uint16_t>(std::isnan(x) ? 0x7fc0 : kept + (up ? 1 : 0)));
        break;
      }
      case Dtype::fp16:
        append(bytes, static_cast<std::uint16_t>(encode(x, 5, 10, kLargestHalf, kInfiniteHalf, kNanHalf)));
        break;
      case Dtype::fp8:
        append(bytes, static_cast<std::uint8_t>(encode(x, 4, 3, kLargestE4m3, kLargestE4m3, kNanE4m3)));
        break;
      case Dtype::int64:
        append(bytes, std::isnan(x) ? std::int64_t{-1} : static_cast<std::int64_t>(x));
        break;
      case Dtype::int32:
        append(bytes, std::isnan(x) ? std::int32_t{-1} : static_cast<std::int32_t>(x));
        break;
      case Dtype::uint8:
        append(bytes, static_cast<std::uint8_t>(std::isnan(x) ? 255 : static_cast<int>(x)));
        break;
      case Dtype::int8:
      case Dtype::int4:
      case Dtype::sign:  // -128, which is no code, is poison
        append(bytes, static_cast<std::int8_t>(std::isnan(x) ? -128 : static_cast<int>(x)));
        break;
      case Dtype::nvfp4:
      case Dtype::fp8_blocks:
      case Dtype::nf4:
      case Dtype::mxfp8:
        throw std::logic_error(std::string("no kernel stores ") + name_of(dtype));
    }
  return bytes;
}

std::vector<float> numbers(std::span<const unsigned char> bytes, Dtype dtype) {
  std::vector<float> values(bytes.size() / static_cast<std::size_t>(bytes_of(dtype, 1)));
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 0; i < values.size(); ++i) {
    float& x = values[i];
    switch (dtype) {
      case Dtype::fp32:
        x = take<float>(bytes, i);
        break;
      case Dtype::bf16:
        x = std::bit_cast<float>(static_cast<std::uint32_t>(take<std::uint16_t>(bytes, i)) << 16);
        break;
      case Dtype::fp16: {
        const std::uint32_t code = take<std::uint16_t>(bytes, i), magnitude = code & 0x7fff;
        x = magnitude > kInfiniteHalf    ? kNan
            : magnitude == kInfiniteHalf ? std::numeric_limits<float>::infinity()
                                         : decode(magnitude, 5, 10);
        if (code & 0x8000) x = -x;
        break;
      }
      case Dtype::fp8: {
        const std::uint32_t code = take<std::uint8_t>(bytes, i), magnitude = code & 0x7f;
        x = magnitude == kNanE4m3 ? kNan : decode(magnitude, 4, 3);
        if (code & 0x80) x = -x;
        break;
      }
      case Dtype::int64:
        x = static_cast<float>(take<std::int64_t>(bytes, i));
        break;
      case Dtype::int32:
        x = static_cast<float>(take<std::int32_t>(bytes, i));
        break;
      case Dtype::uint8:  // a mask's 0xff is poison
        x = take<std::uint8_t>(bytes, i) == 0xff ? kNan : take<std::uint8_t>(bytes, i);
        break;
      case Dtype::int8:
      case Dtype::int4:
      case Dtype::sign:
        x = take<std::int8_t>(bytes, i) == -128 ? kNan : take<std::int8_t>(bytes, i);
        break;
      case Dtype::nvfp4:
      case Dtype::fp8_blocks:
      case Dtype::nf4:
      case Dtype::mxfp8:
        throw std::logic_error(std::string("no kernel stores ") + name_of(dtype));
    }
  }
  return values;
}

void run(const Op& op, std::span<const Operand> reads, std::span<const Operand> writes, const KernelContext& context,
         const Environment& environment) {
  struct Resident {
    const void* host;
    Dtype dtype;
    std::unique_ptr<Memory> memory;
  };
  std::vector<Resident> residents;
  const auto operand = [&](const Operand& b) -> Operand {
    if (b.data == nullptr) return {nullptr, b.tensor};
    const Dtype dtype = b.tensor->dtype;
    for (const Resident& r : residents)
      if (r.host == b.data && r.dtype == dtype) return {r.memory->data(), b.tensor};
    const std::vector<unsigned char> bytes = stored(cpu::floats(b), dtype);
    auto memory = std::make_unique<Memory>(static_cast<std::int64_t>(bytes.size()), environment.place);
    memory->upload(bytes.data());
    residents.push_back({b.data, dtype, std::move(memory)});
    return {residents.back().memory->data(), b.tensor};
  };
  std::vector<Operand> in, out;
  for (const Operand& b : reads) in.push_back(operand(b));
  for (const Operand& b : writes) out.push_back(operand(b));

  cuda::Launch launch;
  launch.processors = environment.processors;
  launch.scratch_bytes = cuda::scratch_bytes(op, in, out, launch.processors);
  Memory scratch(launch.scratch_bytes);
  launch.scratch = scratch.data();
  // Lists of rows, in which poison would read as -1: free, or none.
  if (traits_of(op.kind).regroups)
    scratch.upload(std::vector<unsigned char>(static_cast<std::size_t>(launch.scratch_bytes)).data());
  const auto positions = [&](std::span<const std::int64_t> host) {
    auto memory = std::make_unique<Memory>(static_cast<std::int64_t>(host.size_bytes()), environment.place);
    memory->upload(host.data());
    return memory;
  };
  const auto query_positions = positions(context.query_positions), key_positions = positions(context.key_positions),
             expert_of_slot = positions(context.expert_of_slot);
  if (!context.query_positions.empty())
    launch.query_positions = static_cast<const std::int64_t*>(query_positions->data());
  if (!context.key_positions.empty()) launch.key_positions = static_cast<const std::int64_t*>(key_positions->data());

  if (!context.expert_of_slot.empty()) launch.expert_of_slot = static_cast<const std::int64_t*>(expert_of_slot->data());
  cuda::run_kernel(op, in, out, context, launch);

  static_cast<void>(scratch.download());  // was anything written around it?
  for (std::size_t i = 0; i < writes.size(); ++i) {
    if (writes[i].data == nullptr) continue;
    for (const Resident& r : residents)
      if (r.memory->data() == out[i].data) {
        const std::vector<float> values = numbers(r.memory->download(), r.dtype);
        std::ranges::copy(values, cpu::floats(writes[i]).begin());
      }
  }
  // What is only read stays.
  for (std::size_t i = 0; i < reads.size(); ++i)
    for (const Resident& r : residents) {
      const bool written = std::ranges::any_of(out, [&](const Operand& o) { return o.data == r.memory->data(); });
      if (r.host == reads[i].data && r.memory->data() == in[i].data && !written &&
          r.memory->download() != stored(cpu::floats(reads[i]), r.dtype))
        throw std::runtime_error("a kernel wrote to an operand that it reads");
    }
}

}  // namespace orrery::cuda_test
