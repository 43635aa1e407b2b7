// Causal attention chunk by chunk, with an exchange of Ulysses before and after each chunk.
#pragma once

#include "sim/program/program.h"

namespace orrery::fpdt {

struct ChunkedAttentionOptions {
  std::int64_t chunks = 1;
  bool offload = true;          // keep chunks in host memory if there are several
  bool fp32_gradients = false;  // sum a chunk's gradients in fp32
};

// Rewrites the attention of a piece, if it has one, forward and backward: from the ops that compute queries, keys and
// values, through the exchanges, to attention itself. REQUIRES: positions are divided such that chunk m of all ranks
// together is the m-th part of the sequence.
void chunk_attention(Piece& piece, const Mesh& mesh, const ChunkedAttentionOptions& options);

}  // namespace orrery::fpdt
