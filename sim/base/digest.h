// A short name for what was read.
#pragma once

#include <cstdint>
#include <string_view>

namespace orrery {

// FNV-1a of 64 bits (RFC 9923), carried on from `digest`: tells inputs apart, and is no protection from anybody.
inline std::uint64_t digest_of(std::string_view text, std::uint64_t digest = 0xcbf29ce484222325) {
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return digest;
}

}  // namespace orrery
