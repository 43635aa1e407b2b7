// The time to train between two checkpoints. All times are in seconds. `stall`: the time that training waits for one
// checkpoint (delta in the papers). `between`: the mean time between failures (M). The result is the training time
// between the end of one checkpoint and the start of the next (tau). Failures are exponential.
//
// REQUIRES: stall > 0, between > 0, both finite.
#pragma once

namespace orrery {

// Young 1974, CACM 17(9): sqrt(2 delta M). First order: too long if the stall is not small against M.
double young_interval(double stall, double between);

// Daly 2006, FGCS 22(3), eq. 37: sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 18M) - delta if delta < 2M, else
// M.
double daly_interval(double stall, double between);

// The exact minimum of Daly's expected time (expected_run): the root of 1 - tau/M = exp(-(tau + delta)/M), which is M
// (1 + W0(-exp(-1 - delta/M))) with Lambert's W. The time to restart does not matter.
double optimal_interval(double stall, double between);

// Expected effective training time ratio of Kokolis et al. 2024 (arXiv 2410.21680), to first order: (1 - (restart +
// interval/2) / M) / (1 + stall / interval). Negative where the approximation no longer holds.
double kokolis_ettr(double stall, double interval, double restart, double between);

}  // namespace orrery
