#include <algorithm>
#include <numeric>

#include "traces/packing/packing.h"

namespace orrery {
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
