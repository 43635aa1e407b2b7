// SWIPE balances by changing the routers' choices: each worker takes as many tokens as it has room for, and tokens
// beyond that go to other workers (FastMoE's SwipeGate: fmoe/gates/swipe_gate.py, cuda/balancing.cu).
#pragma once

#include <cstdint>
#include <vector>

#include "traces/routing.h"

namespace orrery::flexmoe {

struct SwipePass {
  RoutingMatrix tokens;    // by worker, after balancing
  std::int64_t moved = 0;  // tokens that go to another worker than their router chose
};

// Makes one pass, over one choice of every token. `tokens`: how many tokens go from each source rank to each worker;
// RoutingMatrix::experts is the number of workers, as a worker's experts count together. `room`: how many tokens each
// worker still takes; it is updated. Source ranks are served in order; tokens that find no room go to the first workers
// that have some. `room` is for all passes, one for each of a token's top_k choices: with T x top_k for each worker,
// where T is the number of tokens of a rank, all workers end with equally many tokens. Throws InputError if sizes
// differ, or if there is less room than tokens.
SwipePass swipe_once(const RoutingMatrix& tokens, std::vector<std::int64_t>& room);

}  // namespace orrery::flexmoe
