// NCCL's double binary tree over nodes 0 .. nodes-1 (src/graph/trees.cc; Sanders, Speck and Traeff 2009): the leaves of
// one tree are inner nodes of the other, and each tree carries half of the bytes.
#pragma once

namespace orrery {

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
