// The mean of what each worker has for itself, of which codes of few bits travel (OpKind::quantise) and no numbers.
#pragma once

#include <vector>

#include "sim/program/mesh.h"
#include "sim/program/op.h"
#include "sim/program/piece.h"

namespace orrery::local_updates {

struct CodedWire {
  Dtype codes = Dtype::int8;
  std::int64_t group = 1;  // numbers that share a scale
  // Whether what codes lose is kept, and added to what is sent in the next step: two more optimizer states in fp32, as
  // large as `own` and as a worker's part of it.
  bool feedback = false;
};

// Appends to `ops` what gives all workers the mean of their flat buffers `own` in `mean`: each worker sends the codes
// of each part to the worker that owns it, which sends the codes of the mean to all.
void add_coded_mean(const Mesh& mesh, const CodedWire& wire, TensorId own, TensorId mean, Piece& piece,
                    std::vector<Op>& ops);

}  // namespace orrery::local_updates
