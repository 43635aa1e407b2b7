// Arithmetic of routers in which tokens do not choose alone, for all backends (sim/program/op.h, RouterType).
#pragma once

#include <cstdint>

#include "realrun/kernel.h"

namespace orrery {

// Number of tokens that one expert gets when tokens are dealt out evenly.
constexpr std::int64_t seats_of_expert(std::int64_t tokens, std::int64_t choices, std::int64_t experts) {
  const std::int64_t seats = (tokens * choices + experts - 1) / experts;
  return seats < tokens ? seats : tokens;
}

// RouterType::base: an auction (Bertsekas 1988, "The Auction Algorithm") as in Lewis et al. 2021 (arXiv 2103.16716,
// section 3.2). Each token has a price, at first 0. In a round every expert with f free seats bids for the f tokens of
// largest logit minus price that it does not own (the first ones among equals). Its bid exceeds the price by the
// token's margin over the first token that it does not bid for (or over its last token if it bids for all), plus a
// step. A token goes to the highest bid (among equals, the first expert), which becomes its price. All bids of a round
// use the prices before it. The auction ends when all tokens have an expert. With as many seats as tokens, the sum of
// their logits is then within tokens x step of the maximum. Numbers are fp32, each operation rounded, so that all
// backends assign alike.
namespace auction {
// fairseq's values (balanced_assignment.cpp): the step as a fraction of the range of all logits, its minimum, and the
// number of rounds before a shortcut ends the auction. The shortcut differs from fairseq's: here each token without an
// expert, in order, goes to the expert with a free seat for which its logit is largest.
inline constexpr float kStepOfRange = 1.0f / 50, kLeastStep = 1e-4f;
inline constexpr int kMostRounds = 100;
}  // namespace auction

// RouterType::hash: spreads ids evenly over experts, whatever the ids are (SplitMix64's mixing: Steele et al. 2014).
ORRERY_ON_DEVICES constexpr std::int64_t expert_of_id(std::int64_t id, std::int64_t experts) {
  auto x = static_cast<std::uint64_t>(id) + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<std::int64_t>((x ^ (x >> 31U)) % static_cast<std::uint64_t>(experts));
}

}  // namespace orrery
