// What a layer of FSMoE's layout moves and computes, as its authors count it (arXiv 2501.10714; tools/optim.py of
// github.com/xpan413/FSMoE): elements for communication, multiply-adds for products. Tensor parallelism and the
// sharding of experts are over a node's ranks, experts over nodes, one a node.
#pragma once

#include <cstdint>

#include "strategies/fsmoe/degree.h"

namespace orrery::fsmoe {

struct LayerSize {
  std::int64_t sequences = 1;  // B, of a rank
  std::int64_t length = 1;     // L, tokens of a sequence
  std::int64_t hidden = 1;     // M
  std::int64_t ffn = 1;        // H, of an expert
  std::int64_t heads = 1;
  std::int64_t top_k = 1;
  double capacity_factor = 1;        // f; 1 where no token is dropped and routing is balanced
  std::int64_t expert_products = 2;  // n_g: 2, or 3 where the activation is gated (Mixtral)
  bool grouped_query = false;        // keys and values of a quarter of the width (Mixtral)
  std::int64_t node_ranks = 1;       // N_MP = N_ESP
};

double all_to_all_elements(const LayerSize& size);  // of a dispatch, or of a combine
double gather_elements(const LayerSize& size);      // of an all-gather, or of a reduce-scatter, in the node
double expert_products(const LayerSize& size);      // multiply-adds of a rank, forward
double attention_products(const LayerSize& size);   // of a rank, forward, with its projections
double attention_gradients(const LayerSize& size);  // elements of a rank that are all-reduced between nodes

// Fits of one cluster.
struct ClusterTimes {
  LinearTime all_to_all, all_gather, reduce_scatter, all_reduce;  // by elements
  LinearTime product, attention;                                  // by multiply-adds
};

LayerTimes forward_times(const LayerSize& size, const ClusterTimes& cluster);
// What is between two layers with experts, backward: attention twice, and its all-gather and reduce-scatter in the
// node. The link between nodes idles as long.
double dense_backward_seconds(const LayerSize& size, const ClusterTimes& cluster);

}  // namespace orrery::fsmoe
