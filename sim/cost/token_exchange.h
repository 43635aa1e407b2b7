// What an all-to-all of tokens to experts puts on the wire when a token travels once to each node that has an expert of
// its own, to the rank of the same place there, and from there once to each rank (DeepEP, github deepseek-ai/DeepEP;
// DeepSeek-V3, arXiv 2412.19437, section 3.2.2). Balanced routing.
#pragma once

#include <cstdint>

#include "sim/program/op.h"

namespace orrery {

// Of the bytes of all rows, a token's as often as it has experts.
struct TokenShares {
  double to_rank = 0;  // that a rank of the group gets of one rank's tokens, once each
  double to_node = 0;  // the same of a node, over NICs
  double choices = 1;  // experts of a token
  bool operator==(const TokenShares&) const = default;
};

// Of experts that lie in order over `ranks` ranks on `nodes` nodes, as many on each. Of grouped experts a token meets
// those of its best groups, as many of each as of any other.
TokenShares token_shares(const Router& router, std::int64_t ranks, std::int64_t nodes);

}  // namespace orrery
