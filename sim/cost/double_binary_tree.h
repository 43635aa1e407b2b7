// NCCL's double binary tree over nodes 0 .. nodes-1 (src/graph/trees.cc; Sanders, Speck and Traeff 2009): leaves of one
// tree are inside the other, and each carries half of the bytes.
#pragma once

namespace orrery {

inline constexpr int kTreeRoot = -1;  // has no parent

// ncclGetBtree.
inline int tree_parent(int nodes, int node) {
  if (node == 0) return kTreeRoot;
  const int bit = node & -node;
  const int up = (node ^ bit) | (bit << 1);
  return up < nodes ? up : node ^ bit;
}
// In the second tree, where the leaves of the first are inside: its mirror image, or for odd counts the first one
// shifted by one node (ncclGetDtree).
inline int twin_parent(int nodes, int node) {
  const bool mirror = nodes % 2 == 0;
  const int parent = tree_parent(nodes, mirror ? nodes - 1 - node : (node + nodes - 1) % nodes);
  if (parent == kTreeRoot) return kTreeRoot;
  return mirror ? nodes - 1 - parent : (parent + 1) % nodes;
}

}  // namespace orrery
