// The mean of a buffer over all workers: of its numbers, or of codes of few bits and their scales that travel in place
// of them (OpKind::quantise).
#pragma once

#include <vector>

#include "sim/program/mesh.h"
#include "sim/program/op.h"
#include "sim/program/piece.h"

namespace orrery::local_updates {

// An op that writes the mean of all workers' `from` to `to` on every worker; both may be one tensor.
Op mean_over_workers(const Mesh& mesh, TensorId from, TensorId to);

struct CodedWire {
  Dtype codes = Dtype::int8;
  std::int64_t group = 1;  // numbers that share a scale
  // True: the loss of codes is kept, and added to what is sent in the next step. This takes two more optimizer states
  // in fp32, one as large as `own` and one as large as a worker's part of it.
  bool feedback = false;
};

// Appends ops that write the mean of all workers' `own` to `mean` on every worker, and adds their tensors to `piece`.
// Each worker owns one part of the buffer. All send it the codes of that part; it takes the mean and sends its codes to
// all. REQUIRES: `own` and `mean` are flat buffers of one dimension.
void add_coded_mean(const Mesh& mesh, const CodedWire& wire, TensorId own, TensorId mean, Piece& piece,
                    std::vector<Op>& ops);

}  // namespace orrery::local_updates
