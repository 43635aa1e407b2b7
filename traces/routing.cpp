#include "traces/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

namespace orrery {
namespace {

// No training has more. Sums over a row stay below 2^63.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40, kMostExperts = std::int64_t{1} << 20,
                       kMostRows = std::int64_t{1} << 40;

void check_ascending(const std::vector<std::int64_t>& numbers, std::string_view name, const InputError::Where& where) {
  if (numbers.empty()) throw InputError(where, fmt::format("no {}", name), "at least one");
  if (numbers.front() < 0)
    throw InputError(where, fmt::format("{} {}", name, numbers.front()), "numbers of at least 0");
  for (std::size_t i = 1; i < numbers.size(); ++i)
    if (numbers[i] <= numbers[i - 1])
      throw InputError(where, fmt::format("{} {} after {}", name, numbers[i], numbers[i - 1]), "ascending numbers");
}

template <class T>
double largest_over_mean(std::span<const T> loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  if (sum <= 0) return 0;
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) * static_cast<double>(loads.size()) / sum;
}

}  // namespace

void RoutingShape::check(const InputError::Where& where) const {
  check_ascending(steps, "step", where);
  check_ascending(layers, "layer", where);
  const auto in_range = [&](std::int64_t value, std::int64_t least, std::int64_t most, std::string_view name) {
    if (value < least || value > most)
      throw InputError(where, fmt::format("{} {}", value, name), fmt::format("{} to {}", least, most));
  };
  in_range(micro_batches, 1, kMostRows, "micro_batches");
  in_range(source_ranks, 1, kMostRows, "source_ranks");
  in_range(experts, 1, kMostExperts, "experts");
  if (top_k < 1 || top_k > experts)
    throw InputError(where, fmt::format("top_k {}", top_k), fmt::format("1 to the {} experts", experts));
  std::int64_t all = 1;
  for (const std::int64_t n : {static_cast<std::int64_t>(steps.size()), static_cast<std::int64_t>(layers.size()),
                               micro_batches, source_ranks}) {
    if (n > kMostRows / all)
      throw InputError(where,
                       fmt::format("{} steps of {} layers, {} micro-batches and {} source ranks", steps.size(),
                                   layers.size(), micro_batches, source_ranks),
                       fmt::format("at most {} rows", kMostRows));
    all *= n;
  }
}

std::int64_t RoutingShape::rows() const {
  return static_cast<std::int64_t>(steps.size() * layers.size()) * micro_batches * source_ranks;
}

std::int64_t RoutingMatrix::of_expert(std::int64_t expert) const {
  std::int64_t sum = 0;
  for (std::int64_t rank = 0; rank < source_ranks; ++rank) sum += at(rank, expert);
  return sum;
}

std::vector<std::int64_t> RoutingMatrix::by_expert() const {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(experts));
  for (std::size_t i = 0; i < tokens.size(); ++i) sums[i % sums.size()] += tokens[i];
  return sums;
}

std::int64_t RoutingMatrix::total() const { return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}); }

RoutingCounts::RoutingCounts(RoutingShape shape) : shape_(std::move(shape)) { shape_.check(); }

void RoutingCounts::append(std::int64_t tokens, std::span<const std::int64_t> of_experts,
                           const InputError::Where& where) {
  if (complete()) throw InputError(where, "another row", fmt::format("the {} rows of the trace's shape", rows()));
  if (static_cast<std::int64_t>(of_experts.size()) != shape_.experts)
    throw InputError(where, fmt::format("counts of {} experts", of_experts.size()),
                     fmt::format("counts of {} experts", shape_.experts));
  if (tokens < 0 || tokens > kMostTokens)
    throw InputError(where, fmt::format("{} tokens", tokens), fmt::format("0 to {}", kMostTokens));
  std::int64_t sum = 0;
  for (std::size_t e = 0; e < of_experts.size(); ++e) {
    if (of_experts[e] < 0 || of_experts[e] > tokens)
      throw InputError(where, fmt::format("{} tokens for expert {}", of_experts[e], e),
                       fmt::format("0 to {}, the tokens that are routed", tokens));
    sum += of_experts[e];
  }
  if (sum != tokens * shape_.top_k)
    throw InputError(where, fmt::format("counts that add up to {}", sum),
                     fmt::format("{}, {} for each of {} tokens", tokens * shape_.top_k, shape_.top_k, tokens));
  for (const std::int64_t count : of_experts) {
    auto rest = static_cast<std::uint64_t>(count);
    for (; rest >= 0x80; rest >>= 7)
      bytes_.push_back(static_cast<std::uint8_t>(rest | 0x80));  // 7 bits a byte (LEB128)
    bytes_.push_back(static_cast<std::uint8_t>(rest));
  }
  ends_.push_back(bytes_.size());
}

std::int64_t RoutingCounts::row_of(std::size_t step, std::size_t layer, std::int64_t micro_batch,
                                   std::int64_t source_rank) const {
  const auto place = static_cast<std::int64_t>(step * shape_.layers.size() + layer);
  return (place * shape_.micro_batches + micro_batch) * shape_.source_ranks + source_rank;
}

void RoutingCounts::add_row(std::int64_t row, std::span<std::int64_t> to) const {
  const std::uint8_t* next = bytes_.data() + (row == 0 ? 0 : ends_[static_cast<std::size_t>(row) - 1]);
  for (std::int64_t& sum : to) {
    std::uint64_t count = 0;
    int shift = 0;
    for (; (*next & 0x80) != 0; ++next, shift += 7) count |= static_cast<std::uint64_t>(*next & 0x7f) << shift;
    count |= static_cast<std::uint64_t>(*next++) << shift;
    sum += static_cast<std::int64_t>(count);
  }
}

void RoutingCounts::read(std::size_t step, std::size_t layer, std::int64_t micro_batch, std::int64_t source_rank,
                         std::span<std::int64_t> of_experts) const {
  std::fill(of_experts.begin(), of_experts.end(), 0);
  add_row(row_of(step, layer, micro_batch, source_rank), of_experts);
}

std::int64_t RoutingCounts::tokens(std::size_t step, std::size_t layer, std::int64_t micro_batch,
                                   std::int64_t source_rank) const {
  std::vector<std::int64_t> of_experts(static_cast<std::size_t>(shape_.experts));
  read(step, layer, micro_batch, source_rank, of_experts);
  return std::accumulate(of_experts.begin(), of_experts.end(), std::int64_t{0}) / shape_.top_k;
}

RoutingMatrix RoutingCounts::matrix(std::size_t step, std::size_t layer, std::int64_t micro_batch) const {
  RoutingMatrix all{shape_.source_ranks, shape_.experts, {}};
  const auto experts = static_cast<std::size_t>(shape_.experts);
  all.tokens.resize(static_cast<std::size_t>(shape_.source_ranks) * experts);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(shape_.source_ranks); ++rank)
    add_row(row_of(step, layer, micro_batch, static_cast<std::int64_t>(rank)),
            std::span(all.tokens).subspan(rank * experts, experts));
  return all;
}

RoutingMatrix RoutingCounts::matrix(std::size_t step, std::size_t layer) const {
  RoutingMatrix all = matrix(step, layer, 0);
  for (std::int64_t m = 1; m < shape_.micro_batches; ++m) {
    const RoutingMatrix one = matrix(step, layer, m);
    for (std::size_t i = 0; i < one.tokens.size(); ++i) all.tokens[i] += one.tokens[i];
  }
  return all;
}

double max_over_mean(std::span<const std::int64_t> loads) { return largest_over_mean(loads); }
double max_over_mean(std::span<const double> loads) { return largest_over_mean(loads); }

}  // namespace orrery
