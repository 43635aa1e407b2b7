#include "traces/packing/documents_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"

namespace orrery {
namespace {

constexpr std::size_t kMostLineShown = 60;

class DocumentLines {
 public:
  explicit DocumentLines(const std::string& file) : file_(file) {}

  void read(std::string_view line) {
    ++line_;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.is_object())
      fail(line.empty() ? "an empty line" : fmt::format("\"{}\"", one_line(line, kMostLineShown)),
           "a document as a JSON object: {\"tokens\": 812}");
    const nlohmann::json *id = nullptr, *tokens = nullptr, *embedding = nullptr;
    for (const auto& [key, value] : object.items())
      (key == "id" ? id : key == "tokens" ? tokens : key == "embedding" ? embedding : unknown(key)) = &value;
    if (tokens == nullptr) fail("no \"tokens\"", "the number of tokens of the document");
    if (!tokens->is_number_integer() ||
        (tokens->is_number_unsigned() && tokens->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
      fail(fmt::format("{} in \"tokens\"", describe(*tokens)), "a whole number");
    documents_.append(tokens->get<std::int64_t>(), here());
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
  [[noreturn]] const nlohmann::json*& unknown(const std::string& key) const {
    constexpr std::string_view kKnown[] = {"id", "tokens", "embedding"};
    throw InputError(here(), fmt::format("the key \"{}\"", one_line(key, kMostLineShown)), "id, tokens and embedding",
                     nearest_name(key, kKnown));
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

// Reads the header of a .npy file (numpy.lib.format): a dictionary of Python with three keys, then blanks.
struct NpyHeader {
  std::string descr, fortran_order, shape;  // as written in the file
  std::size_t begin = 0;                    // offset of the data in the file
};

class NpyHeaderReader {
 public:
  NpyHeaderReader(std::FILE* file, const std::string& path) : file_(file), path_(path) {}

  [[noreturn]] void fail(std::string found, std::string expected) const {
    throw InputError({path_, ""}, std::move(found), std::move(expected));
  }

  NpyHeader read() {
    NpyHeader header;
    header.begin = read_text();
    expect('{');
    while (!at('}')) {
      const std::string key = value();
      std::string* const field = key == "'descr'"           ? &header.descr
                                 : key == "'fortran_order'" ? &header.fortran_order
                                 : key == "'shape'"         ? &header.shape
                                                            : nullptr;
      if (field == nullptr || !field->empty())
        fail(fmt::format("the key {}{}", one_line(key, kMostLineShown), field == nullptr ? "" : " a second time"),
             "'descr', 'fortran_order' and 'shape', as numpy.save writes them");
      expect(':');
      *field = value();
      if (!at('}')) expect(',');
    }
    expect('}');
    if (rest_.find_first_not_of(kBlanks) != std::string_view::npos) fail_to_read();
    for (const auto& [name, field] :
         {std::pair("descr", &header.descr), {"fortran_order", &header.fortran_order}, {"shape", &header.shape}})
      if (field->empty()) fail(fmt::format("a header without '{}'", name), "an array as numpy.save writes it");
    return header;
  }

  // Parses "(2, 3)", "(4,)" or "()".
  std::vector<std::int64_t> sizes(const std::string& shape) {
    rest_ = shape;
    std::vector<std::int64_t> sizes;
    expect('(');
    while (!at(')')) {
      const std::string text = value();
      const std::optional<std::int64_t> size = number_of(text);
      if (!size || *size < 0) fail_to_read();
      sizes.push_back(*size);
      if (!at(')')) expect(',');
    }
    expect(')');
    if (!rest_.empty()) fail_to_read();
    return sizes;
  }

 private:
  static constexpr std::string_view kBlanks = " \n";

  // Reads the header into text_. Returns where it ends in the file.
  std::size_t read_text() {
    unsigned char start[12] = {};
    const std::size_t got = std::fread(start, 1, 10, file_);
    if (std::ferror(file_) != 0) fail(fmt::format("nothing ({})", std::strerror(errno)), "a readable .npy file");
    if (got < 10 || std::memcmp(start, "\x93NUMPY", 6) != 0)
      fail("no .npy file", "an array as numpy.save writes it, which begins with \\x93NUMPY");
    if (start[6] < 1 || start[6] > 3 || start[7] != 0)
      fail(fmt::format("version {}.{} of the format", start[6], start[7]), "1.0, 2.0 or 3.0");
    std::size_t length = start[8] + std::size_t{256} * start[9], begin = 10;
    if (start[6] > 1) {  // versions 2 and 3 have four bytes
      if (std::fread(start + 10, 1, 2, file_) < 2) fail("a header that is cut", "a whole .npy file");
      length += (std::size_t{start[10]} << 16) + (std::size_t{start[11]} << 24);
      begin = 12;
    }
    constexpr std::size_t kMostHeader = std::size_t{1} << 16;
    if (length > kMostHeader) fail(fmt::format("a header of {} bytes", length), "at most 65536");
    text_.resize(length);
    if (std::fread(text_.data(), 1, length, file_) < length) fail("a header that is cut", "a whole .npy file");
    rest_ = text_;
    return begin + length;
  }

  [[noreturn]] void fail_to_read() const {
    fail(fmt::format("\"{}\" in the header", one_line(rest_, kMostLineShown)),
         "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, as numpy.save writes it");
  }
  bool at(char c) {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
    return rest_.starts_with(c);
  }
  void expect(char c) {
    if (!at(c)) fail_to_read();
    rest_.remove_prefix(1);
  }
  // Returns the next value as written, not empty: a text with quotes, a word, a number, or a list with brackets.
  std::string value() {
    std::size_t end = 0;
    if (at('\'') || at('"')) {
      end = rest_.find(rest_.front(), 1);
    } else if (at('(')) {
      end = rest_.find(')');
    } else if (at('[')) {  // the fields of a record, which may have shapes
      end = rest_.rfind(']');
    } else {
      end = std::min(rest_.find_first_of(" \n,:;(){}[]'\""), rest_.size()) - 1;  // npos if there is nothing
    }
    if (end == std::string_view::npos) fail_to_read();
    const std::string text(rest_.substr(0, end + 1));
    rest_.remove_prefix(end + 1);
    return text;
  }

  std::FILE* file_;
  const std::string& path_;
  std::string text_;
  std::string_view rest_;
};

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
  NpyHeaderReader reader(file.get(), path);
  const NpyHeader header = reader.read();
  if (header.descr != "'<f4'")
    reader.fail(fmt::format("an array of {}", one_line(header.descr, kMostLineShown)),
                "'<f4', floats of 32 bits: array.astype('<f4')");
  if (header.fortran_order != "False")
    reader.fail("an array in column order", "an array in row order: numpy.ascontiguousarray(array)");
  const std::vector<std::int64_t> shape = reader.sizes(header.shape);
  if (shape.size() != 2 || shape[0] != documents.count() || shape[1] < 1 || shape[1] > Documents::kMostDimension)
    reader.fail(fmt::format("an array of shape ({})", fmt::join(shape, ", ")),
                fmt::format("a row for each of {} documents, of 1 to {} numbers", documents.count(),
                            Documents::kMostDimension));
  std::fseek(file.get(), 0, SEEK_END);
  const auto bytes = static_cast<std::int64_t>(std::ftell(file.get())) - static_cast<std::int64_t>(header.begin);
  const std::int64_t expected = shape[0] * shape[1] * static_cast<std::int64_t>(sizeof(float));
  if (bytes != expected)
    reader.fail(fmt::format("{} bytes of numbers", bytes), fmt::format("{} as in the header", expected));
  std::fseek(file.get(), static_cast<long>(header.begin), SEEK_SET);
  const std::span<float> numbers = documents.make_embeddings(shape[0], shape[1]);
  if (std::fread(numbers.data(), sizeof(float), numbers.size(), file.get()) < numbers.size())
    reader.fail("an array that cannot be read to its end", "a whole .npy file");
  for (std::int64_t row = 0; row < documents.count(); ++row)
    documents.normalise(row, {path, fmt::format("row {}", row)});
}

}  // namespace orrery
