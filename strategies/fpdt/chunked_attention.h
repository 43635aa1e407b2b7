// Causal attention chunk by chunk, between Ulysses' exchanges of each chunk.
#pragma once

#include "sim/program/program.h"

namespace orrery::fpdt {

struct ChunkedAttentionOptions {
  std::int64_t chunks = 1;
  bool offload = true;          // to host memory, where there are several chunks
  bool fp32_gradients = false;  // sums of a chunk's gradients
};

// Of a piece's attention, if it has one: what makes queries, keys and values of the residual stream's norm, the
// exchanges, attention, and the same backward. REQUIRES: positions are divided, chunk m of all ranks being the m-th
// piece of the sequence.
void chunk_attention(Piece& piece, const Mesh& mesh, const ChunkedAttentionOptions& options);

}  // namespace orrery::fpdt
