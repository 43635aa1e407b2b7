// Adafactor (Shazeer & Stern 2018, arXiv 1804.04235). Its pass replaces the update that the optimizer's pass lays out for
// a parameter set, which is plain SGD's until then, and adds its states.
#pragma once

namespace orrery::adafactor {

// Moments that are kept for each parameter. Those of rows and of columns are fewer than a percent of them.
inline constexpr int kMomentsPerParameter = 0;

}  // namespace orrery::adafactor
