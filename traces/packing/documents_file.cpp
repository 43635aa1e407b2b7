#include "traces/packing/documents_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"

namespace orrery {
namespace {

constexpr std::size_t kMostLineShown = 60;

class DocumentLines {
 public:
  explicit DocumentLines(const std::string& file) : file_(file) {}

  void read(const std::string& line) {
    ++line_;
    const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
    if (object.is_discarded() || !object.is_object())
      fail(line.empty() ? "an empty line" : fmt::format("\"{}\"", one_line(line, kMostLineShown)),
           "a document as a JSON object: {\"tokens\": 812}");
    const nlohmann::json *id = nullptr, *tokens = nullptr, *embedding = nullptr;
    for (const auto& [key, value] : object.items())
      (key == "id" ? id : key == "tokens" ? tokens : key == "embedding" ? embedding : unknown(key)) = &value;
    if (tokens == nullptr) fail("no \"tokens\"", "how many tokens the document has");
    if (!tokens->is_number_integer() ||
        (tokens->is_number_unsigned() && tokens->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)))
      fail(fmt::format("{} in \"tokens\"", describe(*tokens)), "a whole number");
    documents_.append(tokens->get<std::int64_t>(), here());
    all_or_none(id != nullptr, has_ids_, "id");
    all_or_none(embedding != nullptr, has_embeddings_, "embedding");
    if (id != nullptr) {
      if (!id->is_string() && !id->is_number_integer())
        fail(fmt::format("{} in \"id\"", describe(*id)), "a string or a whole number");
      documents_.name_last(id->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    if (embedding != nullptr) append_embedding(*embedding);
  }

  Documents finish() {
    if (documents_.count() == 0) throw InputError({file_, ""}, "no documents", "one or more, a line each");
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

// The header of a .npy file (numpy.lib.format): a dictionary of Python with three keys.
struct NpyHeader {
  std::string text, file;
  std::size_t begin = 0;  // of the data, in the file

  [[noreturn]] void fail(std::string found, std::string expected) const {
    throw InputError({file, ""}, std::move(found), std::move(expected));
  }
  // What follows a key, up to where it ends.
  std::string value(const char* key, std::string_view ends) const {
    const std::size_t at = text.find(fmt::format("'{}':", key));
    if (at == std::string::npos) fail(fmt::format("a header without '{}'", key), "an array as numpy.save writes it");
    const std::size_t first = text.find_first_not_of(' ', text.find(':', at) + 1);
    if (first == std::string::npos) fail("a header that is cut", "an array as numpy.save writes it");
    return text.substr(first, text.find_first_of(ends, first) - first);
  }
  std::vector<std::int64_t> shape() const {
    const std::string words = value("shape", ")");
    std::vector<std::int64_t> sizes;
    for (const char *at = words.data(), *const end = at + words.size(); at < end;) {
      std::int64_t size = 0;
      const auto [next, error] = std::from_chars(at, end, size);
      if (error == std::errc()) sizes.push_back(size);
      at = error == std::errc() ? next : at + 1;
    }
    return sizes;
  }
};

NpyHeader read_header(std::FILE* file, const std::string& path) {
  NpyHeader header{.text = {}, .file = path};
  unsigned char start[12] = {};
  const std::size_t got = std::fread(start, 1, 10, file);
  if (got < 10 || std::memcmp(start, "\x93NUMPY", 6) != 0)
    header.fail("no .npy file", "an array as numpy.save writes it, which begins with \\x93NUMPY");
  std::size_t length = start[8] + std::size_t{256} * start[9];
  header.begin = 10;
  if (start[6] > 1) {  // versions 2 and 3 have four bytes
    if (std::fread(start + 10, 1, 2, file) < 2) header.fail("a header that is cut", "a whole .npy file");
    length += (std::size_t{start[10]} << 16) + (std::size_t{start[11]} << 24);
    header.begin = 12;
  }
  constexpr std::size_t kMostHeader = std::size_t{1} << 16;
  if (length > kMostHeader) header.fail(fmt::format("a header of {} bytes", length), "at most 65536");
  header.text.resize(length);
  if (std::fread(header.text.data(), 1, length, file) < length)
    header.fail("a header that is cut", "a whole .npy file");
  header.begin += length;
  return header;
}

}  // namespace

Documents parse_documents(std::istream& lines, const std::string& file) {
  DocumentLines reader(file);
  for (std::string line; std::getline(lines, line);) {
    if (line.ends_with('\r')) line.pop_back();
    reader.read(line);
  }
  return reader.finish();
}

Documents read_documents(const std::string& path) {
  if (path == "-") return parse_documents(std::cin, "<stdin>");
  std::ifstream lines(path);
  if (lines) lines.peek();  // of a folder there is nothing to read
  if (!lines && !lines.eof())
    throw InputError({path, ""}, fmt::format("nothing ({})", std::strerror(errno)), "a readable file of documents");
  remember_input(path);
  return parse_documents(lines, path);
}

void read_embeddings(const std::string& path, Documents& documents) {
  if (documents.have_embeddings())
    throw InputError({path, ""}, "documents with embeddings of their own", "embeddings in one of the two");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw InputError({path, ""}, fmt::format("nothing ({})", std::strerror(errno)), "a readable .npy file");
  remember_input(path);
  const NpyHeader header = read_header(file.get(), path);
  if (const std::string type = header.value("descr", ","); type != "'<f4'")
    header.fail(fmt::format("an array of {}", one_line(type, kMostLineShown)),
                "'<f4', floats of 32 bits: array.astype('<f4')");
  if (header.value("fortran_order", ",}") != "False")
    header.fail("columns one after the other", "rows one after the other: numpy.ascontiguousarray(array)");
  const std::vector<std::int64_t> shape = header.shape();
  if (shape.size() != 2 || shape[0] != documents.count() || shape[1] < 1 || shape[1] > Documents::kMostDimension)
    header.fail(fmt::format("an array of shape ({})", fmt::join(shape, ", ")),
                fmt::format("a row for each of {} documents, of 1 to {} numbers", documents.count(),
                            Documents::kMostDimension));
  std::fseek(file.get(), 0, SEEK_END);
  const auto bytes = static_cast<std::int64_t>(std::ftell(file.get())) - static_cast<std::int64_t>(header.begin);
  const std::int64_t expected = shape[0] * shape[1] * static_cast<std::int64_t>(sizeof(float));
  if (bytes != expected)
    header.fail(fmt::format("{} bytes of numbers", bytes), fmt::format("{}, which the header says", expected));
  std::fseek(file.get(), static_cast<long>(header.begin), SEEK_SET);
  const std::span<float> numbers = documents.make_embeddings(shape[0], shape[1]);
  if (std::fread(numbers.data(), sizeof(float), numbers.size(), file.get()) < numbers.size())
    header.fail("an array that cannot be read to its end", "a whole .npy file");
  for (std::int64_t row = 0; row < documents.count(); ++row)
    documents.normalise(row, {path, fmt::format("row {}", row)});
}

}  // namespace orrery
