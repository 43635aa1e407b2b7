#include "traces/packing/packed_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"
#include "traces/packing/document_generator.h"
#include "traces/packing/packing.h"
#include "traces/random_bits.h"

namespace orrery {
namespace {

enum class PackedDraw : std::uint64_t { documents, order };

constexpr std::size_t kMostSequenceShown = 60;

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n";
  const std::size_t begin = std::min(text.find_first_not_of(kBlanks), text.size());
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

// Parses a line that `orrery pack --out` writes.
std::vector<std::int64_t> parse_sequence(std::string_view line, const InputError::Where& where) {
  const auto fail = [&](std::string found, std::string expected) {
    throw InputError(where, std::move(found), std::move(expected));
  };
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (object.is_discarded() || !object.is_object() || !object.contains("documents"))
    fail(line.empty() ? "an empty line" : fmt::format("\"{}\"", one_line(line, kMostSequenceShown)),
         "a sequence as a JSON object, as in the first line: {\"documents\": [{\"tokens\": 812}]}");
  const nlohmann::json& documents = object["documents"];
  if (!documents.is_array() || documents.empty()) fail(describe(documents) + " in \"documents\"", "one or more");
  std::vector<std::int64_t> tokens;
  std::int64_t all = 0;
  for (const nlohmann::json& document : documents) {
    if (!document.is_object() || !document.contains("tokens") || !document["tokens"].is_number_integer())
      fail(fmt::format("{} in its documents", one_line(document.dump(), kMostSequenceShown)),
           "an object with a whole number of \"tokens\"");
    const auto n = document["tokens"].is_number_unsigned() && document["tokens"].get<std::uint64_t>() > INT64_MAX
                       ? std::numeric_limits<std::int64_t>::max()
                       : document["tokens"].get<std::int64_t>();
    if (n < 1 || n > Documents::kMostTokens)
      fail(fmt::format("{} tokens", n), fmt::format("1 to {} tokens of a document", Documents::kMostTokens));
    if (document.contains("start") && document["start"] != all)
      fail(fmt::format("\"start\" {} of a document", document["start"].dump()),
           fmt::format("{}, the end of the documents before it", all));
    tokens.push_back(n);
    all += n;
  }
  if (object.contains("tokens") && object["tokens"] != all)
    fail(fmt::format("{} \"tokens\" of a sequence", object["tokens"].dump()),
         fmt::format("{}, the sum of its documents", all));
  return tokens;
}

}  // namespace

RecordedDocuments read_recorded_documents(const std::string& path) {
  RecordedDocuments recorded;
  recorded.file = path;
  const std::string text = read_file(path, "a readable file of documents");
  std::string_view rest = text;
  const nlohmann::json first = nlohmann::json::parse(next_line(rest).value_or(""), nullptr, false);
  if (!first.is_object() || !first.contains("documents")) {
    recorded.documents = parse_documents(text, path);
    return recorded;
  }
  rest = text;
  std::optional<std::string_view> line;
  for (std::int64_t number = 1; (line = next_line(rest)); ++number) {
    std::vector<std::int64_t>& tokens =
        recorded.sequences.emplace_back(parse_sequence(*line, {path, fmt::format("line {}", number)}));
    const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
    if (all > recorded.longest) recorded.longest = all, recorded.longest_line = number;
  }
  return recorded;
}

bool lists_sequences(const std::string& documents) {
  const std::string_view text = trimmed(documents);
  constexpr std::string_view kBegins = "0123456789,;+-";
  return !text.empty() && kBegins.find(text.front()) != std::string_view::npos;
}

bool keeps_order(PackingPolicy policy) { return policy == PackingPolicy::concat || policy == PackingPolicy::pad; }

void shuffle_sequences(std::uint64_t seed, std::int64_t step, std::vector<std::vector<std::int64_t>>& sequences) {
  RandomBits random(seed, PackedDraw::order, {step});
  for (std::size_t left = sequences.size(); left > 1; --left)
    std::swap(sequences[left - 1], sequences[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(left)))]);
}

namespace {

using Sequences = std::vector<std::vector<std::int64_t>>;

[[noreturn]] void refuse(const char* field, std::string found, std::string expected) {
  throw InputError({"", fmt::format("/workload/{}", field)}, std::move(found), std::move(expected));
}

Sequences pieces_of(const Documents& documents, const Workload& workload, std::int64_t length) {
  Packing packing;
  try {
    packing = pack(documents, {.context = length, .policy = workload.packing});
  } catch (const InputError& error) {
    refuse("sequence_length", error.found(), error.expected());
  }
  Sequences sequences;
  for (std::int64_t s = 0; s < packing.sequences(); ++s) {
    std::vector<std::int64_t>& tokens = sequences.emplace_back();
    for (const DocumentPart& piece : packing.sequence(s)) tokens.push_back(piece.tokens);
  }
  return sequences;
}

Sequences listed_sequences(const Workload& workload, std::int64_t length) {
  Sequences sequences;
  for (const std::string_view sequence : split(workload.documents, ';')) {
    std::vector<std::int64_t>& tokens = sequences.emplace_back();
    std::int64_t all = 0;
    for (const std::string_view document : split(sequence, ',')) {
      const std::string_view word = trimmed(document);
      const std::int64_t n = number_of(word).value_or(0);
      if (n < 1 || n > Documents::kMostTokens)
        refuse("documents", fmt::format("\"{}\" in a list of document lengths", one_line(word, kMostSequenceShown)),
               fmt::format("whole numbers of 1 to {} tokens, such as \"2048,4096;8192\"", Documents::kMostTokens));
      tokens.push_back(n);
      all += n;
    }
    if (all > length)
      refuse("documents", fmt::format("sequence {} of {} tokens", sequences.size(), all),
             fmt::format("at most {}, the sequence length", length));
  }
  return sequences;
}

std::uint64_t seed_of(const Workload& workload) { return static_cast<std::uint64_t>(workload.documents_seed); }

// Draws at least as many sequences as the batch has.
Sequences drawn_sequences(const Workload& workload, std::int64_t length) {
  DocumentGenerator generator;
  generator.lengths = workload.documents;
  generator.seed = RandomBits(seed_of(workload), PackedDraw::documents, {workload.step}).next();
  const std::int64_t batch = workload.global_batch_size,
                     wanted = keeps_order(workload.packing) ? batch : std::max(batch, kPackedTogether);
  double documents = static_cast<double>(wanted);
  try {
    if (workload.packing != PackingPolicy::pad)
      documents =
          std::ceil(documents * static_cast<double>(length) / length_distribution(generator.lengths, false).mean());
  } catch (const InputError& error) {
    throw InputError({"", "/workload/documents"}, error.found(), error.expected(), error.nearest());
  }
  for (;; documents = std::ceil(documents * 1.25)) {
    if (documents > static_cast<double>(kMostDrawnDocuments))
      refuse("global_batch_size", std::to_string(batch),
             fmt::format("a batch of at most {} documents to draw, not {:.0f}", kMostDrawnDocuments, documents));
    generator.count = static_cast<std::int64_t>(documents);
    Sequences sequences = pieces_of(generate_documents(generator), workload, length);
    if (static_cast<std::int64_t>(sequences.size()) < wanted) continue;
    const std::vector<std::int64_t>& last = sequences[static_cast<std::size_t>(wanted - 1)];
    if (workload.packing == PackingPolicy::concat &&
        std::accumulate(last.begin(), last.end(), std::int64_t{0}) < length)
      continue;  // documents continue into the next batch
    if (!keeps_order(workload.packing)) shuffle_sequences(seed_of(workload), workload.step, sequences);
    return sequences;
  }
}

Sequences recorded_sequences(const Workload& workload, std::int64_t length) {
  const RecordedDocuments& recorded = *workload.recorded_documents;
  if (!recorded.packed()) {
    Sequences sequences = pieces_of(recorded.documents, workload, length);
    if (!keeps_order(workload.packing)) shuffle_sequences(seed_of(workload), 0, sequences);
    return sequences;
  }
  if (recorded.longest > length)
    throw InputError({recorded.file, fmt::format("line {}", recorded.longest_line)},
                     fmt::format("a sequence of {} tokens", recorded.longest),
                     fmt::format("at most {}, the sequence length", length));
  return recorded.sequences;
}

PackedSequences packed_batch(const Workload& workload, std::int64_t length) {
  const bool listed = lists_sequences(workload.documents), drawn = workload.recorded_documents == nullptr && !listed;
  const Sequences sequences = listed  ? listed_sequences(workload, length)
                              : drawn ? drawn_sequences(workload, length)
                                      : recorded_sequences(workload, length);
  PackedSequences packed;
  packed.length = length;
  const std::int64_t batch = workload.global_batch_size, begin = drawn ? 0 : workload.step * batch;
  for (std::int64_t s = begin; s < begin + batch; ++s) {
    std::int64_t end = 0;
    for (const std::int64_t tokens : sequences[static_cast<std::size_t>(s) % sequences.size()])
      packed.ends.push_back(end += tokens);
    if (end < length) {
      packed.ends.push_back(length);
      packed.padded_positions += length - end;
    }
    packed.behind.push_back(packed.ends.size());
  }
  return packed;
}

}  // namespace

std::shared_ptr<const PackedSequences> packed_sequences(const Workload& workload, std::int64_t length) {
  if (!workload.has_documents()) return nullptr;
  if (length < 1 || length > PackingOptions::kMostContext)
    refuse("sequence_length", std::to_string(length),
           fmt::format("1 to {} tokens of a packed sequence", PackingOptions::kMostContext));
  if (workload.global_batch_size > kMostDrawnDocuments)
    refuse("global_batch_size", std::to_string(workload.global_batch_size),
           fmt::format("at most {} packed sequences", kMostDrawnDocuments));
  // Cached: searches ask for the same batch again and again.
  using Key = std::tuple<std::string, std::shared_ptr<const RecordedDocuments>, PackingPolicy, std::int64_t,
                         std::int64_t, std::int64_t, std::int64_t>;
  thread_local std::optional<Key> met;
  thread_local std::shared_ptr<const PackedSequences> packed;
  Key key{workload.documents,
          workload.recorded_documents,
          workload.packing,
          workload.documents_seed,
          workload.step,
          workload.global_batch_size,
          length};
  if (met != key) {
    met.reset();  // in case it throws
    packed = std::make_shared<const PackedSequences>(packed_batch(workload, length));
    met = std::move(key);
  }
  return packed;
}

}  // namespace orrery
