#include "realrun/calibrate/journal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr const char* kFormat = "orrery calibration journal 1";

std::string line_of(const JournalHeader& h) {
  return json_text(nlohmann::ordered_json{
             {"format", kFormat}, {"kind", h.kind}, {"device", h.device}, {"software", h.software}, {"date", h.date}}) +
         "\n";
}

std::string line_of(const std::string& id, const Measurement& m) {
  return json_text(nlohmann::ordered_json{{"id", id},
                                          {"seconds", m.seconds},
                                          {"spread", m.spread},
                                          {"issue_seconds", m.issue_seconds},
                                          {"repetitions", m.repetitions}}) +
         "\n";
}

void keep_fastest(std::map<std::string, Measurement>& points, const std::string& id, const Measurement& m) {
  const auto [at, is_new] = points.try_emplace(id, m);
  if (is_new) return;
  const std::int64_t repetitions = at->second.repetitions + m.repetitions;
  if (m.seconds < at->second.seconds) at->second = m;
  at->second.repetitions = repetitions;
}

JournalHeader read_header(const Json& json, const std::string& path) {
  const InputError::Where where{path + ":1", ""};
  if (!json.is_object() || json.value("format", Json()) != kFormat)
    throw InputError(where, "not a journal of a calibration",
                     "a file that begins with the journal's format, or a new file");
  JsonReader reader(json, where);
  JournalHeader header;
  reader.take("format");
  reader.field("kind", header.kind, "");
  reader.field("device", header.device, "");
  reader.field("software", header.software, "");
  reader.field("date", header.date, "");
  reader.finish();
  return header;
}

constexpr std::int64_t kMostOfAPoint = 1'000'000'000'000;  // limit per point in any journal: sums of them stay integers

struct Parsed {
  JournalContents contents;
  std::size_t whole_bytes = 0;  // end of the last complete line
};

Parsed parse(const std::string& path) {
  const std::string text = read_file(path, "the journal of a calibration");
  Parsed parsed;
  std::size_t line_number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const std::string file = fmt::format("{}:{}", path, ++line_number);
    const Json json = parse_json(std::string_view(text).substr(begin, end - begin), file);
    if (line_number == 1) {
      parsed.contents.header = read_header(json, path);
    } else {
      JsonReader reader(json, {file, ""});
      std::string id;
      Measurement m;
      reader.field("id", id, "");
      reader.field("seconds", m.seconds, positive(), "");
      reader.field("spread", m.spread, NumberRange{}, "");
      reader.field("issue_seconds", m.issue_seconds, NumberRange{}, "");
      reader.field("repetitions", m.repetitions, {1, kMostOfAPoint}, "");
      reader.finish();
      if (m.seconds <= 0) reader.fail("seconds", "the seconds of a point");
      keep_fastest(parsed.contents.points, id, m);
    }
    begin = parsed.whole_bytes = end + 1;
  }
  if (parsed.whole_bytes == 0) read_header(Json(), path);
  return parsed;
}

}  // namespace

JournalContents read_journal(const std::string& path) { return parse(path).contents; }

Journal::Journal(std::string path, const JournalHeader& header) : path_(std::move(path)), header_(header) {
  std::error_code ignored;
  const bool there = std::filesystem::exists(path_, ignored) && std::filesystem::file_size(path_, ignored) > 0;
  if (there) {
    Parsed parsed = parse(path_);
    if (!parsed.contents.header.same_machine(header))
      throw InputError(
          {path_, ""},
          fmt::format("the points of {} ({})", parsed.contents.header.device, parsed.contents.header.software),
          fmt::format("those of {} ({}): remove the journal, or give another with --journal", header.device,
                      header.software));
    header_ = parsed.contents.header;
    points_ = std::move(parsed.contents.points);
    std::filesystem::resize_file(path_, parsed.whole_bytes);
  }
  file_ = std::fopen(path_.c_str(), "ab");
  if (file_ == nullptr)
    throw InputError({path_, ""}, fmt::format("a path that cannot be written ({})", std::strerror(errno)),
                     "the path of a file to write");
  if (!there) write(line_of(header_));
}

Journal::~Journal() {
  if (file_ != nullptr) std::fclose(file_);
}

void Journal::write(const std::string& line) {
  if (std::fwrite(line.data(), 1, line.size(), file_) != line.size() || std::fflush(file_) != 0 ||
      ::fsync(::fileno(file_)) != 0)
    throw InputError({path_, ""}, fmt::format("a path that cannot be written ({})", std::strerror(errno)),
                     "space for the journal");
}

void Journal::add(const std::string& id, const Measurement& measurement) {
  write(line_of(id, measurement));
  keep_fastest(points_, id, measurement);
}

}  // namespace orrery
