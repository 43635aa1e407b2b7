// A Program as a JSON document, for tools that inspect what a scenario is lowered to.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "sim/program/program.h"

namespace orrery {

// { "mesh": { "ranks", "digits": [{ "name", "axis", "size", "stride" }] },
//   "pieces": [{ "name", "layers",
//                "tensors": [{ "name", "dtype", "sizes", "axes", "category", "place", "bytes", "resident",
//                              "alias_of" }],
//                "blocks": { "forward": [op], "backward": [op], "weight_gradient": [op], "update": [op] },
//                "parameters": [{ "parameter", "gradient" }] }],
//   "line": [run], "stages": [[[run]]],
//   "schedule": { "micro_batches", "chunks", "split_backward" },
//   "model": { "flops_per_step", "executed_flops_per_step", "tokens_per_step", "sequences_per_step", "parameters",
//              "active_parameters" } }
// op: { "kind", "name", "phase", "stream", "when", "reads", "writes", "group", "stages", "every", "count", "flops",
//       "bytes" }; run: { "piece", "count" }.
// Tensors are those of one rank. Tensors and pieces are referred to by their indices. "group" has the names of digits;
// "stages" the pipeline stages of a group that no digits name; "alias_of" the tensor of which this one is a view, or
// null. "active_parameters" are the parameters that one token uses, only for models with experts. "flops" and "bytes"
// are those of one run of the op (sim/program/work.h).
nlohmann::ordered_json program_json(const Program& program);

}  // namespace orrery
