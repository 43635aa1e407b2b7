// Documents packed into training sequences of one length, by several policies.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "traces/packing/documents.h"

namespace orrery {

// Part of a document that lies in one piece in a sequence.
struct PackedPiece {
  std::uint32_t document = 0;
  std::int32_t first = 0, tokens = 0;  // of the document's
  bool operator==(const PackedPiece&) const = default;
};

// Sequences of at most `context` tokens; what is left of one is padding.
struct Packing {
  std::int64_t context = 0;
  std::vector<PackedPiece> pieces;  // sequence by sequence, in each as they lie
  std::vector<std::size_t> ends;    // of each sequence, in `pieces`

  std::int64_t sequences() const { return static_cast<std::int64_t>(ends.size()); }
  std::span<const PackedPiece> sequence(std::int64_t s) const {
    const auto at = static_cast<std::size_t>(s);
    const std::size_t begin = at == 0 ? 0 : ends[at - 1];
    return {pieces.data() + begin, ends[at] - begin};
  }
  bool operator==(const Packing&) const = default;
};

enum class PackingPolicy : std::uint8_t {
  pad,                   // a document a sequence; what is beyond the context is dropped
  concat,                // all documents in a row, cut every `context` tokens
  first_fit_decreasing,  // the longest first, each into the first sequence with room; what is beyond is dropped
  best_fit_decreasing,   // into the sequence with the least room that is enough
  best_fit,              // the same, but what is beyond the context is cut into pieces, and none dropped (Ding et al.
                         // 2024, arXiv 2404.10830)
  datasculpt,            // traces/packing/datasculpt.h
};
inline constexpr std::array<std::string_view, 6> kPackingPolicyNames{
    "pad", "concat", "first_fit_decreasing", "best_fit_decreasing", "best_fit", "datasculpt"};

// DataSculpt's parameters (Lu et al. 2024, arXiv 2409.00997), with the defaults of its code.
struct DataSculptOptions {
  double delta = 0.5;           // a document joins the nearest cluster whose centre is nearer than this (cosine), else
                                // founds one; centres that are nearer to each other are one
  double epsilon = 0.5;         // clustering ends where centres have moved by less (1 - cosine, in the mean)
  std::int64_t iterations = 5;  // or after so many: T
  std::uint64_t seed = 1;
};

struct PackingOptions {
  static constexpr std::int64_t kMostContext = std::int64_t{1} << 24;

  std::int64_t context = 0;  // tokens of a sequence
  PackingPolicy policy = PackingPolicy::best_fit;
  DataSculptOptions datasculpt = {};
  // Called now and then with what is done of what: "clustering", 0.25.
  std::function<void(std::string_view, double)> progress = {};
};

// The same for the same documents and options. Throws InputError: no documents, a context outside 1 to kMostContext,
// datasculpt without an embedding for each document, more sequences than 2^31, more pieces than memory holds.
Packing pack(const Documents& documents, const PackingOptions& options);

// Packs pieces, none longer than the context, best-fit decreasing, behind the sequences that there are.
// O(n log n + n log context).
void append_best_fit(std::vector<PackedPiece> pieces, Packing& packing);

// By tokens; those of the same length in the order of documents.
void sort_longest_first(std::vector<PackedPiece>& pieces);

// A document in pieces of `context` tokens and a rest.
void append_pieces(const Documents& documents, std::int64_t document, std::int64_t context,
                   std::vector<PackedPiece>& pieces);

// What a packing is like.
struct PackingMeasures {
  std::int64_t documents = 0, sequences = 0;
  std::int64_t document_tokens = 0;  // before packing
  std::int64_t dropped_tokens = 0;   // in no sequence
  std::int64_t truncated = 0;        // documents that are not whole in one sequence
  std::int64_t padding_tokens = 0;
  std::int64_t most_pieces = 0;        // of a sequence
  double pieces = 0;                   // of a sequence, in the mean
  bool has_similarity = false;         // embeddings, and sequences with several pieces
  double similarity = 0;               // mean cosine of two pieces of a sequence; mean over sequences with two or more
  double attention_share = 0;          // sum l^2 / context^2, mean over sequences: the work of attention within
                                       // documents, over that of the causal mask of the whole sequence
  double largest_attention_share = 0;  // of a sequence

  double truncated_share() const;
  double padding_share() const;
};
PackingMeasures measures(const Documents& documents, const Packing& packing);

}  // namespace orrery
