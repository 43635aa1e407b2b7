// Sequences that are packed from documents of unequal length, which attention does not leave: a causal mask in blocks
// along the diagonal (FlashAttention's cu_seqlens, Megatron-LM's reset_attention_mask). Facts beside the tensors, whose
// sizes they leave as they are: what attention takes follows from the boundaries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// The sequences of the global batch, in the order of replicas, their micro-batches, and the sequences of each.
struct PackedSequences {
  std::int64_t length = 0;            // positions of each
  std::vector<std::int64_t> ends;     // of documents, in their sequence; the last of each sequence is `length`
  std::vector<std::size_t> behind;    // of each sequence, behind its documents in `ends`
  std::int64_t padded_positions = 0;  // of all: the rest of a sequence is a document of its own

  std::int64_t count() const { return static_cast<std::int64_t>(behind.size()); }
  // Ascending, without empty documents.
  std::span<const std::int64_t> ends_of(std::int64_t sequence) const {
    const auto s = static_cast<std::size_t>(sequence);
    const std::size_t first = s == 0 ? 0 : behind[s - 1];
    return std::span(ends).subspan(first, behind[s] - first);
  }
};

// What the micro-batches of a class attend to (Op::documents): costs are those of their mean.
struct DocumentLoad {
  std::int64_t micro_batches = 0;
  // Of each replica, ordered as the coordinates of the data-parallel digits: its sequences in all these micro-batches.
  // Where replicas wait for each other in each micro-batch, those that wait are in the order of their work, and have
  // what the first, the second .. of them has in each: it may be another one each time.
  std::vector<std::vector<std::int64_t>> sequences;
  std::int64_t slowest_replica = 0;  // for which the others wait in the end, of all classes the same
};

// Of a sequence's documents: visit(begin, end).
template <class Visit>
void for_each_document(std::span<const std::int64_t> ends, Visit&& visit) {
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    visit(begin, end);
    begin = end;
  }
}

// The work of attention over a sequence with its causal mask: pairs of a query and a key, as AttendedPairs::counted.
inline double whole_pairs(std::span<const std::int64_t> ends) {
  double pairs = 0;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    pairs += static_cast<double>(end - begin) * static_cast<double>(end - begin) / 2;
  });
  return pairs;
}

}  // namespace orrery
