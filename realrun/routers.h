// What routers that no token decides alone compute on whatever backend (sim/program/op.h, RouterType).
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define ORRERY_ON_DEVICES __host__ __device__
#else
#define ORRERY_ON_DEVICES
#endif

namespace orrery {

// Of tokens that are dealt out evenly to experts, those of one.
constexpr std::int64_t seats_of_expert(std::int64_t tokens, std::int64_t choices, std::int64_t experts) {
  const std::int64_t seats = (tokens * choices + experts - 1) / experts;
  return seats < tokens ? seats : tokens;
}

// RouterType::base: an auction (Bertsekas 1988, "The Auction Algorithm") as Lewis et al. 2021 (arXiv 2103.16716,
// section 3.2) hold it. Each token has a price, at first 0. In a round every expert with free seats bids for as many
// tokens that it does not own: those with the largest logit less price, of equals the first. On each it offers what
// that is more than for the first token that it does not bid for (there being none: than for the last it does), and a
// step on top. A token goes to the highest bid, of equals the first expert's, which is its price then. All bids of a
// round are of the prices before it. It ends when all tokens have an expert; with as many seats as tokens their logits'
// sum is then within tokens x step of the largest. Numbers are fp32, each added or subtracted alone: backends assign
// alike.
namespace auction {
// The step, of the range of all logits, and at least; how many rounds are held before a shortcut is taken: fairseq's
// (balanced_assignment.cpp). Its shortcut is another: here tokens without an expert go, in their order, to the one with
// a free seat that their logit is the largest for.
inline constexpr float kStepOfRange = 1.0f / 50, kLeastStep = 1e-4f;
inline constexpr int kMostRounds = 100;
}  // namespace auction

// RouterType::hash: spread evenly whatever the ids are (SplitMix64's mixing: Steele et al. 2014).
ORRERY_ON_DEVICES constexpr std::int64_t expert_of_id(std::int64_t id, std::int64_t experts) {
  auto x = static_cast<std::uint64_t>(id) + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return static_cast<std::int64_t>((x ^ (x >> 31U)) % static_cast<std::uint64_t>(experts));
}

}  // namespace orrery
