#include "traces/routing_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kTitle = "# routing ", kFormat = "orrery-routing";
constexpr std::size_t kMostShown = 60;
// A few characters can ask for this many steps or layers at most.
constexpr std::size_t kMostNumbers = std::size_t{1} << 22;

std::string in_quotes(std::string_view text) { return fmt::format("\"{}\"", one_line(text, kMostShown)); }

// Returns "0-99,200" for 0, 1, ... 99, 200.
std::string ranges_of(const std::vector<std::int64_t>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    fmt::format_to(std::back_inserter(text), "{}{}", text.empty() ? "" : ",", numbers[i]);
    if (end - i > 1) fmt::format_to(std::back_inserter(text), "-{}", numbers[end - 1]);
    i = end;
  }
  return text;
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
             fmt::format("{} rows; next {}", counts_->shape().rows(), place()));
      }
      read_row(next_line());
    }
    if (rest_.empty()) return;
    ++line_;
    fail(in_quotes(rest_.substr(0, rest_.find('\n'))),
         fmt::format("the end of the trace after {} rows", counts_->rows()));
  }

  // ---- where the next row belongs

  struct Place {
    std::int64_t step, layer, micro_batch, source_rank;
    bool operator==(const Place&) const = default;
  };
  Place next_place() const {
    const RoutingShape& of = counts_->shape();
    std::int64_t row = counts_->rows();
    const auto digit = [&row](std::int64_t size) { return std::exchange(row, row / size) % size; };
    const std::int64_t rank = digit(of.source_ranks), micro_batch = digit(of.micro_batches);
    const auto layer = static_cast<std::size_t>(digit(static_cast<std::int64_t>(of.layers.size())));
    return {of.steps[static_cast<std::size_t>(row)], of.layers[layer], micro_batch, rank};
  }
  std::string words(const Place& p) const {
    std::string text = fmt::format("step {}, layer {}", p.step, p.layer);
    if (counts_->shape().micro_batches > 1) text += fmt::format(", micro-batch {}", p.micro_batch);
    if (counts_->shape().source_ranks > 1) text += fmt::format(", source rank {}", p.source_rank);
    return text;
  }
  std::string place() const { return words(next_place()); }
  void append(const Place& found, std::int64_t tokens, const std::vector<std::int64_t>& of_experts) {
    if (const Place expected = next_place(); found != expected) fail(words(found), words(expected));
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
      if (name == "steps") {
        shape_.steps = read_ranges(value, name);
        continue;
      }
      if (name == "layers") {
        shape_.layers = read_ranges(value, name);
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
    std::size_t next = 0;
    Place p{values_[0], values_[1], 0, 0};
    next = 2;
    if (of.micro_batches > 1) p.micro_batch = values_[next++];
    if (of.source_ranks > 1) p.source_rank = values_[next++];
    const std::int64_t tokens = values_[next];
    values_.erase(values_.begin(), values_.begin() + static_cast<std::ptrdiff_t>(named));
    append(p, tokens, values_);
  }

  // ---- lines of JSON

  Json parse(std::string_view line) const {
    Json value = Json::parse(line, nullptr, false);
    if (value.is_discarded() || !value.is_object()) fail(in_quotes(line), "a JSON object");
    return value;
  }
  std::int64_t integer(const Json& object, const char* name, std::optional<std::int64_t> otherwise = {}) const {
    const auto found = object.find(name);
    if (found == object.end() && otherwise) return *otherwise;
    if (found == object.end()) fail(fmt::format("no \"{}\"", name), "a whole number");
    return whole_number(*found, name);
  }
  std::int64_t whole_number(const Json& value, std::string_view name) const {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
      fail(fmt::format("{} in \"{}\"", describe(value), name), "a whole number");
    return value.get<std::int64_t>();
  }
  void integers(const Json& object, const char* name, std::vector<std::int64_t>& to) const {
    to.clear();
    const auto found = object.find(name);
    if (found == object.end() || !found->is_array())
      fail(found == object.end() ? fmt::format("no \"{}\"", name) : describe(*found), "an array of whole numbers");
    for (const Json& value : *found) to.push_back(whole_number(value, name));
  }
  void only(const Json& object, std::initializer_list<std::string_view> known) const {
    for (const auto& [key, value] : object.items())
      if (std::find(known.begin(), known.end(), key) == known.end())
        throw InputError(here(), in_quotes(key), "a key of the format",
                         nearest_name(key, std::span<const std::string_view>(known.begin(), known.size())));
  }

  void read_json_shape(std::string_view line) {
    const Json object = parse(line);
    only(object, {"format", "steps", "layers", "micro_batches", "source_ranks", "experts", "top_k"});
    if (const auto format = object.find("format"); format == object.end() || *format != kFormat)
      fail(in_quotes(line), fmt::format("\"format\": \"{}\"", kFormat));
    integers(object, "steps", shape_.steps);
    integers(object, "layers", shape_.layers);
    shape_.micro_batches = integer(object, "micro_batches", 1);
    shape_.source_ranks = integer(object, "source_ranks", 1);
    shape_.experts = integer(object, "experts");
    shape_.top_k = integer(object, "top_k");
    shape_.check(here());
    counts_.emplace(std::move(shape_));
  }

  void read_json_row(std::string_view line) {
    const RoutingShape& of = counts_->shape();
    const Json object = parse(line);
    only(object, {"step", "layer", "micro_batch", "source_rank", "tokens", "counts"});
    integers(object, "counts", values_);
    const auto alone = [](std::int64_t size) { return size == 1 ? std::optional<std::int64_t>(0) : std::nullopt; };
    append({integer(object, "step"), integer(object, "layer"), integer(object, "micro_batch", alone(of.micro_batches)),
            integer(object, "source_rank", alone(of.source_ranks))},
           integer(object, "tokens"), values_);
  }

 public:
  // The columns before those of experts.
  static std::vector<std::string_view> csv_columns(const RoutingShape& of) {
    std::vector<std::string_view> columns{"step", "layer"};
    if (of.micro_batches > 1) columns.push_back("micro_batch");
    if (of.source_ranks > 1) columns.push_back("source_rank");
    columns.push_back("tokens");
    return columns;
  }

 private:
  std::string_view rest_;
  std::string file_;
  std::int64_t line_ = 0;  // the last line read, from 1
  RoutingShape shape_;     // until it is complete
  std::optional<RoutingCounts> counts_;
  std::vector<std::int64_t> values_;  // of a row
};

// Calls row(step, layer, micro-batch, source rank, tokens, counts).
template <class Row>
void for_each_row(const RoutingCounts& counts, Row row) {
  const RoutingShape& of = counts.shape();
  std::vector<std::int64_t> values(static_cast<std::size_t>(of.experts));
  for (std::size_t step = 0; step < of.steps.size(); ++step)
    for (std::size_t layer = 0; layer < of.layers.size(); ++layer)
      for (std::int64_t m = 0; m < of.micro_batches; ++m)
        for (std::int64_t rank = 0; rank < of.source_ranks; ++rank) {
          counts.read(step, layer, m, rank, values);
          row(of.steps[step], of.layers[layer], m, rank, counts.tokens(step, layer, m, rank), values);
        }
}

}  // namespace

RoutingCounts parse_routing(std::string_view text, const std::string& file) { return RoutingReader(text, file).read(); }

RoutingCounts read_routing(const std::string& path) {
  return parse_routing(read_file(path, "a readable trace of routing"), path == "-" ? "<stdin>" : path);
}

std::string routing_csv(const RoutingCounts& counts) {
  const RoutingShape& of = counts.shape();
  std::string text =
      fmt::format("{}steps={} layers={} micro_batches={} source_ranks={} top_k={}\n", kTitle, ranges_of(of.steps),
                  ranges_of(of.layers), of.micro_batches, of.source_ranks, of.top_k);
  for (const std::string_view column : RoutingReader::csv_columns(of))
    fmt::format_to(std::back_inserter(text), "{},", column);
  for (std::int64_t e = 0; e < of.experts; ++e)
    fmt::format_to(std::back_inserter(text), "{}expert_{}", e == 0 ? "" : ",", e);
  text += '\n';
  for_each_row(counts, [&](std::int64_t step, std::int64_t layer, std::int64_t micro_batch, std::int64_t rank,
                           std::int64_t tokens, const std::vector<std::int64_t>& values) {
    auto to = std::back_inserter(text);
    fmt::format_to(to, "{},{},", step, layer);
    if (of.micro_batches > 1) fmt::format_to(to, "{},", micro_batch);
    if (of.source_ranks > 1) fmt::format_to(to, "{},", rank);
    fmt::format_to(to, "{}", tokens);
    for (const std::int64_t count : values) fmt::format_to(to, ",{}", count);
    text += '\n';
  });
  return text;
}

std::string routing_json_lines(const RoutingCounts& counts) {
  const RoutingShape& of = counts.shape();
  std::string text = Json{{"format", kFormat},
                          {"steps", of.steps},
                          {"layers", of.layers},
                          {"micro_batches", of.micro_batches},
                          {"source_ranks", of.source_ranks},
                          {"experts", of.experts},
                          {"top_k", of.top_k}}
                         .dump() +
                     '\n';
  for_each_row(counts, [&](std::int64_t step, std::int64_t layer, std::int64_t micro_batch, std::int64_t rank,
                           std::int64_t tokens, const std::vector<std::int64_t>& values) {
    Json row{{"step", step}, {"layer", layer}, {"tokens", tokens}, {"counts", values}};
    if (of.micro_batches > 1) row["micro_batch"] = micro_batch;
    if (of.source_ranks > 1) row["source_rank"] = rank;
    text += row.dump() + '\n';
  });
  return text;
}

}  // namespace orrery
