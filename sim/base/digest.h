// Digests: short names for input texts.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery {

// FNV-1a, 64 bits (RFC 9923), continued from `digest`. It distinguishes inputs; it gives no protection against forgery.
inline std::uint64_t digest_of(std::string_view text, std::uint64_t digest = 0xcbf29ce484222325) {
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

// A digest as 16 hexadecimal digits, and the digest in such a text.
inline std::string digest_text(std::uint64_t digest) { return fmt::format("{:016x}", digest); }
inline std::uint64_t digest_in(std::string_view text) {
  std::uint64_t digest = 0;
  std::from_chars(text.data(), text.data() + text.size(), digest, 16);
  return digest;
}

// The last steps of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators"): spreads
// differences between numbers over all bits.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}
inline constexpr std::uint64_t kSplitMixStep = 0x9e3779b97f4a7c15;  // the increment between successive states

}  // namespace orrery
