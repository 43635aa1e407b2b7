// Lists of nodes as schedulers, launchers and people write them: "node[001-004,010],gpu07", "worker-1 slots=8".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

struct NodeListRules {
  std::int64_t most = 0;              // numbers lie below, and no list is longer
  std::optional<std::int64_t> first;  // number of the fabric's first node, where the user says it
  std::int64_t devices_per_node = 0;  // what slots of a hostfile must be; 0: not looked at
};

// The numbers of the nodes, in the order in which their names come first; a name that repeats counts once, a bare
// number twice. Reads
//   Slurm          node[001-004,010],c[1-2]n[1-4]     also names with a domain or an ending, steps ([0-8:2], [0-8/2])
//   hostfiles      worker-1 slots=8                   DeepSpeed, Open MPI; a node a line, # begins a comment
//   machine files  node1:8                            MPICH, Intel MPI, mpirun --host
//   PBS            node1/0*8+node2/0*8  (node1:ncpus=8:ngpus=4)+(node2:ncpus=8)   and a name a line, once for each rank
//   LSF            node1 8 node2 8   8*node1 8*node2  and each name once for each slot
//   Grid Engine    node1 8 all.q@node1 UNDEFINED      a node a line
//   people         node1 node2, 3-6 12
// A node's number is the last number of its name. Where these repeat, and all names are alike, the numbers that differ
// count like digits, each from `first` to its greatest ("rack2-node3"). `slots=8`, `:8` and `:ngpus=8` are the devices
// that the job has of a node.
// Throws InputError: what is no such list, addresses, a range without brackets, numbers from `most` on, several nodes
// of one number, slots that are not the devices of a node.
std::vector<std::int64_t> read_node_list(std::string_view text, const NodeListRules& rules,
                                         const InputError::Where& where);

}  // namespace orrery
