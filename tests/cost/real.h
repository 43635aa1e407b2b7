// Counts in formulas.
#pragma once

#include <cstdint>

namespace orrery {

inline double real(std::int64_t count) { return static_cast<double>(count); }

}  // namespace orrery
