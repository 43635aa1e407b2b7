// Reads the "placement" of a cluster: the nodes of the fabric that it occupies.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/base/error.h"
#include "sim/hardware/cluster.h"

namespace orrery {

// Accepts
//   {"nodes": "node[001-004,010]", "first": 1}       nodes as a scheduler or a hostfile lists them (read_node_list);
//                                                    the fabric's first node has number 1
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

// `count` different numbers below `of`, in the order in which they are drawn; the same on every platform.
std::vector<std::int64_t> drawn_numbers(std::int64_t count, std::int64_t of, std::int64_t seed);

nlohmann::json to_json(const NodePlacement& placement);

// Reads lists of nodes as schedulers, launchers and people write them: "node[001-004,010],gpu07", "worker-1 slots=8".

struct NodeListRules {
  std::int64_t most = 0;              // node numbers must be below it, and a list may not be longer
  std::optional<std::int64_t> first;  // the number of the fabric's first node; empty: the user has not said it
  std::int64_t devices_per_node = 0;  // the slots of each node must equal it; 0: they are not checked
};

// Returns the number of each node, in the order in which the names appear first. A name that repeats counts once; a
// bare number that repeats counts each time. It reads
//   Slurm          node[001-004,010]  c[1-2]n[1-4]    also names with a domain or an ending, steps ([0-8:2], [0-8/2])
//   hostfiles      worker-1 slots=8                   DeepSpeed, Open MPI; a node a line, # begins a comment
//   machine files  node1:8                            MPICH, Intel MPI, mpirun --host
//   PBS            node1/0*8+node2/0*8  (node1:ncpus=8:ngpus=4)+(node2:ncpus=8)   and a name a line, once for each rank
//   LSF            node1 8 node2 8   8*node1 8*node2  and each name once for each slot; without the launch host
//   Grid Engine    node1 8 all.q@node1 UNDEFINED      a node a line
//   people         node1 node2, 3-6 12
// A node's number is the last number in its name. Where these repeat and all names have one form ("rack2-node3"), those
// numbers of a name that differ between nodes count like the digits of one number; each digit runs from `first` to its
// greatest value in the list. `slots=8`, `:8` and `:ngpus=8` say how many devices of a node the job has.
// Throws InputError for a text that is no such list, for addresses, for a range without brackets, for a number that is
// not below `most`, for several names with one number, for slots that are 0 or differ from `devices_per_node`, for
// counts of LSF that differ between hosts, and for the path of a file.
std::vector<std::int64_t> read_node_list(std::string_view text, const NodeListRules& rules,
                                         const InputError::Where& where);

}  // namespace orrery
