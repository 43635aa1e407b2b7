#include "realrun/calibrate/nccl_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "traces/words.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

struct Kind {
  const char* program;  // of nccl-tests, before "_perf"
  const char* name;
  OpKind kind;
};
constexpr std::array<Kind, 7> kKinds{{{"all_reduce", "all_reduce", OpKind::all_reduce},
                                      {"all_gather", "all_gather", OpKind::all_gather},
                                      {"reduce_scatter", "reduce_scatter", OpKind::reduce_scatter},
                                      {"alltoall", "all_to_all", OpKind::all_to_all},
                                      {"broadcast", "broadcast", OpKind::broadcast},
                                      {"reduce", "reduce", OpKind::reduce},
                                      {"sendrecv", "send_recv", OpKind::ring_shift}}};

std::string names_of_kinds() {
  std::string names;
  for (const std::string& name : collectives_of_logs()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

// The collective that a text names; longer names first, as "reduce" is part of others.
const Kind* kind_in(std::string_view text) {
  const Kind* found = nullptr;
  for (const Kind& k : kKinds)
    for (const std::string_view name : {std::string_view(k.program), std::string_view(k.name)})
      if (text.find(name) != std::string_view::npos &&
          (found == nullptr || name.size() > std::string_view(found->name).size()))
        found = &k;
  return found;
}

std::vector<std::string> words_of(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\v\f\r\n";
  std::vector<std::string> words;
  for (std::size_t at = 0; (at = line.find_first_not_of(kBlanks, at)) != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(kBlanks, at), line.size());
    words.emplace_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

std::optional<double> number(const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

// What a log says before its table.
struct Header {
  const Kind* kind = nullptr;
  std::int64_t ranks = 0;
  std::set<std::string> hosts;
  std::string device;
};

void settle(CollectiveCurve& curve, const Header& header, const std::string& file, const LogOptions& options) {
  const std::string stem = std::filesystem::path(file).filename().string();
  const Kind* kind = header.kind;
  if (!options.collective.empty()) {
    kind = nullptr;
    for (const Kind& k : kKinds)
      if (options.collective == k.name) kind = &k;
    if (kind == nullptr)
      throw InputError({"--collective", ""}, describe(options.collective), "one of " + names_of_kinds());
  }
  if (kind == nullptr) kind = kind_in(stem);
  if (kind == nullptr)
    throw InputError({file, ""}, "a log that does not name its collective", "--collective: " + names_of_kinds());
  curve.collective = kind->name;
  curve.kind = kind->kind;
  curve.ranks = header.ranks;
  curve.nodes = static_cast<std::int64_t>(std::max<std::size_t>(header.hosts.size(), 1));
  curve.device = header.device;
  curve.source = stem;
  curve.id = fmt::format("{}-{}-{}", std::filesystem::path(stem).stem().string(), curve.collective, curve.ranks);
  if (curve.ranks < 2)
    throw InputError({file, ""}, fmt::format("{} ranks", curve.ranks), "a log that lists 2 ranks or more");
  if (curve.ranks % curve.nodes != 0)
    throw InputError({file, ""}, fmt::format("{} ranks on {} hosts", curve.ranks, curve.nodes),
                     "as many ranks on every host");
  if (curve.points.empty())
    throw InputError({file, ""}, "no results", "a table of nccl-tests with a row for each size");
}

// "#  Rank  0 Group  0 Pid  10563 on host-1 device  0 [0x07] NVIDIA A100-SXM4-40GB"
void read_rank(const std::vector<std::string>& words, Header& header) {
  const auto on = std::find(words.begin(), words.end(), "on");
  if (on == words.end() || on + 1 == words.end()) return;
  ++header.ranks;
  header.hosts.insert(*(on + 1));
  const auto bus = std::find_if(on, words.end(), [](const std::string& w) { return w.ends_with(']'); });
  header.device.clear();
  for (auto word = bus; word != words.end() && ++word != words.end();)
    header.device += (header.device.empty() ? "" : " ") + *word;
}

CollectiveCurve parse_table(const std::string& text, const std::string& file, const LogOptions& options) {
  CollectiveCurve curve;
  Header header;
  std::vector<std::string> columns;
  std::string_view rest = text;
  std::size_t line_number = 0;
  bool ended = false;
  while (const std::optional<std::string_view> next = next_line(rest)) {
    const std::string_view line = *next;
    const InputError::Where where{fmt::format("{}:{}", file, ++line_number), ""};
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    if (words[0] == "#") {
      if (line.find("Collective test starting") != std::string::npos) header.kind = kind_in(words.back());
      if (words.size() > 2 && words[1] == "Rank") read_rank(words, header);
      if (words.size() > 2 && words[1] == "size") columns.assign(words.begin() + 1, words.end());
      if (line.find("Out of bounds values") != std::string::npos || line.find("Avg bus bandwidth") != std::string::npos)
        ended = true;
      continue;
    }
    const std::optional<double> size = number(words[0]);
    if (!size) {  // of mpirun, of NCCL_DEBUG, or the command line
      if (header.kind == nullptr && line.find("_perf") != std::string::npos) header.kind = kind_in(line);
      continue;
    }
    if (columns.empty())
      throw InputError(where, "a row of results", "the header of the table (size, count, type, ...) before it");
    // A column's place; the second of two with the same name is the in-place one.
    const auto at = [&](const char* name) {
      std::size_t found = columns.size();
      for (std::size_t i = 0; i < columns.size(); ++i)
        if (columns[i] == name && (found == columns.size() || options.in_place)) found = i;
      return found;
    };
    std::size_t time = at("time");
    if (time == columns.size()) time = at("cputime");
    const std::size_t wrong = at("#wrong"), type = at("type");
    // The root column is empty in the rows of older versions.
    const bool timestamped = !columns.empty() && columns.back() == "timestamp";
    if (time == columns.size()) throw InputError(where, "a table without a column \"time\"", "the table of nccl-tests");
    if (words.size() < columns.size() && !timestamped)
      throw InputError(where, fmt::format("{} columns", words.size()),
                       fmt::format("the {} that the header names: the log may be cut off here", columns.size()));
    const std::optional<double> micros = number(words[time]);
    if (!micros || *micros <= 0 || *size < 0)
      throw InputError(where, describe(words[time]), fmt::format("a time in microseconds in column {}", time + 1));
    if (wrong < words.size())
      if (const std::optional<double> errors = number(words[wrong]); errors && *errors != 0)
        throw InputError(where, fmt::format("{} wrong values", words[wrong]), "results that nccl-tests found right");
    if (type < words.size()) curve.dtype = words[type];
    if (*size > 0) curve.points.push_back({*size, 1e-6 * *micros, line_number});
  }
  if (header.ranks == 0 && columns.empty())
    throw InputError({file, ""}, "no log of nccl-tests", "what all_reduce_perf and its like print, or write with -J");
  if (!ended && !curve.points.empty())
    throw InputError({fmt::format("{}:{}", file, line_number), ""}, "the end of the log",
                     "the line \"Avg bus bandwidth\" that ends a whole one");
  settle(curve, header, file, options);
  return curve;
}

// What -J writes: src/util.cu of nccl-tests, version 1.
CollectiveCurve parse_json_log(const std::string& text, const std::string& file, const LogOptions& options) {
  const Json json = parse_json(text, file);
  const auto need = [&](const Json& object, const char* key, const std::string& pointer) -> const Json& {
    if (!object.is_object() || !object.contains(key))
      throw InputError({file, pointer + "/" + key}, "nothing", "what nccl-tests writes there with -J");
    return object[key];
  };
  Header header;
  if (json.is_object() && json.contains("args") && json["args"].is_array() && !json["args"].empty() &&
      json["args"][0].is_string())
    header.kind = kind_in(std::filesystem::path(json["args"][0].get<std::string>()).filename().string());
  const Json& config = need(json, "config", "");
  const Json& devices = need(config, "devices", "/config");
  if (!devices.is_array()) throw InputError({file, "/config/devices"}, describe(devices), "an array");
  // One entry a process, whatever its ranks.
  header.ranks = static_cast<std::int64_t>(devices.size());
  for (const char* of : {"nthreads", "ngpus"}) {
    constexpr std::int64_t kMost = 1 << 20;  // a process, by far
    const Json& count = need(config, of, "/config");
    if (!count.is_number_integer() || count < 1 || count > kMost)
      throw InputError({file, std::string("/config/") + of}, describe(count),
                       fmt::format("an integer from 1 to {}", kMost));
    header.ranks *= count.get<std::int64_t>();
  }
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const auto text_of = [&](const char* key) {
      const std::string pointer = fmt::format("/config/devices/{}", i);
      if (!devices[i].is_object()) throw InputError({file, pointer}, describe(devices[i]), "an object");
      const Json value = devices[i].value(key, Json(""));
      if (!value.is_string()) throw InputError({file, pointer + "/" + key}, describe(value), "a text");
      return value.get<std::string>();
    };
    header.hosts.insert(text_of("hostname"));
    header.device = text_of("device_info");
  }
  CollectiveCurve curve;
  const Json& results = need(json, "results", "");
  if (!results.is_array()) throw InputError({file, "/results"}, describe(results), "an array");
  for (std::size_t i = 0; i < results.size(); ++i) {
    const std::string pointer = fmt::format("/results/{}", i);
    const char* column = options.in_place ? "in_place" : "out_of_place";
    const Json& size = need(results[i], "size", pointer);
    const Json& of = need(results[i], column, pointer);
    if (of.is_null()) continue;
    const Json& time = of.contains("cpu_time") ? of["cpu_time"] : need(of, "time", pointer + "/" + column);
    if (!time.is_number() || !size.is_number() || !(time.get<double>() > 0))
      throw InputError({file, pointer + "/" + column + "/time"}, describe(time), "a time in microseconds");
    if (const auto wrong = of.find("nwrong"); wrong != of.end() && wrong->is_number() && *wrong != 0)
      throw InputError({file, pointer + "/" + column + "/nwrong"}, describe(*wrong),
                       "results that nccl-tests found right");
    if (results[i].contains("type") && results[i]["type"].is_string()) curve.dtype = results[i]["type"];
    if (size.get<double>() > 0) curve.points.push_back({size.get<double>(), 1e-6 * time.get<double>(), 0});
  }
  settle(curve, header, file, options);
  return curve;
}

}  // namespace

std::vector<std::string> collectives_of_logs() {
  std::vector<std::string> names;
  for (const Kind& k : kKinds) names.emplace_back(k.name);
  return names;
}

CollectiveCurve parse_nccl_log(const std::string& text, const std::string& file, const LogOptions& options) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') return parse_json_log(text, file, options);
  return parse_table(text, file, options);
}

CollectiveCurve read_nccl_log(const std::string& file, const LogOptions& options) {
  return parse_nccl_log(read_file(file, "a log of nccl-tests"), file, options);
}

}  // namespace orrery
