#include "traces/packing/documents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"

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

namespace {

constexpr std::size_t kMostLineShown = 60;

class DocumentLines {
 public:
  explicit DocumentLines(const std::string& file) : file_(file) {}

  void read(std::string_view line) {
    ++line_;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object())
      fail(line.empty() ? "an empty line" : fmt::format("\"{}\"", one_line(line, kMostLineShown)),
           "a document as a JSON object: {\"tokens\": 812}");
    JsonReader reader(object, {fmt::format("{}: line {}", file_, line_), ""});
    std::int64_t tokens = 0;
    reader.field("tokens", tokens, IntegerRange{1, Documents::kMostTokens}, "");
    const nlohmann::json *id = reader.take("id"), *embedding = reader.take("embedding");
    reader.finish();
    if (tokens == 0) reader.fail("tokens", "the number of tokens of the document");
    documents_.append(tokens, here());
    all_or_none(id != nullptr, has_ids_, "id");
    all_or_none(embedding != nullptr, has_embeddings_, "embedding");
    if (id != nullptr) {
      if (!id->is_string() && !id->is_number_integer())
        fail(fmt::format("{} in \"id\"", describe(*id)), "a string or a whole number");
      documents_.name_last(json_text(*id));
    }
    if (embedding != nullptr) append_embedding(*embedding);
  }

  Documents finish() {
    if (documents_.count() == 0) throw InputError({file_, ""}, "no documents", "one or more, one per line");
    return std::move(documents_);
  }

 private:
  InputError::Where here() const { return {file_, fmt::format("line {}", line_)}; }
  [[noreturn]] void fail(std::string found, std::string expected) const {
    throw InputError(here(), std::move(found), std::move(expected));
  }
  void all_or_none(bool is_there, std::optional<bool>& before, const char* key) const {
    if (is_there != before.value_or(is_there))
      fail(fmt::format("{} \"{}\"", is_there ? "a first" : "no", key), "one in every line, or in none");
    before = is_there;
  }
  void append_embedding(const nlohmann::json& array) {
    if (!array.is_array()) fail(fmt::format("{} in \"embedding\"", describe(array)), "an array of numbers");
    numbers_.clear();
    for (const nlohmann::json& number : array) {
      if (!number.is_number()) fail(fmt::format("{} in \"embedding\"", describe(number)), "numbers");
      numbers_.push_back(number.get<float>());
    }
    documents_.append_embedding(numbers_, here());
  }

  std::string file_;
  std::int64_t line_ = 0;
  std::optional<bool> has_ids_, has_embeddings_;
  std::vector<float> numbers_;
  Documents documents_;
};

[[noreturn]] void refuse_array(const std::string& path, std::string found, std::string expected) {
  throw InputError({path, ""}, std::move(found), std::move(expected));
}

// The text of a .npy file's header (numpy.lib.format). The file is then at its numbers.
std::string npy_header(std::FILE* file, const std::string& path) {
  unsigned char start[12] = {};
  const std::size_t got = std::fread(start, 1, 10, file);
  if (std::ferror(file) != 0)
    refuse_array(path, fmt::format("nothing ({})", std::strerror(errno)), "a readable .npy file");
  if (got < 10 || std::memcmp(start, "\x93NUMPY", 6) != 0)
    refuse_array(path, "no .npy file", "an array as numpy.save writes it, which begins with \\x93NUMPY");
  if (start[6] < 1 || start[6] > 3 || start[7] != 0)
    refuse_array(path, fmt::format("version {}.{} of the format", start[6], start[7]), "1.0, 2.0 or 3.0");
  std::size_t length = start[8] + std::size_t{256} * start[9];
  if (start[6] > 1) {  // versions 2 and 3 have four bytes
    if (std::fread(start + 10, 1, 2, file) < 2) refuse_array(path, "a header that is cut", "a whole .npy file");
    length += (std::size_t{start[10]} << 16) + (std::size_t{start[11]} << 24);
  }
  constexpr std::size_t kMostHeader = std::size_t{1} << 16;
  if (length > kMostHeader) refuse_array(path, fmt::format("a header of {} bytes", length), "at most 65536");
  std::string text(length, '\0');
  if (std::fread(text.data(), 1, length, file) < length)
    refuse_array(path, "a header that is cut", "a whole .npy file");
  return text;
}

// Such a header is a dictionary of Python. Returns it as JSON: (2, 3) as [2, 3], False as false.
std::string json_of_python(const std::string& text) {
  std::string json;
  for (const char c : text) {
    if (c == '}' || c == ')' || c == ']') {  // Python allows a comma before it
      json.erase(json.find_last_not_of(" \n") + 1);
      if (json.ends_with(',')) json.pop_back();
    }
    json += c == '\'' ? '"' : c == '(' ? '[' : c == ')' ? ']' : c;
  }
  for (const char* const word : {"True", "False"})
    if (const std::size_t at = json.find(word); at != std::string::npos) json[at] = word[0] == 'T' ? 't' : 'f';
  return json;
}

}  // namespace

Documents parse_documents(std::string_view text, const std::string& file) {
  DocumentLines reader(file);
  for (std::optional<std::string_view> line; (line = next_line(text));) reader.read(*line);
  return reader.finish();
}

Documents read_documents(const std::string& path) {
  LineReader lines(path, "a readable file with one document per line");
  DocumentLines reader(lines.name());
  for (std::string line; lines.next(line);) reader.read(line);
  return reader.finish();
}

void read_embeddings(const std::string& path, Documents& documents) {
  if (documents.have_embeddings())
    throw InputError({path, ""}, "documents with embeddings of their own", "embeddings in only one of the two");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw InputError({path, ""}, fmt::format("nothing ({})", std::strerror(errno)), "a readable .npy file");
  remember_input(path);
  const nlohmann::json header = parse_json(json_of_python(npy_header(file.get(), path)), path);
  JsonReader reader(header, {path, ""});
  bool by_columns = false;
  std::vector<std::int64_t> shape;
  const std::string descr = reader.text("descr");
  reader.field("fortran_order", by_columns, "");
  reader.field("shape", shape, at_least(0), "");
  reader.finish();
  for (const char* const key : {"descr", "fortran_order", "shape"})
    if (!reader.has(key)) reader.fail(key, "'descr', 'fortran_order' and 'shape', as numpy.save writes them");
  if (descr != "<f4")
    refuse_array(path, fmt::format("an array of '{}'", one_line(descr, kMostLineShown)),
                 "'<f4', floats of 32 bits: array.astype('<f4')");
  if (by_columns)
    refuse_array(path, "an array in column order", "an array in row order: numpy.ascontiguousarray(array)");
  if (shape.size() != 2 || shape[0] != documents.count() || shape[1] < 1 || shape[1] > Documents::kMostDimension)
    refuse_array(path, fmt::format("an array of shape ({})", fmt::join(shape, ", ")),
                 fmt::format("a row for each of {} documents, of 1 to {} numbers", documents.count(),
                             Documents::kMostDimension));
  const long begin = std::ftell(file.get());
  std::fseek(file.get(), 0, SEEK_END);
  const std::int64_t bytes = std::ftell(file.get()) - begin;
  const std::int64_t expected = shape[0] * shape[1] * static_cast<std::int64_t>(sizeof(float));
  if (bytes != expected)
    refuse_array(path, fmt::format("{} bytes of numbers", bytes), fmt::format("{} as in the header", expected));
  std::fseek(file.get(), begin, SEEK_SET);
  const std::span<float> numbers = documents.make_embeddings(shape[0], shape[1]);
  if (std::fread(numbers.data(), sizeof(float), numbers.size(), file.get()) < numbers.size())
    refuse_array(path, "an array that cannot be read to its end", "a whole .npy file");
  for (std::int64_t row = 0; row < documents.count(); ++row)
    documents.normalise(row, {path, fmt::format("row {}", row)});
}

}  // namespace orrery
