// How much longer an all-to-all of rows takes under a load than balanced: what the busiest rank sends or gets, within
// its node and over NICs, over what every rank does when routing is balanced.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/cost/token_exchange.h"
#include "sim/program/collective_algorithm.h"
#include "sim/program/load.h"

namespace orrery {

struct ExchangeSkew {
  double inside = 1, between = 1;
};

// Ranks of the group lie side by side, `per_node` on each node. The same for rows that travel back. `tokens`: of
// by_token.
ExchangeSkew exchange_skew(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm,
                           const TokenShares& tokens);

// Those that have been asked for last: plans of one workload have the same few loads, stage by stage and op by op.
class ExchangeSkews {
 public:
  ExchangeSkew of(const Load& load, std::int64_t per_node, CollectiveAlgorithm algorithm, const TokenShares& tokens);

 private:
  static constexpr std::size_t kMost = 16;
  struct Met {  // what a skew follows from, and what it is
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

// A balanced exchange as much longer as the busiest rank has more, or shorter where all have less; what begins with it
// takes as long.
void skew(const ExchangeSkew& by, CollectiveCost& cost);

// Load::rows of `members` ranks as an option --rows has them: "1,1.5,0.5,1". Throws InputError.
std::vector<double> rows_of_text(const std::string& text, std::int64_t members);

// The share of rows that travel to where so many times the mean go, a token once: as if a token's choices were
// independent, so that one that misses a place under balanced routing misses it as often as that, to the power of
// `rows`.
double share_of_tokens(double balanced, double choices, double rows);

}  // namespace orrery
