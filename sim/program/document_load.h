// Sequences packed from documents of unequal length. Attention stays within a document: the causal mask consists of
// blocks along the diagonal (FlashAttention's cu_seqlens, Megatron-LM's reset_attention_mask). Document loads do not
// change the tensors' sizes. The cost of attention follows from the documents' boundaries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

// The sequences of the global batch, ordered by replica, then micro-batch, then place in the micro-batch.
struct PackedSequences {
  std::int64_t length = 0;            // positions of each sequence
  std::vector<std::int64_t> ends;     // by document: its end in its sequence; a sequence's last one is `length`
  std::vector<std::size_t> behind;    // by sequence: index behind its last document in `ends`
  std::int64_t padded_positions = 0;  // of all; a sequence's unused rest counts as a document

  std::int64_t count() const { return static_cast<std::int64_t>(behind.size()); }
  // The ends of the sequence's documents, ascending, none empty.
  std::span<const std::int64_t> ends_of(std::int64_t sequence) const {
    const auto s = static_cast<std::size_t>(sequence);
    const std::size_t first = s == 0 ? 0 : behind[s - 1];
    return std::span(ends).subspan(first, behind[s] - first);
  }
};

// The documents that the micro-batches of one class attend to (Op::documents). Costs are those of their mean.
struct DocumentLoad {
  std::int64_t micro_batches = 0;
  // By replica, ordered by the coordinates of the data-parallel digits: its sequences in all these micro-batches. If
  // replicas wait for each other in each micro-batch, those that wait are sorted by their work in each one: entry i
  // then holds the sequences of the replica with the i-th most work, which may be a different replica each time.
  std::vector<std::vector<std::int64_t>> sequences;
  std::int64_t slowest_replica = 0;  // for which the others wait at the step's end; equal in all classes
};

// Calls visit(begin, end) for each document of a sequence.
template <class Visit>
void for_each_document(std::span<const std::int64_t> ends, Visit&& visit) {
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    visit(begin, end);
    begin = end;
  }
}

// The work of causal attention over a sequence: pairs of a query and a key, counted as in AttendedPairs::counted.
inline double whole_pairs(std::span<const std::int64_t> ends) {
  double pairs = 0;
  for_each_document(ends, [&](std::int64_t begin, std::int64_t end) {
    pairs += static_cast<double>(end - begin) * static_cast<double>(end - begin) / 2;
  });
  return pairs;
}

}  // namespace orrery
