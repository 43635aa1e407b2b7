// Assigns the positions of a batch's documents to ranks for attention. A document lies on the ranks of a ring, whose
// first rank is a multiple of the ring's size. It is cut into twice as many chunks as ranks; each rank has one chunk
// from the front and one from the back. A ring of one rank has the whole document.
//
//   zones   Zeppelin's two levels (arXiv 2509.21841, as others describe them: strategies/zeppelin/README.md). Documents
//           that fit on no node are divided over nodes; the others go whole to the node with the least attention. In
//           each node, documents that fit on no rank are divided over ranks; the others go whole to the rank with the
//           least attention. If a document finds no room, the longest of the undivided ones is divided next.
//   hybrid  The smallest power of two of ranks that has room for the document. The longest document is placed first,
//           each on the least loaded ring of its size (Megatron-LM, hybrid_cp_schedule.py).
//   even    All ranks, whatever the document's length.
//   flexsp  Groups of ranks that exchange heads for positions. Each group has whole documents; its ranks have equal
//           parts, one after the other. Group sizes and their documents are chosen to minimise the time of the slowest
//           group (FlexSP, PKU's Hetu-Galvatron repository, which solves a mixed-integer program). Here documents are
//           placed longest first where they cost the least within a limit of seconds, and the limit is bisected.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/layout.h"
#include "strategies/zeppelin/options.h"

namespace orrery::zeppelin {

struct PlacedDocument {
  std::int64_t begin = 0, end = 0;  // range of positions in the batch
  std::int64_t first_rank = 0;      // first rank of its ring
};

// All documents on rings of the same size.
struct Zone {
  std::int64_t ring = 1;  // ranks of each ring; with flexsp, of each group
  std::vector<PlacedDocument> documents;
  RunsOfParts of_rank;  // positions of each rank, in order
};

struct Partition {
  std::vector<Zone> zones;  // the largest rings first
  RunsOfParts at_home;      // [rank]: positions outside attention, equally many per rank
  double capacity = 1;      // most attention tokens of a rank that were allowed, over the mean
};

// The most sizes of rings that a batch uses. Beyond that, documents on the smallest rings move to the next larger ones,
// and groups that exchange do not get the smallest sizes.
inline constexpr std::size_t kMostZones = 6;

// The ranks that a batch is partitioned over.
struct Ranks {
  std::int64_t count = 1, of_node = 1;
  // Allowed sizes of rings, ascending, each a divisor of the next: 1, .. of_node, .. count.
  std::vector<std::int64_t> rings;
  std::int64_t most_exchanging = 1;  // flexsp: largest ring size with a key/value head for each rank
};
// Lists the allowed sizes of rings: a ring grows by prime factors, the smallest first, within a node and then over
// nodes. REQUIRES: of_node divides count.
Ranks ranks_of(std::int64_t count, std::int64_t of_node);

// Times of a layer's forward and backward at nominal rates, for the estimate that chooses a capacity or groups.
struct Rates {
  double seconds_per_pair = 0;  // per pair of a query and a key
  // Per key that a ring passes on, within the node and over NICs; per token that moves to another rank for attention
  // and back, within the node and over NICs.
  double seconds_per_key_in_node = 0, seconds_per_key_between = 0;
  double seconds_per_moved_in_node = 0, seconds_per_moved_between = 0;
  double seconds_per_token = 0;  // outside attention
};

// Partitions a batch. `ends`: ends of the documents in the batch, ascending. REQUIRES: the batch's length is a multiple
// of ranks.count. Throws InputError if a document fits into no group that exchanges.
Partition partition(const Options& options, std::span<const std::int64_t> ends, const Ranks& ranks, const Rates& rates);

}  // namespace orrery::zeppelin
