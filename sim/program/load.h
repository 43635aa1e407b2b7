// Unequal work of ranks and of sequences.
//
// A load describes unequal work: how many rows each rank of a group receives from each rank of the group, relative to
// the mean. Rows are tokens that go from ranks to experts (routing), positions that go from one layout to another
// (documents), or gradients that go from one copy of an expert to the next. Tensors that follow a load have the sizes
// of the rank with the most rows. All groups over the same digits of the mesh have the same load. An op whose group is
// only a part of the load's group moves the rows between its own members (loads_within).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/mesh.h"

namespace orrery {

// What a row is: a token that goes to an expert and back, a position that goes from one layout to another, or a number
// of an expert's gradient that goes to a rank with a copy of the expert (Reduction::copies).
enum class RowsOf : std::uint8_t { tokens, positions, gradients };

struct Load {
  RowsOf of = RowsOf::tokens;
  MeshGroup group{};         // the ranks that exchange rows
  std::int64_t ranks = 1;    // ranks of the group
  std::vector<double> rows;  // [sending rank * ranks + receiving rank]; 1: as in an equal exchange of the whole tensor
  // Rows of the busiest rank over the mean of ranks, and of the busiest expert over the mean of experts. Each counts
  // the rows from all source ranks together.
  double busiest_rank = 1, busiest_expert = 1;
  double dropped = 0;  // share of all rows that find no slot
  // True: every source rank has equally many slots for each expert, enough for the most rows that any rank has for any
  // expert. They are busiest_rank times the mean, and all of them are sent and computed.
  bool padded = false;
  // Number of layers with this load; if micro-batches differ, the sum of these numbers over the step's micro-batches.
  std::int64_t layers = 0;

  double at(std::int64_t from, std::int64_t to) const { return rows[static_cast<std::size_t>(from * ranks + to)]; }
  // Returns the rows that `rank` receives in all, over the mean of ranks.
  double of_rank(std::int64_t rank) const {
    double sum = 0;
    for (std::int64_t from = 0; from < ranks; ++from) sum += at(from, rank);
    return sum / static_cast<double>(ranks);
  }
};

// Returns the load of a group that consists of the ranks at these places of `load`'s group. Each rank sends what it
// sends to these ranks there; rows to other ranks are left out. `group` of the result is not set.
Load load_of_places(const Load& load, std::span<const std::int64_t> places);
// Returns the load within each of the groups into which the digits `group` cut the load's group, in their order.
// REQUIRES: load.group contains `group`.
std::vector<Load> loads_within(const Load& load, const Mesh& mesh, MeshGroup group);

// Sequences packed from documents of unequal length. Attention stays within a document: the causal mask consists of
// blocks along the diagonal (FlashAttention's cu_seqlens, Megatron-LM's reset_attention_mask). Document loads do not
// change the tensors' sizes. The cost of attention follows from the documents' boundaries.

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
