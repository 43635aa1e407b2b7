// Repeats ops of a piece chunk by chunk along the sequence; causal attention with an exchange of Ulysses before and
// after each chunk.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/piece.h"
#include "sim/program/program.h"

namespace orrery::fpdt {

// A set of ops: indices into the blocks of a piece, ascending.
struct Region {
  std::vector<std::size_t> forward, backward;
};

// Returns the ops on tensors that have both a sequence axis and `axis`: e.g. the ops of an MLP, or of logits.
Region ops_along(const Piece& piece, Axis axis);

// The storages that only the ops of a region use. They need not exist as a whole at any time.
class Inside {
 public:
  Inside(const Piece& piece, const Region& region);
  bool contains(const Piece& piece, TensorId id) const;

 private:
  std::vector<std::uint8_t> inside_;  // by tensor
};

// The tensors of one chunk. A tensor inside the region gets a tensor of the chunk's size; any other tensor gets a view.
// Tensors without a sequence axis (weights, their gradients) are the same for all chunks.
class SequenceChunk {
 public:
  // Makes chunk `index` of `count` equal chunks of a rank's positions. `of_sequence`: the chunks of all ranks together
  // are a contiguous part of the sequence, in which the ranks' parts lie in order.
  SequenceChunk(Piece& piece, const Inside& inside, std::int64_t count, std::int64_t index, std::int64_t ranks,
                bool of_sequence);

  // Return the chunk's tensor for `id`, and a copy of `op` on the chunk's tensors. Tensors are created on first use.
  TensorId part(TensorId id);
  Op part(Op op);
  // Makes part(id) return `part` instead.
  void set(TensorId id, TensorId part) { parts_[id] = part; }
  bool has(TensorId id) const { return id < parts_.size() && parts_[id] != kNoTensor; }

 private:
  void cut(Tensor& t) const;

  Piece* piece_;
  const Inside* inside_;
  std::int64_t count_, index_, ranks_;
  bool of_sequence_;
  std::vector<TensorId> parts_;  // by whole tensor
};

// Replaces a region's ops by `by`. Other ops between those of the region move in front of `by`, or behind it if they
// read what the region writes.
void replace(Block& block, const Piece& piece, const std::vector<std::size_t>& region, const std::vector<Op>& by);

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
