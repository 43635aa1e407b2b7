// The documents of a training set, as packing sees them: lengths, names, and what they are about.
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
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;     // of one
  static constexpr std::int64_t kMostDocuments = std::int64_t{1} << 31;  // that 32 bits number with some to spare
  static constexpr std::int64_t kMostDimension = std::int64_t{1} << 16;

  std::int64_t count() const { return static_cast<std::int64_t>(tokens_.size()); }
  std::int32_t tokens(std::int64_t document) const { return tokens_[static_cast<std::size_t>(document)]; }
  std::int64_t all_tokens() const { return all_tokens_; }
  // As JSON: "a" with its quotes, 17. Documents without one are numbered from 0.
  std::string id(std::int64_t document) const;

  // Throws InputError at `where`: tokens outside 1 to kMostTokens, too many documents.
  void append(std::int64_t tokens, const InputError::Where& where = {});
  // Of the document that was appended last; once for each or for none. `json`: a number or a string.
  void name_last(std::string_view json);

  // Numbers that say what a document is about; near documents have a large cosine.
  bool have_embeddings() const { return dimension_ > 0; }
  std::int64_t dimension() const { return dimension_; }  // 0: there are none
  // Of unit length.
  const float* embedding(std::int64_t document) const {
    return embeddings_.data() + static_cast<std::size_t>(document * dimension_);
  }
  // Of the next document without one. Throws InputError at `where`: another width than that of those before, a number
  // that is none, only zeros.
  void append_embedding(std::span<const float> numbers, const InputError::Where& where = {});
  // Room for `rows` embeddings of `dimension`, which the caller fills and then hands to normalise() row by row. In
  // place of append_embedding, where there are as many as a GB.
  std::span<float> make_embeddings(std::int64_t rows, std::int64_t dimension);
  void normalise(std::int64_t row, const InputError::Where& where = {});
  std::int64_t embeddings() const;  // how many there are

 private:
  std::vector<std::int32_t> tokens_;
  std::int64_t all_tokens_ = 0;
  std::string names_;                     // one after the other
  std::vector<std::uint64_t> name_ends_;  // in names_
  std::int64_t dimension_ = 0;
  std::vector<float> embeddings_;  // [document * dimension]
};

}  // namespace orrery
