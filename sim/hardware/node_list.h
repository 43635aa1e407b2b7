// Lists of nodes as schedulers print them: "node[001-004,010],gpu07", "3-6,12".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

// The numbers of the nodes, in the order in which they are written. What stands before a number names the nodes and is
// not looked at (Slurm: NodeName, SLURM_JOB_NODELIST). Throws InputError: what is no such list, a range that runs
// backwards, numbers from `most` on, one number under two names.
std::vector<std::int64_t> read_node_list(std::string_view text, std::int64_t most, const InputError::Where& where);

}  // namespace orrery
