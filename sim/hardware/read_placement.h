// Reads the "placement" of a cluster: the nodes of the fabric that it occupies.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Accepts
//   {"nodes": "node[001-004,010]", "first": 1}       nodes as a scheduler or a hostfile lists them (node_list.h); the
//                                                    fabric's first node has number 1
//   {"nodes": ["node007", "node009"]}                the same as an array of names
//   {"nodes": [0, 1, 2, 3, 9], "of": 64}             their places on the fabric, which has 64 nodes
//   {"nodes": "scattered", "seed": 7, "of": 128}     as many as the cluster has, drawn from 128, in the order drawn
//   {"nodes": "contiguous", "fill": 24}              leaf by leaf, 24 nodes of each
// each with "order": "sorted" (ranks are laid over the nodes in ascending order) and "ring_order". `count_given`: the
// scenario states the cluster's number of nodes; otherwise the length of the list is that number. REQUIRES: the
// cluster's fabric is read. Throws InputError.
void read_placement(const nlohmann::json& json, const InputError::Where& where, bool count_given, Cluster& cluster);

// The fields that may stand beside "nodes".
struct PlacementFields {
  std::int64_t of = 0, fill = 0, first = 0, seed = 1;
  bool sorted = false;
  RingOrder ring_order = RingOrder::rank;

  void visit_fields(FieldVisitor& v);
};

// Whether the cluster's nodes are neighbours in order that begin with the first node of a leaf: they lie on as few
// leaves as possible.
bool lie_leaf_by_leaf(const Cluster& cluster);

// `count` of the nodes below `of`, in the order in which they are drawn; the same on every platform.
std::vector<std::int64_t> scattered_nodes(std::int64_t count, std::int64_t of, std::int64_t seed);

nlohmann::json to_json(const NodePlacement& placement);

}  // namespace orrery
