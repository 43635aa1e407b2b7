#include "traces/packing/documents.h"

#include <fmt/format.h>

#include <cmath>

namespace orrery {

std::string Documents::id(std::int64_t document) const {
  if (name_ends_.empty()) return std::to_string(document);
  const auto at = static_cast<std::size_t>(document);
  const std::uint64_t begin = at == 0 ? 0 : name_ends_[at - 1];
  return names_.substr(begin, name_ends_[at] - begin);
}

void Documents::append(std::int64_t tokens, const InputError::Where& where) {
  if (tokens < 1 || tokens > kMostTokens)
    throw InputError(where, fmt::format("{} tokens", tokens), fmt::format("1 to {} tokens of a document", kMostTokens));
  if (count() == kMostDocuments)
    throw InputError(where, "another document", fmt::format("at most {} documents", kMostDocuments));
  tokens_.push_back(static_cast<std::int32_t>(tokens));
  all_tokens_ += tokens;
}

void Documents::name_last(std::string_view json) {
  names_ += json;
  name_ends_.push_back(names_.size());
}

void Documents::append_embedding(std::span<const float> numbers, const InputError::Where& where) {
  if (dimension_ == 0) {
    if (numbers.empty() || numbers.size() > static_cast<std::size_t>(kMostDimension))
      throw InputError(where, fmt::format("an embedding of {} numbers", numbers.size()),
                       fmt::format("1 to {} numbers", kMostDimension));
    dimension_ = static_cast<std::int64_t>(numbers.size());
  }
  if (numbers.size() != static_cast<std::size_t>(dimension_))
    throw InputError(where, fmt::format("an embedding of {} numbers", numbers.size()),
                     fmt::format("{}, as those before", dimension_));
  embeddings_.insert(embeddings_.end(), numbers.begin(), numbers.end());
  normalise(embeddings() - 1, where);
}

std::span<float> Documents::make_embeddings(std::int64_t rows, std::int64_t dimension) {
  dimension_ = dimension;
  embeddings_.resize(static_cast<std::size_t>(rows * dimension));
  return embeddings_;
}

void Documents::normalise(std::int64_t row, const InputError::Where& where) {
  float* const numbers = embeddings_.data() + static_cast<std::size_t>(row * dimension_);
  double squares = 0;
  for (std::int64_t k = 0; k < dimension_; ++k) squares += double{numbers[k]} * double{numbers[k]};
  if (!std::isfinite(squares) || squares == 0)
    throw InputError(where, squares == 0 ? "an embedding of zeros" : "an embedding with a number that is not finite",
                     "finite numbers, not all 0, which have a direction");
  const double scale = 1 / std::sqrt(squares);
  for (std::int64_t k = 0; k < dimension_; ++k) numbers[k] = static_cast<float>(double{numbers[k]} * scale);
}

std::int64_t Documents::embeddings() const {
  return dimension_ == 0 ? 0 : static_cast<std::int64_t>(embeddings_.size()) / dimension_;
}

}  // namespace orrery
