// Generates synthetic documents: lengths drawn from published histograms or log-normals, embeddings around topics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "traces/packing/documents.h"

namespace orrery {

// A bin of lengths from `least` to below `most`, with a share of all documents.
struct LengthBin {
  enum class Shape : std::uint8_t {
    log_uniform,
    power,       // least + (most - least) u^p with uniform u and p = a
    log_normal,  // ln tokens is normal with mean a and standard deviation b, truncated to the bin
  };
  double least = 1, most = 1, share = 1;
  Shape shape = Shape::log_uniform;
  double a = 0, b = 0;

  double mean() const;
};
// A distribution of lengths: one of lengths.json by its name (docs/pack.md), or "log-normal:MU:SIGMA".
struct LengthDistribution {
  std::vector<LengthBin> bins;  // shares add up to 1

  double mean() const;
};
std::vector<std::string> length_distribution_names();  // also names of published mixtures
// Parses a mixture: "web-en", "web-en=3,code=1", "log-normal:6:1.2". Shares are of tokens, or of documents if
// `by_documents`. A published mixture's name stands for its shares. Returns the bins of all parts. Throws InputError.
LengthDistribution length_distribution(std::string_view text, bool by_documents);

struct DocumentGenerator {
  std::int64_t count = 1;
  std::string lengths = "web-en";
  bool by_documents = false;   // mixtures: shares are of documents, not of tokens
  std::int64_t dimension = 0;  // of embeddings; 0: no embeddings
  std::int64_t topics = 256;   // directions around which embeddings lie, equally often
  double similarity = 0.8;     // approximate cosine of an embedding and its topic
  std::uint64_t seed = 1;

  static constexpr std::int64_t kMostTopics = std::int64_t{1} << 16;
};
// Returns the same documents for a seed; the first ones do not depend on the count. Throws InputError.
Documents generate_documents(const DocumentGenerator& generator);

}  // namespace orrery
