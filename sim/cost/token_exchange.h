// The bytes on the wire of an all-to-all of tokens to experts, when a token travels once to each node that has one of
// its experts, to the rank at the same place there, and from there once to each rank that needs it (DeepEP, github
// deepseek-ai/DeepEP; DeepSeek-V3, arXiv 2412.19437, section 3.2.2). Routing is balanced.
#pragma once

#include <cstdint>

#include "sim/program/op.h"

namespace orrery {

// Shares of the bytes of all rows, in which a token counts once per expert.
struct TokenShares {
  double to_rank = 0;  // received by a rank of the group from one rank's tokens, each token once
  double to_node = 0;  // received by a node from one rank's tokens over NICs, each token once
  double choices = 1;  // experts per token
  bool operator==(const TokenShares&) const = default;
};

// The shares if the experts lie in order over `ranks` ranks on `nodes` nodes, equally many on each. With expert groups,
// a token uses experts of its best groups, equally many of each.
TokenShares token_shares(const Router& router, std::int64_t ranks, std::int64_t nodes);

}  // namespace orrery
