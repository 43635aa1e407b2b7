// Who sends to whom in collectives that are not rings.
//
// Recursive halving and doubling: which ranks exchange which data. A reduce-scatter halves its vector in each step
// while the distance to the partner doubles; an all-gather runs the same steps backwards; an all-reduce does both. The
// large halves are thus exchanged between neighbours, within the node (Rabenseifner 2004; as MPICH does it). If the
// number of ranks is not a power of two, each of the first `extra` even ranks first sends its part to its odd
// neighbour, and receives its result from it at the end (Thakur, Rabenseifner and Gropp 2005, section 4).
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "sim/program/op.h"

namespace orrery {

class HalvingDoubling {
 public:
  // `kind`: all_reduce, all_gather or reduce_scatter.
  HalvingDoubling(OpKind kind, std::int64_t ranks)
      : kind_(kind),
        ranks_(ranks),
        participants_(static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(ranks)))) {}

  std::int64_t participants() const { return participants_; }
  std::int64_t extra() const { return ranks_ - participants_; }
  // The rank of a participant. Participant v < extra() stands for ranks 2v and 2v+1 and is rank 2v+1.
  std::int64_t rank_of(std::int64_t participant) const {
    return participant < extra() ? 2 * participant + 1 : participant + extra();
  }

  int bits() const { return std::countr_zero(static_cast<std::uint64_t>(participants_)); }
  int steps() const { return (kind_ == OpKind::all_reduce ? 2 : 1) * bits(); }
  bool halves(int step) const { return kind_ != OpKind::all_gather && step < bits(); }
  // In `step`, participants whose numbers differ in this bit exchange.
  int bit(int step) const { return halves(step) ? step : steps() - 1 - step; }

  // The share of the op's bytes that a participant sends in `step`. Blocks are numbered like participants. It sends the
  // blocks whose numbers agree in bits 0 .. bit(step) with the receiver's (halving) or the sender's (doubling).
  double share(int step, std::int64_t participant) const {
    const int b = bit(step);
    const std::int64_t apart = std::int64_t{2} << b;
    if (kind_ == OpKind::all_reduce) return 1 / static_cast<double>(apart);  // equal blocks, one per participant
    const std::int64_t owner = (halves(step) ? participant ^ (std::int64_t{1} << b) : participant) & (apart - 1);
    // The block of a participant has one rank's shard, and a second one if it stands for another rank.
    const std::int64_t doubled = std::max<std::int64_t>(0, (extra() - owner + apart - 1) / apart);
    return static_cast<double>(participants_ / apart + doubled) / static_cast<double>(ranks_);
  }

  // The share that an extra rank sends before the first step, and the share that it receives after the last.
  double share_in() const {
    const double n = static_cast<double>(ranks_);
    return kind_ == OpKind::all_reduce ? 1 : kind_ == OpKind::all_gather ? 1 / n : (n - 1) / n;
  }
  double share_out() const { return kind_ == OpKind::all_reduce ? 1 : 1 - share_in(); }

 private:
  OpKind kind_;
  std::int64_t ranks_, participants_;
};

// NCCL's double binary tree over nodes 0 .. nodes-1 (src/graph/trees.cc; Sanders, Speck and Traeff 2009): the leaves of
// one tree are inner nodes of the other, and each tree carries half of the bytes.

inline constexpr int kTreeRoot = -1;  // the root has no parent

// The parent of a node in the first tree (ncclGetBtree).
inline int tree_parent(int nodes, int node) {
  if (node == 0) return kTreeRoot;
  const int bit = node & -node;
  const int up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}
// The parent of a node in the second tree, whose inner nodes are the leaves of the first: the mirror image of the
// first, or for odd counts the first shifted by one node (ncclGetDtree).
inline int twin_parent(int nodes, int node) {
  const bool mirror = nodes % 2 == 0;
  const int parent = tree_parent(nodes, mirror ? nodes - 1 - node : (node + nodes - 1) % nodes);
  if (parent == kTreeRoot) return kTreeRoot;
  return mirror ? nodes - 1 - parent : (parent + 1) % nodes;
}

}  // namespace orrery
