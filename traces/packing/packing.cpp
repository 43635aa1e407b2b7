#include "traces/packing/packing.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

namespace orrery {
namespace {

constexpr std::int64_t kMostSequences = std::int64_t{1} << 31;

using Bin = std::uint32_t;  // a sequence, while it is filled

// Finds the sequence with the least room that is enough. It is a tree over all capacities with 64 branches (the segment
// tree of Ding et al. 2024, section 3.2), with a list of sequences for each capacity.
class BinsByRoom {
 public:
  explicit BinsByRoom(std::int64_t context) : first_(static_cast<std::size_t>(context) + 1, kNone) {
    std::size_t words = first_.size();
    do {
      words = (words + 63) / 64;
      levels_.emplace_back(words);
    } while (words > 1);
  }

  void insert(Bin bin, std::int64_t room) {
    if (next_.size() <= bin) next_.resize(std::size_t{bin} + 1, kNone);
    auto at = static_cast<std::size_t>(room);
    next_[bin] = std::exchange(first_[at], bin);
    for (auto& level : levels_) {
      level[at / 64] |= std::uint64_t{1} << at % 64;
      at /= 64;
    }
  }

  // Removes and returns the sequence with the least room of at least `needed`; kNone if there is none.
  Bin take(std::int64_t needed, std::int64_t& room) {
    auto at = static_cast<std::size_t>(needed);
    std::size_t height = 0;
    for (;; ++height) {  // up, until a later branch has something
      if (height == levels_.size() || at / 64 >= levels_[height].size()) return kNone;
      const std::uint64_t later = levels_[height][at / 64] & (~std::uint64_t{0} << at % 64);
      if (later != 0) {
        at = at / 64 * 64 + static_cast<std::size_t>(std::countr_zero(later));
        break;
      }
      at = at / 64 + 1;
    }
    for (; height > 0; --height) at = at * 64 + static_cast<std::size_t>(std::countr_zero(levels_[height - 1][at]));
    room = static_cast<std::int64_t>(at);
    const Bin bin = first_[at];
    first_[at] = next_[bin];
    for (std::size_t level = 0;
         level < levels_.size() && (level == 0 ? first_[at] == kNone : levels_[level - 1][at] == 0); ++level) {
      levels_[level][at / 64] &= ~(std::uint64_t{1} << at % 64);
      at /= 64;
    }
    return bin;
  }

  static constexpr Bin kNone = std::numeric_limits<Bin>::max();

 private:
  std::vector<Bin> first_, next_;                   // by room; by sequence
  std::vector<std::vector<std::uint64_t>> levels_;  // bits: the branch is not empty; the widest level first
};

// Finds the first sequence with enough room. It is a tree of the most room in each half.
class BinsInOrder {
 public:
  explicit BinsInOrder(std::size_t most_bins, std::int64_t context)
      : leaves_(std::bit_ceil(most_bins)), most_room_(2 * leaves_, static_cast<std::int32_t>(context)) {}

  // There always is one, as all sequences are empty at first.
  Bin take(std::int32_t needed) {
    std::size_t at = 1;
    while (at < leaves_) at = 2 * at + (most_room_[2 * at] >= needed ? 0 : 1);
    const auto bin = static_cast<Bin>(at - leaves_);
    most_room_[at] -= needed;
    while ((at /= 2) > 0) most_room_[at] = std::max(most_room_[2 * at], most_room_[2 * at + 1]);
    return bin;
  }

 private:
  std::size_t leaves_;
  std::vector<std::int32_t> most_room_;
};

// Appends sequences, each with its pieces in order.
void append_bins(const std::vector<DocumentPart>& pieces, const std::vector<Bin>& bins, std::size_t count,
                 Packing& packing) {
  const std::size_t before = packing.pieces.size(), sequences = packing.ends.size();
  packing.ends.resize(sequences + count);
  const std::span<std::size_t> ends = std::span(packing.ends).subspan(sequences);
  for (const Bin bin : bins) ++ends[bin];
  std::size_t begin = before;
  for (std::size_t& end : ends) begin += std::exchange(end, begin);
  packing.pieces.resize(before + pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) packing.pieces[ends[bins[i]]++] = pieces[i];
}

// Returns the beginnings of documents, up to the context's length.
std::vector<DocumentPart> beginnings(const Documents& documents, std::int64_t context) {
  std::vector<DocumentPart> pieces;
  pieces.reserve(static_cast<std::size_t>(documents.count()));
  for (std::int64_t d = 0; d < documents.count(); ++d)
    pieces.push_back({static_cast<std::uint32_t>(d), 0,
                      static_cast<std::int32_t>(std::min<std::int64_t>(documents.tokens(d), context))});
  return pieces;
}

void concatenate(const Documents& documents, Packing& packing) {
  std::int64_t room = packing.context;
  for (std::int64_t d = 0; d < documents.count(); ++d)
    for (std::int64_t first = 0; first < documents.tokens(d);) {
      const std::int64_t tokens = std::min(documents.tokens(d) - first, room);
      packing.pieces.push_back(
          {static_cast<std::uint32_t>(d), static_cast<std::int32_t>(first), static_cast<std::int32_t>(tokens)});
      first += tokens;
      room -= tokens;
      if (room > 0) continue;
      packing.ends.push_back(packing.pieces.size());
      room = packing.context;
    }
  if (room < packing.context) packing.ends.push_back(packing.pieces.size());
}

void pack_first_fit(std::vector<DocumentPart> pieces, Packing& packing) {
  sort_longest_first(pieces);
  BinsInOrder bins(pieces.size(), packing.context);
  std::vector<Bin> of_pieces;
  of_pieces.reserve(pieces.size());
  std::size_t count = 0;
  for (const DocumentPart& piece : pieces) {
    of_pieces.push_back(bins.take(piece.tokens));
    count = std::max<std::size_t>(count, of_pieces.back() + std::size_t{1});
  }
  append_bins(pieces, of_pieces, count, packing);
}

// Memory that packing takes per piece. The piece is stored twice, in the order of documents and in that of sequences.
// Its sequence's number and its place in a list are stored too.
constexpr double kBytesOfPiece = 2 * sizeof(DocumentPart) + 2 * sizeof(Bin) + sizeof(std::size_t);

[[noreturn]] void refuse_memory(std::int64_t pieces, const Documents& documents, const PackingOptions& options) {
  constexpr double kGiB = 1 << 30;
  throw InputError({"", "/context"},
                   fmt::format("{}, for {} tokens: {} pieces, which need about {:.1f} GiB", options.context,
                               documents.all_tokens(), pieces, static_cast<double>(pieces) * kBytesOfPiece / kGiB),
                   "a longer context, or more memory");
}

// Returns an upper bound on the number of pieces.
std::int64_t most_pieces(const Documents& documents, const PackingOptions& options) {
  const bool cuts = options.policy == PackingPolicy::concat || options.policy == PackingPolicy::best_fit ||
                    options.policy == PackingPolicy::datasculpt;
  return documents.count() + (cuts ? documents.all_tokens() / options.context : 0);
}

void check(const Documents& documents, const PackingOptions& options) {
  const std::int64_t context = options.context;
  if (context < 1 || context > PackingOptions::kMostContext)
    throw InputError({"", "/context"}, std::to_string(context),
                     fmt::format("1 to {} tokens", PackingOptions::kMostContext));
  if (documents.count() == 0) throw InputError({}, "no documents", "one or more");
  if (documents.all_tokens() / context + documents.count() > kMostSequences)
    throw InputError({"", "/context"}, fmt::format("{}, for {} tokens", context, documents.all_tokens()),
                     fmt::format("a context with which at most {} pieces are made", kMostSequences));
  // Checked here, as a system that overcommits memory does not refuse now but kills some process later.
  const std::int64_t pieces = most_pieces(documents, options);
  const double memory = static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
  if (static_cast<double>(pieces) * kBytesOfPiece > memory) refuse_memory(pieces, documents, options);
  if (options.policy == PackingPolicy::datasculpt && documents.embeddings() != documents.count())
    throw InputError({"", "/policy"}, "datasculpt for documents without embeddings",
                     "an embedding of each document, or another policy");
}

Packing packed(const Documents& documents, const PackingOptions& options) {
  Packing packing{.context = options.context, .pieces = {}, .ends = {}};
  switch (options.policy) {
    case PackingPolicy::pad:
      packing.pieces = beginnings(documents, options.context);
      packing.ends.resize(packing.pieces.size());
      std::iota(packing.ends.begin(), packing.ends.end(), std::size_t{1});
      break;
    case PackingPolicy::concat:
      concatenate(documents, packing);
      break;
    case PackingPolicy::first_fit_decreasing:
      pack_first_fit(beginnings(documents, options.context), packing);
      break;
    case PackingPolicy::best_fit_decreasing:
      append_best_fit(beginnings(documents, options.context), packing);
      break;
    case PackingPolicy::best_fit: {
      std::vector<DocumentPart> pieces;
      pieces.reserve(static_cast<std::size_t>(documents.count()));
      for (std::int64_t d = 0; d < documents.count(); ++d) append_pieces(documents, d, options.context, pieces);
      append_best_fit(std::move(pieces), packing);
      break;
    }
    case PackingPolicy::datasculpt:
      pack_datasculpt(documents, options, packing);
      break;
  }
  return packing;
}

}  // namespace

void sort_longest_first(std::vector<DocumentPart>& pieces) {
  std::sort(pieces.begin(), pieces.end(), [](const DocumentPart& a, const DocumentPart& b) {
    if (a.tokens != b.tokens) return a.tokens > b.tokens;
    return a.document != b.document ? a.document < b.document : a.first < b.first;
  });
}

void append_pieces(const Documents& documents, std::int64_t document, std::int64_t context,
                   std::vector<DocumentPart>& pieces) {
  const std::int64_t all = documents.tokens(document);
  for (std::int64_t first = 0; first < all; first += context)
    pieces.push_back({static_cast<std::uint32_t>(document), static_cast<std::int32_t>(first),
                      static_cast<std::int32_t>(std::min(context, all - first))});
}

void append_best_fit(std::vector<DocumentPart> pieces, Packing& packing) {
  sort_longest_first(pieces);
  BinsByRoom bins(packing.context);
  std::vector<Bin> of_pieces;
  of_pieces.reserve(pieces.size());
  Bin count = 0;
  for (const DocumentPart& piece : pieces) {
    std::int64_t room = packing.context;
    Bin bin = bins.take(piece.tokens, room);
    if (bin == BinsByRoom::kNone) bin = count++;
    if (room > piece.tokens) bins.insert(bin, room - piece.tokens);
    of_pieces.push_back(bin);
  }
  append_bins(pieces, of_pieces, count, packing);
}

Packing pack(const Documents& documents, const PackingOptions& options) {
  check(documents, options);
  try {
    return packed(documents, options);
  } catch (const std::bad_alloc&) {
    refuse_memory(most_pieces(documents, options), documents, options);
  }
}

namespace {

// The mean cosine between unit vectors, from the length of their sum: |sum|^2 = n + n (n - 1) mean.
double mean_cosine(const Documents& documents, std::span<const DocumentPart> pieces, std::vector<double>& sum) {
  std::fill(sum.begin(), sum.end(), 0.0);
  for (const DocumentPart& piece : pieces) {
    const float* e = documents.embedding(piece.document);
    for (std::size_t k = 0; k < sum.size(); ++k) sum[k] += double{e[k]};
  }
  const double squares = std::inner_product(sum.begin(), sum.end(), sum.begin(), 0.0);
  const auto n = static_cast<double>(pieces.size());
  return (squares - n) / (n * (n - 1));
}

}  // namespace

double PackingMeasures::truncated_share() const {
  return documents == 0 ? 0 : static_cast<double>(truncated) / static_cast<double>(documents);
}
double PackingMeasures::padding_share() const {
  const std::int64_t all = document_tokens - dropped_tokens + padding_tokens;
  return all == 0 ? 0 : static_cast<double>(padding_tokens) / static_cast<double>(all);
}

PackingMeasures measures(const Documents& documents, const Packing& packing) {
  PackingMeasures m;
  m.documents = documents.count();
  m.sequences = packing.sequences();
  m.document_tokens = documents.all_tokens();
  const auto context = static_cast<double>(packing.context);
  std::int64_t packed = 0, whole = 0, similar_sequences = 0;
  double shares = 0, similarities = 0;
  std::vector<double> sum(static_cast<std::size_t>(documents.dimension()));
  const bool has_embeddings = documents.have_embeddings() && documents.embeddings() == documents.count();
  for (std::int64_t s = 0; s < m.sequences; ++s) {
    const std::span<const DocumentPart> pieces = packing.sequence(s);
    double squares = 0;
    for (const DocumentPart& piece : pieces) {
      packed += piece.tokens;
      whole += piece.tokens == documents.tokens(piece.document) ? 1 : 0;
      squares += static_cast<double>(piece.tokens) * static_cast<double>(piece.tokens);
    }
    m.most_pieces = std::max(m.most_pieces, static_cast<std::int64_t>(pieces.size()));
    const double share = squares / (context * context);
    shares += share;
    m.largest_attention_share = std::max(m.largest_attention_share, share);
    if (!has_embeddings || pieces.size() < 2) continue;
    similarities += mean_cosine(documents, pieces, sum);
    ++similar_sequences;
  }
  m.dropped_tokens = m.document_tokens - packed;
  m.truncated = m.documents - whole;
  m.padding_tokens = m.sequences * packing.context - packed;
  if (m.sequences > 0) {
    m.pieces = static_cast<double>(packing.pieces.size()) / static_cast<double>(m.sequences);
    m.attention_share = shares / static_cast<double>(m.sequences);
  }
  m.has_similarity = similar_sequences > 0;
  if (m.has_similarity) m.similarity = similarities / static_cast<double>(similar_sequences);
  return m;
}

}  // namespace orrery
