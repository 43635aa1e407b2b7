// SWIPE, which balances by changing what routers chose: workers take as many tokens as they have room for, and what is
// left over goes to others (FastMoE's SwipeGate: fmoe/gates/swipe_gate.py, cuda/balancing.cu).
#pragma once

#include <cstdint>
#include <vector>

#include "traces/routing.h"

namespace orrery::flexmoe {

struct SwipePass {
  RoutingMatrix tokens;    // by worker, as balanced
  std::int64_t moved = 0;  // tokens that go elsewhere than their router said
};

// One pass, of one choice of every token. `tokens` says by source rank how many go to each worker (its experts
// together: RoutingMatrix::experts is the number of workers), `room` how many each still takes, which is brought up to
// date. Sources are served in the order of their ranks; overflow fills workers from the first on. Room for T x top_k
// tokens a worker, over all passes, leaves every worker as many. Throws InputError where sizes differ, or room is less
// than tokens.
SwipePass swipe_once(const RoutingMatrix& tokens, std::vector<std::int64_t>& room);

}  // namespace orrery::flexmoe
