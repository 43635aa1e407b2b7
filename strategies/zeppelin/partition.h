// Which ranks have which positions of a batch's documents while they attend. A document lies on the ranks of a ring,
// aligned to its size, in twice as many chunks as ranks, of which each has one from the front and one from the back; a
// ring of one rank has it whole.
//
//   zones   Zeppelin's two levels (arXiv 2509.21841, as others describe them: strategies/zeppelin/README.md): documents
//           that no node has room for go over nodes, others whole to the node with the least attention; there those
//           that no rank has room for go over ranks, others whole to the rank with the least. What finds no room makes
//           the longest of the others the next to be cut.
//   hybrid  the least power of two of ranks that have room for it; the longest first, to the least loaded of such rings
//           (Megatron-LM, hybrid_cp_schedule.py).
//   even    all ranks, whatever its length.
//   flexsp  groups of ranks that exchange heads for positions. Each has whole documents, of which its ranks have equal
//           parts, one behind the other; sizes of groups and what is in them are such that the slowest takes the least
//           (FlexSP, PKU's Hetu-Galvatron repository: a mixed-integer program there; here documents go, the longest
//           first, where they cost the least within a limit of seconds, and the limit is bisected).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/layout.h"
#include "strategies/zeppelin/options.h"

namespace orrery::zeppelin {

struct PlacedDocument {
  std::int64_t begin = 0, end = 0;  // positions of the batch
  std::int64_t first_rank = 0;      // of its ring
};

// All documents whose rings have as many ranks.
struct Zone {
  std::int64_t ring = 1;  // ranks of each: of flexsp, of a group
  std::vector<PlacedDocument> documents;
  RunsOfParts of_rank;  // its positions, in their order
};

struct Partition {
  std::vector<Zone> zones;  // the largest rings first
  RunsOfParts at_home;      // [rank]: outside attention, where every rank has as many
  double capacity = 1;      // tokens of a rank over the mean
};

// Of a batch: so many sizes of rings at the most. Beyond, documents on the smallest rings go to the next larger ones,
// and there are no groups that exchange of the smallest.
inline constexpr std::size_t kMostZones = 6;

// What is partitioned over.
struct Ranks {
  std::int64_t count = 1, of_node = 1;
  // That a ring may have, ascending, each a divisor of the next: 1, .. of_node, .. count.
  std::vector<std::int64_t> rings;
  std::int64_t most_exchanging = 1;  // of these the largest whose ranks have a key/value head each; of flexsp
};
// Rings are made larger by prime factors, the smallest first: of a node, then of nodes. REQUIRES: of_node divides
// count.
Ranks ranks_of(std::int64_t count, std::int64_t of_node);

// Of a layer's forward and backward at nominal rates, for the estimate that chooses a capacity or groups.
struct Rates {
  double seconds_per_pair = 0;  // of a query and a key
  // That a ring passes on, to a rank of the node and over NICs; that a rank gives another one for attention and gets
  // back.
  double seconds_per_key_in_node = 0, seconds_per_key_between = 0;
  double seconds_per_moved_in_node = 0, seconds_per_moved_between = 0;
  double seconds_per_token = 0;  // outside attention
};

// `ends`: of the documents in the batch, ascending. REQUIRES: a batch of a multiple of ranks.count. Throws InputError
// for groups that exchange where none has room.
Partition partition(const Options& options, std::span<const std::int64_t> ends, const Ranks& ranks, const Rates& rates);

}  // namespace orrery::zeppelin
