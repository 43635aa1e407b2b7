// Data and work of a layer in FSMoE's layout, as its authors count them (arXiv 2501.10714; tools/optim.py of
// github.com/xpan413/FSMoE): elements for communication, multiply-adds for products. Tensor parallelism and the
// sharding of each expert are over a node's ranks; experts are divided over nodes, one expert per node.
#pragma once

#include <cstdint>

#include "strategies/fsmoe/degree.h"

namespace orrery::fsmoe {

struct LayerSize {
  std::int64_t sequences = 1;  // B, sequences per rank
  std::int64_t length = 1;     // L, tokens per sequence
  std::int64_t hidden = 1;     // M
  std::int64_t ffn = 1;        // H, of one expert
  std::int64_t heads = 1;
  std::int64_t top_k = 1;
  double capacity_factor = 1;        // f; 1 where no token is dropped and routing is balanced
  std::int64_t expert_products = 2;  // n_g: 2, or 3 where the activation is gated (Mixtral)
  bool grouped_query = false;        // keys and values have a quarter of the width (Mixtral)
  std::int64_t node_ranks = 1;       // N_MP = N_ESP
};

double all_to_all_elements(const LayerSize& size);  // of a dispatch, or of a combine
double gather_elements(const LayerSize& size);      // of an all-gather, or of a reduce-scatter, within the node
double expert_products(const LayerSize& size);      // multiply-adds per rank, forward
double attention_products(const LayerSize& size);   // multiply-adds per rank, forward, including projections
double attention_gradients(const LayerSize& size);  // elements per rank that are all-reduced between nodes

// Times fitted to one cluster.
struct ClusterTimes {
  LinearTime all_to_all, all_gather, reduce_scatter, all_reduce;  // by elements
  LinearTime product, attention;                                  // by multiply-adds
};

LayerTimes forward_times(const LayerSize& size, const ClusterTimes& cluster);
// Returns the seconds of the backward between two layers with experts: attention (twice its forward), and its
// all-gather and reduce-scatter within the node. The link between nodes is idle for this time.
double dense_backward_seconds(const LayerSize& size, const ClusterTimes& cluster);

}  // namespace orrery::fsmoe
