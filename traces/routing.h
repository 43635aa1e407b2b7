// Recorded routing: how many tokens of each source rank went to each expert, by step, layer and micro-batch. These are
// the routers' choices, before a capacity drops tokens or a balancer moves them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

// The rows of a trace: one for each micro-batch of each source rank, at each layer of each step, in this order.
struct RoutingShape {
  std::vector<std::int64_t> steps;   // iterations of the training, ascending
  std::vector<std::int64_t> layers;  // layers with experts, as the model numbers its layers, ascending
  std::int64_t micro_batches = 1;
  std::int64_t source_ranks = 1;  // also 1 if counts are those of all ranks together
  std::int64_t experts = 1;       // routed experts of a layer, without shared ones
  std::int64_t top_k = 1;         // different experts per token

  // Throws InputError at `where` for a shape without rows, numbers out of order, or more chosen experts than there are.
  void check(const InputError::Where& where = {}) const;
  std::int64_t rows() const;  // REQUIRES: check() holds
  bool operator==(const RoutingShape&) const = default;
};

// Tokens of one layer at one step: [source_rank * experts + expert].
struct RoutingMatrix {
  std::int64_t source_ranks = 0, experts = 0;
  std::vector<std::int64_t> tokens;

  std::int64_t at(std::int64_t source_rank, std::int64_t expert) const {
    return tokens[static_cast<std::size_t>(source_rank * experts + expert)];
  }
  std::vector<std::int64_t> by_expert() const;
  std::int64_t total() const;
};

// Routing counts of 64 bits, stored in as few bytes as each needs: 1 below 128, 2 below 16,384, ... Steps and layers
// are given by their index in the shape.
class RoutingCounts {
 public:
  // Throws as RoutingShape::check does.
  explicit RoutingCounts(RoutingShape shape);

  const RoutingShape& shape() const { return shape_; }
  // Appends the next row, in the order of steps, layers, micro-batches, source ranks. Throws InputError at `where`:
  // another number of experts, negative counts, an expert with more tokens than the row, a sum other than top_k per
  // token.
  void append(std::int64_t tokens, std::span<const std::int64_t> of_experts, const InputError::Where& where = {});
  std::int64_t rows() const { return static_cast<std::int64_t>(ends_.size()); }
  bool complete() const { return rows() == shape_.rows(); }

  // REQUIRES: the rows have been appended.
  RoutingMatrix matrix(std::size_t step, std::size_t layer, std::int64_t micro_batch) const;
  RoutingMatrix matrix(std::size_t step, std::size_t layer) const;  // all micro-batches together

  bool operator==(const RoutingCounts&) const = default;

 private:
  std::int64_t row_of(std::size_t step, std::size_t layer, std::int64_t micro_batch, std::int64_t source_rank) const;
  void add_row(std::int64_t row, std::span<std::int64_t> to) const;

  RoutingShape shape_;
  std::vector<std::uint8_t> bytes_;
  std::vector<std::size_t> ends_;  // end of each row in bytes_
};

// Returns the largest over the mean: 1 if all are equal; 0 if there are none or only zeros.
double max_over_mean(std::span<const std::int64_t> loads);
double max_over_mean(std::span<const double> loads);

// Files of routing counts: CSV and lines of JSON (docs/traces.md has the format).

// Parses either format, told by the first character ('{': JSON). Throws InputError with file and line: missing,
// repeated or misplaced rows, counts that are no routing (RoutingCounts::append), a last line that is cut.
RoutingCounts parse_routing(std::string_view text, const std::string& file);
// "-" is standard input.
RoutingCounts read_routing(const std::string& path);

}  // namespace orrery
