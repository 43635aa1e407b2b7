#include "traces/routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"

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

namespace {

using Json = nlohmann::json;

constexpr std::string_view kTitle = "# routing ", kFormat = "orrery-routing";
constexpr std::size_t kMostShown = 60;
// A few characters can ask for this many steps or layers at most.
constexpr std::size_t kMostNumbers = std::size_t{1} << 22;

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", one_line(text, kMostShown)); }

// What says where a row belongs. Rows omit micro-batch and source rank if there is only one.
using RowPosition = std::array<std::int64_t, 4>;
constexpr std::array<const char*, 4> kPlaces{"step", "layer", "micro_batch", "source_rank"},
    kPlaceWords{"step", "layer", "micro-batch", "source rank"};

bool has_place(const RoutingShape& of, std::size_t i) {
  return i < 2 || (i == 2 ? of.micro_batches : of.source_ranks) > 1;
}

RowPosition place_of(const RoutingShape& of, std::int64_t row) {
  const auto digit = [&row](std::int64_t size) { return std::exchange(row, row / size) % size; };
  const std::int64_t rank = digit(of.source_ranks), micro_batch = digit(of.micro_batches),
                     layer = digit(static_cast<std::int64_t>(of.layers.size()));
  return {of.steps[static_cast<std::size_t>(row)], of.layers[static_cast<std::size_t>(layer)], micro_batch, rank};
}

// The columns before those of experts.
std::vector<std::string_view> csv_columns(const RoutingShape& of) {
  std::vector<std::string_view> columns;
  for (std::size_t i = 0; i < kPlaces.size(); ++i)
    if (has_place(of, i)) columns.push_back(kPlaces[i]);
  columns.push_back("tokens");
  return columns;
}

class RoutingReader {
 public:
  RoutingReader(std::string_view text, const std::string& file) : rest_(text), file_(file) {}

  RoutingCounts read() {
    if (rest_.starts_with('{')) {
      read_json_shape(next_line());
      read_rows([this](std::string_view line) { read_json_row(line); });
    } else {
      read_csv_title(next_line());
      read_csv_columns(next_line());
      read_rows([this](std::string_view line) { read_csv_row(line); });
    }
    return std::move(*counts_);
  }

 private:
  InputError::Where here() const { return {file_, fmt::format("line {}", line_)}; }
  [[noreturn]] void fail(std::string found, std::string expected) const {
    throw InputError(here(), std::move(found), std::move(expected));
  }

  std::string_view next_line() {
    ++line_;
    if (rest_.empty()) fail("the end of the file", line_ == 1 ? "a trace of routing" : "the rest of the trace");
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos)
      fail(fmt::format("{} without an end of line", in_quotes(rest_)), "a whole line: the trace is truncated");
    std::string_view line = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  }

  template <class ReadRow>
  void read_rows(ReadRow read_row) {
    while (!counts_->complete()) {
      if (rest_.empty()) {
        ++line_;
        fail(fmt::format("the end of the trace after {} rows", counts_->rows()),
             fmt::format("{} rows; next {}", counts_->shape().rows(), words(next_place())));
      }
      read_row(next_line());
    }
    if (rest_.empty()) return;
    ++line_;
    fail(in_quotes(rest_.substr(0, rest_.find('\n'))),
         fmt::format("the end of the trace after {} rows", counts_->rows()));
  }

  // ---- where the next row belongs

  RowPosition next_place() const { return place_of(counts_->shape(), counts_->rows()); }
  std::string words(const RowPosition& p) const {
    std::string text;
    for (std::size_t i = 0; i < p.size(); ++i)
      if (has_place(counts_->shape(), i)) text += fmt::format("{}{} {}", i == 0 ? "" : ", ", kPlaceWords[i], p[i]);
    return text;
  }
  void append(const RowPosition& found, std::int64_t tokens, const std::vector<std::int64_t>& of_experts) {
    if (const RowPosition expected = next_place(); found != expected) fail(words(found), words(expected));
    counts_->append(tokens, of_experts, here());
  }

  // ---- CSV

  std::vector<std::int64_t> read_ranges(std::string_view text, std::string_view name) const {
    std::vector<std::int64_t> numbers;
    for (const std::string_view range : split(text, ',')) {
      const std::size_t dash = range.find('-');
      const auto first = number_of(range.substr(0, dash)),
                 last = dash == std::string_view::npos ? first : number_of(range.substr(dash + 1));
      if (!first || !last || *first < 0 || *last < *first)
        fail(fmt::format("{}={}", name, one_line(text, kMostShown)), "numbers and ranges: 0-99,200");
      if (static_cast<std::uint64_t>(*last - *first) >= kMostNumbers - numbers.size())
        fail(fmt::format("{}={}", name, one_line(text, kMostShown)), fmt::format("at most {} numbers", kMostNumbers));
      for (std::int64_t n = *first; n < *last; ++n) numbers.push_back(n);
      numbers.push_back(*last);  // outside the loop, as `n <= *last` never ends for the largest number
    }
    return numbers;
  }

  void read_csv_title(std::string_view line) {
    if (!line.starts_with(kTitle)) fail(in_quotes(line), "\"# routing steps=.. layers=.. top_k=..\", or a JSON line");
    bool has_top_k = false;
    for (const std::string_view word : split(line.substr(kTitle.size()), ' ')) {
      const std::size_t equals = word.find('=');
      const std::string_view name = word.substr(0, equals),
                             value = equals == std::string_view::npos ? "" : word.substr(equals + 1);
      if (name == "steps" || name == "layers") {
        (name == "steps" ? shape_.steps : shape_.layers) = read_ranges(value, name);
        continue;
      }
      std::int64_t* const field = name == "top_k"           ? &shape_.top_k
                                  : name == "micro_batches" ? &shape_.micro_batches
                                  : name == "source_ranks"  ? &shape_.source_ranks
                                                            : nullptr;
      const auto number = number_of(value);
      if (field == nullptr || !number)
        fail(in_quotes(word), "steps, layers, micro_batches, source_ranks and top_k, as name=value");
      *field = *number;
      has_top_k = has_top_k || field == &shape_.top_k;
    }
    if (!has_top_k) fail(in_quotes(line), "top_k=.., the experts of a token");
  }

  void read_csv_columns(std::string_view line) {
    const std::vector<std::string_view> columns = split(line, ',');
    const auto named = csv_columns(shape_);
    shape_.experts = static_cast<std::int64_t>(columns.size()) - static_cast<std::int64_t>(named.size());
    for (std::size_t i = 0; i < std::max(columns.size(), named.size() + 1); ++i) {
      const std::string expected =
          i < named.size() ? std::string(named[i]) : fmt::format("expert_{}", i - named.size());
      if (i >= columns.size() || columns[i] != expected)
        fail(i < columns.size() ? in_quotes(columns[i]) : "the end of the line",
             fmt::format("the column {}", expected));
    }
    shape_.check(here());
    counts_.emplace(std::move(shape_));
  }

  void read_csv_row(std::string_view line) {
    const RoutingShape& of = counts_->shape();
    values_.clear();
    for (const std::string_view cell : split(line, ',')) {
      const auto number = number_of(cell);
      if (!number) fail(in_quotes(cell), "a whole number");
      values_.push_back(*number);
    }
    const std::size_t named = csv_columns(of).size(), columns = named + static_cast<std::size_t>(of.experts);
    if (values_.size() != columns) fail(fmt::format("{} columns", values_.size()), fmt::format("{}", columns));
    RowPosition p{};
    std::size_t next = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
      if (has_place(of, i)) p[i] = values_[next++];
    const std::int64_t tokens = values_[next];
    values_.erase(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(named));
    append(p, tokens, values_);
  }

  // ---- lines of JSON

  // Calls read(reader) for the object in a line. Errors point into it, behind the line's number.
  template <class Read>
  void read_object(std::string_view line, std::initializer_list<const char*> needed, Read read) const {
    const Json object = Json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.is_object()) fail(in_quotes(line), "a JSON object");
    JsonReader reader(object, {fmt::format("{}: line {}", file_, line_), ""});
    read(reader);
    reader.finish();
    for (const char* const key : needed)
      if (!reader.has(key)) reader.fail(key, "a value");
  }

  void read_json_shape(std::string_view line) {
    read_object(line, {"steps", "layers", "experts", "top_k"}, [&](JsonReader& reader) {
      std::string format;
      reader.field("format", format, "");
      if (format != kFormat) fail(in_quotes(line), fmt::format("\"format\": \"{}\"", kFormat));
      reader.field("steps", shape_.steps, at_least(0), "");
      reader.field("layers", shape_.layers, at_least(0), "");
      reader.field("micro_batches", shape_.micro_batches, at_least(1), "");
      reader.field("source_ranks", shape_.source_ranks, at_least(1), "");
      reader.field("experts", shape_.experts, at_least(1), "");
      reader.field("top_k", shape_.top_k, at_least(1), "");
    });
    shape_.check(here());
    counts_.emplace(std::move(shape_));
  }

  void read_json_row(std::string_view line) {
    RowPosition place{};
    std::int64_t tokens = 0;
    const auto needed = [&](std::size_t i) { return has_place(counts_->shape(), i) ? kPlaces[i] : "tokens"; };
    read_object(line, {needed(0), needed(1), needed(2), needed(3), "tokens", "counts"}, [&](JsonReader& reader) {
      for (std::size_t i = 0; i < place.size(); ++i) reader.field(kPlaces[i], place[i], at_least(0), "");
      reader.field("tokens", tokens, at_least(0), "");
      reader.field("counts", values_, at_least(0), "");
    });
    append(place, tokens, values_);
  }

  std::string_view rest_;
  std::string file_;
  std::int64_t line_ = 0;  // the last line read, from 1
  RoutingShape shape_;     // until it is complete
  std::optional<RoutingCounts> counts_;
  std::vector<std::int64_t> values_;  // of a row
};

}  // namespace

RoutingCounts parse_routing(std::string_view text, const std::string& file) { return RoutingReader(text, file).read(); }

RoutingCounts read_routing(const std::string& path) {
  return parse_routing(read_file(path, "a readable trace of routing"), path == "-" ? "<stdin>" : path);
}

}  // namespace orrery
