// What an all-to-all of rows moves: the bytes of tokens that travel once to each node and rank, and the skew of a load.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/program/load.h"
#include "sim/program/op.h"

namespace orrery {

struct CollectiveCost;

// The bytes on the wire of an all-to-all of tokens to experts, when a token travels once to each node that has one of
// its experts, to the rank at the same place there, and from there once to each rank that needs it (DeepEP, github
// deepseek-ai/DeepEP; DeepSeek-V3, arXiv 2412.19437, section 3.2.2). Routing is balanced.

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

// How much longer an all-to-all of rows takes under a load than with balanced routing: the bytes that the busiest rank
// sends or receives, within its node and over NICs, over those of every rank with balanced routing.
struct ExchangeSkew {
  double inside = 1, between = 1;
};

// The skew of an exchange and of the one that returns its rows. The ranks of the group lie side by side, `per_node` on
// each node. `tokens`: for by_token.
ExchangeSkew exchange_skew(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm,
                           const TokenShares& tokens);

// Remembers the skews that were asked for last: plans of one workload have the same few loads for all stages and ops.
class ExchangeSkews {
 public:
  ExchangeSkew of(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm, const TokenShares& tokens);

 private:
  static constexpr std::size_t kMost = 16;
  struct Met {  // the inputs of a skew, and the skew
    RowsOf of{};
    std::vector<double> rows;
    std::int64_t per_node = 0;
    CollectiveAlgorithm algorithm{};
    TokenShares tokens;
    ExchangeSkew skew;
  };
  std::array<Met, kMost> met_;
  std::size_t next_ = 0;
};

// Lengthens a balanced exchange by the busiest rank's excess, or shortens it if all ranks have less. Its latency does
// not change.
void skew(const ExchangeSkew& by, CollectiveCost& cost);

// Load::rows for `members` ranks from the text of the option --rows: "1,1.5,0.5,1". Throws InputError.
std::vector<double> rows_of_text(const std::string& text, std::int64_t members);

// The share of rows that travel, each token once, to a place that receives `rows` times the mean. It assumes that a
// token's choices are independent: if a token misses the place with probability p under balanced routing, it misses it
// with probability p^rows.
double share_of_tokens(double balanced, double choices, double rows);

}  // namespace orrery
