// Indices of vectors from the signed numbers in which ranks, devices and links are counted.
#pragma once

#include <cstddef>
#include <cstdint>

namespace orrery {

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace orrery
