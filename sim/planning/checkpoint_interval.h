// How long to train between two checkpoints. All times in seconds: `stall` is what training waits for one checkpoint
// (delta in the papers), `between` the mean time between failures (M), the result the training between the end of one
// checkpoint and the begin of the next (tau). Failures are exponential.
//
// REQUIRES: stall > 0, between > 0, both finite.
#pragma once

namespace orrery {

// Young 1974, CACM 17(9): sqrt(2 delta M). First order: too long where the stall is no longer small against M.
double young_interval(double stall, double between);

// Daly 2006, FGCS 22(3), eq. 37: sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 18M) - delta where delta < 2M,
// else M.
double daly_interval(double stall, double between);

// The minimum itself of Daly's exact time (expected_run): the root of 1 - tau/M = exp(-(tau + delta)/M), which is
// M (1 + W0(-exp(-1 - delta/M))) with Lambert's W. Time to restart does not enter.
double optimal_interval(double stall, double between);

// Expected effective training time ratio of Kokolis et al. 2024 (arXiv 2410.21680), to first order:
// (1 - (restart + interval/2) / M) / (1 + stall / interval). Negative where it no longer holds.
double kokolis_ettr(double stall, double interval, double restart, double between);

}  // namespace orrery
