// The documents of a training set, as packing uses them: lengths, names and embeddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

class Documents {
 public:
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;     // per document
  static constexpr std::int64_t kMostDocuments = std::int64_t{1} << 31;  // leaves room in 32-bit indices
  static constexpr std::int64_t kMostDimension = std::int64_t{1} << 16;

  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t tokens(std::int64_t document) const { return tokens_[static_cast<std::size_t>(document)]; }
  std::int64_t all_tokens() const { return all_tokens_; }
  // Returns the document's name as JSON: "a" with its quotes, 17. Documents without names are numbered from 0.
  std::string id(std::int64_t document) const;

  // Throws InputError at `where` for tokens outside 1 to kMostTokens, or too many documents.
  void append(std::int64_t tokens, const InputError::Where& where = {});
  // Names the document that was appended last. Name all documents or none. `json`: a number or a string.
  void name_last(std::string_view json);

  // Embeddings: vectors that describe a document's topic; documents on similar topics have a large cosine.
  bool have_embeddings() const { return dimension_ > 0; }
  std::int64_t dimension() const { return dimension_; }  // 0: no embeddings
  // Has unit length.
  const float* embedding(std::int64_t document) const {
    return embeddings_.data() + static_cast<std::size_t>(document * dimension_);
  }
  // Sets the embedding of the first document without one. Throws InputError at `where` for another dimension than
  // before, a value that is not a finite number, or only zeros.
  void append_embedding(std::span<const float> numbers, const InputError::Where& where = {});
  // Allocates `rows` embeddings of `dimension`, which the caller fills and then passes to normalise() row by row. Use
  // it instead of append_embedding for very many embeddings (about a GB).
  std::span<float> make_embeddings(std::int64_t rows, std::int64_t dimension);
  void normalise(std::int64_t row, const InputError::Where& where = {});
  std::int64_t embeddings() const;  // number of embeddings

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t all_tokens_ = 0;
  std::string names_;                     // concatenated
  std::vector<std::uint64_t> name_ends_;  // end of each name in names_
  std::int64_t dimension_ = 0;
  std::vector<float> embeddings_;  // [document * dimension]
};

// Reads documents from lines of JSON, and their embeddings from NumPy arrays (docs/pack.md has the formats).

// Parses {"id": "a", "tokens": 812, "embedding": [0.1, -0.3]}; all lines or none have `id`, and likewise `embedding`.
// Throws InputError with file and line.
Documents parse_documents(std::string_view text, const std::string& file);
// "-" is standard input.
Documents read_documents(const std::string& path);

// Adds embeddings to documents without any, from a .npy file: little-endian 32-bit floats in C order, one row each.
// Throws InputError with the file for another type or shape, a size unlike the header's, or a row without direction.
void read_embeddings(const std::string& path, Documents& documents);

}  // namespace orrery
