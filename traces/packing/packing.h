// Packs documents into training sequences of one length, by several policies.
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

// A contiguous part of a document in a sequence.
struct DocumentPart {
  std::uint32_t document = 0;
  std::int32_t first = 0, tokens = 0;  // of the document's tokens
  bool operator==(const DocumentPart&) const = default;
};

// Sequences of at most `context` tokens; the rest of a sequence is padding.
struct Packing {
  std::int64_t context = 0;
  std::vector<DocumentPart> pieces;  // sequence by sequence, each in order
  std::vector<std::size_t> ends;     // end of each sequence in `pieces`

  std::int64_t sequences() const { return static_cast<std::int64_t>(ends.size()); }
  std::span<const DocumentPart> sequence(std::int64_t s) const {
    const auto at = static_cast<std::size_t>(s);
    const std::size_t begin = at == 0 ? 0 : ends[at - 1];
    return {pieces.data() + begin, ends[at] - begin};
  }
  bool operator==(const Packing&) const = default;
};

enum class PackingPolicy : std::uint8_t {
  pad,     // one document per sequence; tokens beyond the context are dropped
  concat,  // all documents concatenated, cut every `context` tokens
  // Longest first, each into the first sequence with room. Tokens beyond the context are dropped.
  first_fit_decreasing,
  best_fit_decreasing,  // the same, into the sequence with the least room that is enough
  // The same, but documents beyond the context are cut into pieces, and no token is dropped (Ding et al. 2024, arXiv
  // 2404.10830).
  best_fit,
  datasculpt,  // pack_datasculpt
};
inline constexpr std::array<std::string_view, 6> kPackingPolicyNames{
    "pad", "concat", "first_fit_decreasing", "best_fit_decreasing", "best_fit", "datasculpt"};

// DataSculpt's parameters (Lu et al. 2024, arXiv 2409.00997), with the defaults of its code.
struct DataSculptOptions {
  // A document joins the nearest cluster if its centre is nearer than this (cosine), else founds one. Centres that are
  // nearer to each other than this are merged.
  double delta = 0.5;
  // Clustering ends when centres have moved by less than this (mean of 1 - cosine) ...
  double epsilon = 0.5;
  // ... or after this many iterations (T).
  std::int64_t iterations = 5;
  std::uint64_t seed = 1;
};

struct PackingOptions {
  static constexpr std::int64_t kMostContext = std::int64_t{1} << 24;

  std::int64_t context = 0;  // tokens per sequence
  PackingPolicy policy = PackingPolicy::best_fit;
  DataSculptOptions datasculpt = {};
  // Called now and then with the stage and the fraction done: "clustering", 0.25.
  std::function<void(std::string_view, double)> progress = {};
};

// Returns the same packing for the same documents and options. Throws InputError for no documents, a context outside 1
// to kMostContext, datasculpt without an embedding for each document, more than 2^31 sequences, or more pieces than
// memory holds.
Packing pack(const Documents& documents, const PackingOptions& options);

// Packs pieces, none longer than the context, into new sequences after the existing ones, best-fit decreasing.
// O(n log n + n log context).
void append_best_fit(std::vector<DocumentPart> pieces, Packing& packing);

// Sorts by tokens; pieces of the same length in the order of documents.
void sort_longest_first(std::vector<DocumentPart>& pieces);

// Cuts a document into pieces of `context` tokens and a shorter last one.
void append_pieces(const Documents& documents, std::int64_t document, std::int64_t context,
                   std::vector<DocumentPart>& pieces);

// Statistics of a packing.
struct PackingMeasures {
  std::int64_t documents = 0, sequences = 0;
  std::int64_t document_tokens = 0;  // before packing
  std::int64_t dropped_tokens = 0;   // in no sequence
  std::int64_t truncated = 0;        // documents that do not lie whole in one sequence
  std::int64_t padding_tokens = 0;
  std::int64_t most_pieces = 0;  // in one sequence
  double pieces = 0;             // mean per sequence
  bool has_similarity = false;   // there are embeddings, and sequences with several pieces
  // Mean cosine of two pieces of a sequence, averaged over sequences with two or more pieces.
  double similarity = 0;
  // sum l^2 / context^2, mean over sequences: attention's work within documents, over that of the whole causal mask.
  double attention_share = 0;
  double largest_attention_share = 0;  // of one sequence

  double truncated_share() const;
  double padding_share() const;
};
PackingMeasures measures(const Documents& documents, const Packing& packing);

// DataSculpt packs documents on the same topic into one sequence (Lu et al. 2024, arXiv 2409.00997). It clusters
// documents coarsely. It then distributes the documents of a cluster over its sequences, longest first, each to the
// sequence with the largest product of cosine to the sequence's mean and room left. Reconstructed from the published
// code; docs/pack.md lists the differences.

// Returns the cluster of each document, numbered from 0 without gaps. With kMostClusters clusters, further documents
// join the nearest one whatever the distance. Centres are computed on a sample of kMostSampled documents (all, if
// fewer); then each document joins its nearest centre, or founds a cluster. REQUIRES: an embedding of each document.
inline constexpr std::size_t kMostClusters = 1024, kMostSampled = 16384;
std::vector<std::uint32_t> cluster(const Documents& documents, const DataSculptOptions& options,
                                   const std::function<void(std::string_view, double)>& progress = {});

// REQUIRES: as pack().
void pack_datasculpt(const Documents& documents, const PackingOptions& options, Packing& packing);

// Inner products of many rows with many others:
// products[i * (rows of b) + j] = the inner product of row i of `a` and row j of `b`. Rows have `depth` elements (at
// least 1) and are contiguous. The order of summation is the same on all machines with the same instructions (x86-64).
void inner_products(std::span<const float> a, std::span<const float> b, std::size_t depth,
                    std::vector<float>& products);

// Inner product of two rows.
float inner_product(const float* a, const float* b, std::size_t depth);

}  // namespace orrery
