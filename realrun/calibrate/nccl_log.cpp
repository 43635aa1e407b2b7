#include "realrun/calibrate/nccl_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/words.h"
#include "sim/cost/published_collectives.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

std::string names_of_kinds() { return fmt::format("{}", fmt::join(collective_names(), ", ")); }

// Letters only, so that "all_reduce", "all-reduce" and "AllReduce" are alike.
std::string letters_of(std::string_view text) {
  std::string letters;
  for (const char c : text)
    if (c != '_' && c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return letters;
}

// The collective that a text names. Longer names come first, as "reduce" is a part of others.
const CollectiveKind* kind_in(std::string_view text) {
  const std::string letters = letters_of(text);
  const CollectiveKind* found = nullptr;
  for (const CollectiveKind& k : kCollectiveKinds)
    if (letters.find(letters_of(k.name)) != std::string::npos &&
        (found == nullptr || k.name.size() > found->name.size()))
      found = &k;
  return found;
}

std::optional<double> number(std::string_view word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::optional<std::int64_t> integer(std::string_view word) {
  const std::optional<std::int64_t> value = number_of(word);
  return value && *value >= 0 ? value : std::nullopt;
}

// An entry in a log's list of ranks: "#  Rank  0 Group  0 Pid  10563 on host-1 device  0 [0x07] NVIDIA A100-SXM4-40GB".
// In JSON an entry is a process, which has `ranks` ranks.
struct LoggedRank {
  std::int64_t number = 0, group = 0, ranks = 1;
  std::string host;
  std::size_t line = 0;
};

// The bandwidths of a row in GB/s, as they are printed: the ratio of the bus's to the algorithm's is the collective's.
struct Bandwidths {
  double algorithm = 0, bus = 0;
  double ratio() const { return bus / algorithm; }
};

// Returns whether rows with these bandwidths can be of this collective among so many ranks: see PERFORMANCE.md of
// nccl-tests. Two decimals are printed; rows that are too small for them to tell can be of any.
bool can_have(const Bandwidths& printed, OpKind kind, std::int64_t ranks) {
  constexpr double kRounded = 0.005, kShown = 0.1, kSlack = 1.01;
  if (printed.algorithm < kShown || printed.bus < kShown || ranks < 2) return true;
  const double others = static_cast<double>(ranks - 1) / static_cast<double>(ranks);
  double ratio = 1;
  if (kind == OpKind::all_reduce) ratio = 2 * others;
  if (kind == OpKind::all_gather || kind == OpKind::reduce_scatter || kind == OpKind::all_to_all) ratio = others;
  return ratio * kSlack >= (printed.bus - kRounded) / (printed.algorithm + kRounded) &&
         ratio <= kSlack * (printed.bus + kRounded) / (printed.algorithm - kRounded);
}

// One run of a test.
struct Run {
  const CollectiveKind* kind = nullptr;  // null: the log does not say it
  std::size_t first_line = 1, last_line = 1;
  std::vector<LoggedRank> ranks;
  std::string device, dtype;
  std::vector<std::string> columns;
  std::vector<CollectivePoint> points;
  double seconds_per_unit = 1e-6;  // unit of the column "time"; 0: the header does not say it
  Bandwidths fastest;              // of the row with the greatest algorithm bandwidth
  double seconds_per_unit_of_fastest = 0;
  bool reduces = false, only_moves = false;  // by the column redop of some row
  bool rows = false, unmeasured = false;     // rows: it has rows; unmeasured: a row has no time ("N/A")
  bool ended = false;
  std::optional<InputError> error;  // of the first row with an error

  bool empty() const { return ranks.empty() && columns.empty() && !rows; }

  // Adds a result with its time as the log states it. `least_bandwidth`: smaller ones are not shown, or shown as 0.
  void add(CollectivePoint point, std::optional<double> wrong, std::optional<double> algorithm,
           std::optional<double> bus, double least_bandwidth, const InputError::Where& where) {
    if (wrong && *wrong != 0)
      throw InputError(where, fmt::format("{} wrong values", *wrong), "results that nccl-tests found correct");
    if (algorithm && *algorithm > 0 && *algorithm >= least_bandwidth && bus == 0)
      throw InputError(
          where, fmt::format("a bus bandwidth of 0 with an algorithm bandwidth of {} GB/s", *algorithm),
          "a communicator of several ranks: this is one rank by itself (nccl-tests is built with MPI=1 to run on "
          "several hosts)");
    if (algorithm && *algorithm > fastest.algorithm) {
      fastest = {*algorithm, bus.value_or(0)};
      seconds_per_unit_of_fastest = point.bytes / (1e9 * *algorithm) / point.seconds;
    }
    if (point.bytes > 0) points.push_back(point);
  }
  // The size of a communicator: groups are equal.
  std::int64_t ranks_of_group() const {
    std::map<std::int64_t, std::int64_t> by_number;
    std::set<std::int64_t> groups;
    for (const LoggedRank& rank : ranks) {
      by_number[rank.number] = rank.ranks;
      groups.insert(rank.group);
    }
    std::int64_t all = 0;
    for (const auto& [number, of_entry] : by_number) all += of_entry;
    return all / std::max<std::int64_t>(1, std::ssize(groups));
  }
};

// Determines what the ranks of a log are: members of one communicator, or of several equal ones, each within a host.
void settle_ranks(const std::vector<LoggedRank>& ranks, const InputError::Where& where, CollectiveCurve& curve) {
  const std::string alone = ": separate processes do not measure a collective together (build nccl-tests with MPI=1)";
  std::map<std::int64_t, const LoggedRank*> by_number;
  for (const LoggedRank& rank : ranks)
    if (const auto [at, fresh] = by_number.emplace(rank.number, &rank); !fresh)
      throw InputError(where,
                       fmt::format("rank {} twice, in lines {} and {}", rank.number, at->second->line, rank.line),
                       "each rank once" + alone);
  std::map<std::int64_t, std::map<std::string, std::int64_t>> groups;  // number of ranks on each host
  std::set<std::string> hosts;
  std::int64_t expected = 0, count = 0;
  for (const auto& [number, rank] : by_number) {
    if (number != expected++)
      throw InputError(where, fmt::format("rank {} without rank {}", number, expected - 1),
                       "a log that lists all ranks");
    groups[rank->group][rank->host] += rank->ranks;
    hosts.insert(rank->host);
    count += rank->ranks;
  }
  const auto parts = static_cast<std::int64_t>(groups.size());
  if (count < 2)
    throw InputError(where, count == 0 ? "no list of ranks" : "one rank by itself", "2 ranks or more" + alone);
  curve.ranks = count;
  curve.hosts = static_cast<std::int64_t>(hosts.size());
  if (parts > 1) {
    if (parts == count)
      throw InputError(where, fmt::format("{} groups of one rank", parts), "2 ranks or more in a group");
    // Groups that share no network behave like one group by itself.
    for (const auto& [group, on] : groups)
      if (on.size() > 1 || on.begin()->second * parts != count)
        throw InputError(
            where, fmt::format("{} groups that run at once over {} hosts (NCCL_TESTS_SPLIT)", parts, hosts.size()),
            "one group of all ranks, or equal groups that each lie within a host");
    curve.ranks = count / parts;
    curve.hosts = 1;
  }
  const auto& on = groups.begin()->second;
  for (const auto& [host, ranks_there] : on)
    if (ranks_there != on.begin()->second)
      throw InputError(where,
                       fmt::format("{} ranks on {} hosts, {} on one and {} on another", curve.ranks, curve.hosts,
                                   on.begin()->second, ranks_there),
                       "the same number of ranks on every host");
  curve.nodes = curve.hosts;
}

const CollectiveKind* wanted_kind(const LogOptions& options) {
  const CollectiveKind* kind = find_collective(options.collective);
  if (kind == nullptr && !options.collective.empty())
    throw InputError({"--collective", ""}, describe(options.collective), "one of " + names_of_kinds());
  return kind;
}

// Returns a line without colours, and without the carriage return with which other systems end it.
std::string plain(std::string_view line) {
  std::string text = without_escapes(line);
  std::erase(text, '\r');
  return text;
}

// Returns whether a word is a data type of NCCL or RCCL, as the tests of some version spell it.
bool names_a_type(std::string_view word) {
  for (const std::string_view type : {"int", "uint", "char", "half", "float", "double", "bf", "fp", "f8", "f16"})
    if (word.starts_with(type)) return true;
  return false;
}

// Launchers put tags before a line ("[1,0]<stdout>:", "0: ", "host: ", a time), with or without a space. Therefore the
// text of a line is searched for anywhere in it.
class TableParser {
 public:
  TableParser(std::string file, bool in_place) : file_(std::move(file)), in_place_(in_place) {}

  std::vector<Run> parse(const std::string& text) {
    std::string_view rest = text;
    while (const std::optional<std::string_view> line = next_line(rest)) {
      ++line_;
      read_line(plain(*line));
    }
    finish_run();
    return std::move(runs_);
  }

 private:
  InputError::Where where() const { return {fmt::format("{}:{}", file_, line_), ""}; }

  void finish_run() {
    settle_unit();
    if (!run_.empty()) runs_.push_back(std::move(run_));
    run_ = Run{};
    run_.first_line = line_;
  }

  void read_line(const std::string& line) {
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) return;
    const auto says = [&](const char* text) { return line.find(text) != std::string::npos; };
    const bool starting = says("Collective test starting");
    if (starting || says("nThread ") || says("Using devices") || says("nccl-tests version")) {
      if (!run_.columns.empty()) finish_run();
      if (starting) run_.kind = kind_in(words.back());
      return;
    }
    if (read_rank(words) || read_header(words)) return;
    if (says("(us)")) run_.seconds_per_unit = 1e-6;
    if (says("Out of bounds values")) return read_bounds(words);
    if (says("Avg bus bandwidth")) {
      if (run_.ended) mix();
      run_.ended = true;
      run_.last_line = line_;
      return;
    }
    if (const std::size_t row = row_in(words); row < words.size()) {
      run_.last_line = line_;
      if (run_.ended) mix();
      run_.rows = true;
      try {
        read_row({words.begin() + static_cast<std::ptrdiff_t>(row), words.end()});
      } catch (const InputError& error) {
        if (!run_.error) run_.error = error;
      }
      return;
    }
    if (!run_.columns.empty() && !run_.ended && !run_.error && is_damaged_row(words))
      run_.error = InputError(where(), fmt::format("a row of {} bytes and {} elements", words[0], words[1]),
                              "a size and a count, which are whole numbers");
    if (says("_perf") && (run_.ended || run_.kind == nullptr)) {  // the command line
      if (run_.ended) finish_run();
      run_.kind = kind_in(line);
    }
  }

  void mix() {
    if (!run_.error)
      run_.error = InputError(where(), "more results after the end of a table",
                              "separate runs: lines of several runs are mixed here");
  }

  bool read_rank(const std::vector<std::string>& words) {
    const auto rank = std::find(words.begin(), words.end(), "Rank");
    const auto on = std::find(rank, words.end(), "on");
    if (words.end() - rank < 2 || words.end() - on < 2) return false;
    const std::optional<std::int64_t> number = integer(*(rank + 1));
    if (!number) return false;
    if (!run_.columns.empty()) finish_run();
    LoggedRank read{.number = *number, .group = 0, .host = *(on + 1), .line = line_};
    const auto group = std::find(rank, on, "Group");
    if (on - group > 1) read.group = integer(*(group + 1)).value_or(0);
    run_.ranks.push_back(std::move(read));
    const auto bus = std::find_if(on, words.end(), [](const std::string& w) { return w.ends_with(']'); });
    run_.device.clear();
    for (auto word = bus; word != words.end() && ++word != words.end();)
      run_.device += (run_.device.empty() ? "" : " ") + *word;
    return true;
  }

  // Reads the names of the columns. The oldest versions call the first one "bytes".
  bool read_header(const std::vector<std::string>& words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i) {
      const bool oldest = words[i].ends_with("bytes") && words[i + 1] == "N";
      if (!oldest && !(words[i].ends_with("size") && words[i + 1] == "count")) continue;
      if (run_.rows || run_.ended) finish_run();
      run_.columns.assign(words.begin() + static_cast<std::ptrdiff_t>(i), words.end());
      for (std::string& column : run_.columns)
        if (column.starts_with('#')) column.erase(0, 1);
      timestamped_ = run_.columns.back() == "timestamp";
      if (timestamped_) run_.columns.pop_back();
      run_.seconds_per_unit = oldest ? 0 : 1e-6;
      return true;
    }
    return false;
  }

  // "# Out of bounds values : 0 OK"
  void read_bounds(const std::vector<std::string>& words) {
    const auto colon = std::find(words.begin(), words.end(), ":");
    if (words.end() - colon < 2) return;
    if (const auto values = number(*(colon + 1)); values && *values > 0 && !run_.error)
      run_.error = InputError(where(), *(colon + 1) + " values out of bounds", "results that nccl-tests found correct");
  }

  // Returns where a row begins: with a size, a count and a data type.
  static std::size_t row_in(const std::vector<std::string>& words) {
    for (std::size_t i = 0; i + 2 < words.size(); ++i)
      if (integer(size_in(words[i])) && integer(words[i + 1]) && names_a_type(words[i + 2])) return i;
    return words.size();
  }
  // Returns true if a line that is no row is one but for its size or its count.
  static bool is_damaged_row(const std::vector<std::string>& words) {
    const auto begins_a_number = [](const std::string& word) {
      return word.find_first_of("0123456789") <= (word.starts_with('-') || word.starts_with('+') ? 1u : 0u);
    };
    return words.size() > 2 && names_a_type(words[2]) && (begins_a_number(words[0]) || begins_a_number(words[1]));
  }
  static std::string_view size_in(std::string_view word) {
    const std::size_t tag = word.find_last_of(">:]|");
    return tag == std::string_view::npos ? word : word.substr(tag + 1);
  }

  void read_row(std::vector<std::string> words) {
    const std::vector<std::string>& columns = run_.columns;
    if (columns.empty())
      throw InputError(where(), "a row of results", "the header of the table (size, count, type, ...) before it");
    const auto is_time = [](const std::string& column) { return column == "time" || column == "cputime"; };
    const auto first = std::find_if(columns.begin(), columns.end(), is_time);
    if (first == columns.end())
      throw InputError(where(), "a table without a column \"time\"", "the table of nccl-tests");
    if (timestamped_ && words.back().find(':') != std::string::npos) {
      words.pop_back();
      if (words.back().find('-', 1) != std::string::npos && !number(words.back())) words.pop_back();
    }
    // Some columns before the times may be empty: a test need not have a redop or a root.
    const auto values = static_cast<std::size_t>(columns.end() - first);
    constexpr std::size_t kLeast = 3;  // size, count, type
    if (words.size() < kLeast + values)
      throw InputError(
          where(), fmt::format("{} columns", words.size()),
          fmt::format("the {} of the header, with redop and root possibly empty: the log may be truncated here",
                      columns.size()));
    if (words.size() > columns.size())
      throw InputError(where(), fmt::format("{} columns", words.size()),
                       fmt::format("the {} of the header", columns.size()));
    const std::size_t before = words.size() - values;
    const bool reduction = before > kLeast && !number(words[kLeast]) && words[kLeast] != "none";
    (reduction ? run_.reduces : run_.only_moves) = true;
    run_.dtype = words[2];

    auto half = first;  // the second of two columns with the same name is the in-place one
    if (in_place_) half = std::find_if(first + 1, columns.end(), is_time);
    if (half == columns.end()) throw InputError(where(), "a table without in-place columns", "the table of nccl-tests");
    const auto half_end = std::find_if(half + 1, columns.end(), is_time);
    const auto value_of = [&](const char* column) {
      const auto at = std::find(half, half_end, column);
      return at == half_end ? std::nullopt : number(words[before + static_cast<std::size_t>(at - first)]);
    };
    const std::size_t time = before + static_cast<std::size_t>(half - first);
    const auto size = static_cast<double>(*integer(size_in(words[0])));
    if (words[time] == "N/A") {
      run_.unmeasured = true;
      return;
    }
    const std::optional<double> taken = number(words[time]);
    if (!taken || *taken <= 0)
      throw InputError(where(), describe(words[time]), fmt::format("a time in microseconds in column {}", time + 1));
    // Bandwidths are printed with two decimals; for sizes below this a 0 beside them has no meaning.
    constexpr double kShown = 0.1;
    run_.add({size, *taken, line_}, value_of("wrong"), value_of("algbw"), value_of("busbw"), kShown, where());
  }

  // The oldest versions report milliseconds without saying so; the bandwidth beside the time reveals it.
  void settle_unit() {
    if (run_.seconds_per_unit == 0 && run_.fastest.algorithm > 0)
      run_.seconds_per_unit = run_.seconds_per_unit_of_fastest > 3e-5 ? 1e-3 : 1e-6;
    if (run_.seconds_per_unit == 0 && !run_.points.empty() && !run_.error)
      run_.error = InputError({fmt::format("{}:{}", file_, run_.last_line), ""}, "times without a unit",
                              "a row that is large enough to show its bandwidth, or the unit (us) in the header");
    for (CollectivePoint& point : run_.points) point.seconds *= run_.seconds_per_unit;
  }

  std::string file_;
  bool in_place_;
  std::size_t line_ = 0;
  bool timestamped_ = false;
  Run run_;
  std::vector<Run> runs_;
};

// Returns whether the ratio of a run's bandwidths can be this collective's.
bool has_ratio_of(const Run& run, const CollectiveKind& kind) {
  return can_have(run.fastest, kind.op, run.ranks_of_group());
}

// Returns whether a run can be of this collective: the column redop of its rows says whether anything was reduced, and
// the ratio of its bandwidths what was run.
bool can_be(const Run& run, const CollectiveKind& kind) {
  if (!has_ratio_of(run, kind)) return false;
  const bool reduces = kind.op == OpKind::all_reduce || kind.op == OpKind::reduce_scatter || kind.op == OpKind::reduce;
  return reduces ? run.reduces || !run.only_moves : !run.reduces;
}

// Names a curve by its collective: the one that the log says, or otherwise the wanted one, or that of the file's name,
// which counts only where the rows can be of it.
void name_curve(const Run& run, const std::string& file, const LogOptions& options, CollectiveCurve& curve) {
  const std::filesystem::path name = std::filesystem::path(file).filename();
  const CollectiveKind* kind = run.kind != nullptr ? run.kind : wanted_kind(options);
  if (kind == nullptr) {
    kind = kind_in(name.string());
    if (kind == nullptr || !can_be(run, *kind))
      throw InputError({file, ""}, "a log that does not name its collective", "--collective: " + names_of_kinds());
  }
  curve.collective = kind->name;
  curve.kind = kind->op;
  curve.source = name.string();
  curve.id = fmt::format("{}-{}-{}", name.stem().string(), curve.collective, curve.ranks);
}

// Returns the curve of a run, which is of the wanted collective.
CollectiveCurve curve_of(const Run& run, const std::string& file, const LogOptions& options) {
  const auto at = [&](std::size_t line) { return InputError::Where{fmt::format("{}:{}", file, line), ""}; };
  const InputError::Where where{file, ""};
  CollectiveCurve curve;
  if (run.ranks.empty() && run.error) throw *run.error;
  settle_ranks(run.ranks, where, curve);
  if (run.error) throw *run.error;
  if (!run.points.empty() && !run.ended)
    throw InputError(at(run.last_line), "the end of the log",
                     "the line \"Avg bus bandwidth\", which ends a complete log");
  if (run.points.empty())
    throw InputError(where, run.unmeasured ? "only N/A as times" : "no results",
                     run.unmeasured
                         ? fmt::format("times in the {} columns", options.in_place ? "in-place" : "out-of-place")
                         : "a table of nccl-tests with a row for each size");
  curve.device = run.device;
  curve.dtype = run.dtype;
  curve.points = run.points;
  name_curve(run, file, options, curve);
  return curve;
}

// Gives different names to curves of the same test, which may run twice in a log.
void tell_apart(std::vector<CollectiveCurve>& curves) {
  std::map<std::string, int> seen;
  for (CollectiveCurve& curve : curves)
    if (const int times = ++seen[curve.id]; times > 1) curve.id += fmt::format("-{}", times);
}

CollectiveLog log_of(const std::vector<Run>& runs, const std::string& file, const LogOptions& options) {
  const CollectiveKind* wanted = wanted_kind(options);
  if (runs.empty())
    throw InputError({file, ""}, "not a log of nccl-tests",
                     "the output of all_reduce_perf or another test, printed or written with -J");
  CollectiveLog log;
  std::string there;
  for (const Run& run : runs) {
    const bool other = wanted != nullptr && (run.kind != nullptr ? run.kind != wanted : !can_be(run, *wanted));
    if (!other) {
      log.curves.push_back(curve_of(run, file, options));
      continue;
    }
    std::string what = run.reduces ? "of a reduction" : "without a reduction";
    if (run.kind != nullptr) {
      what = run.kind->name;
    } else if (!has_ratio_of(run, *wanted)) {
      what += fmt::format(" whose busbw is {:.3g} times its algbw", run.fastest.ratio());
    }
    log.left_out.push_back(fmt::format("{}, line {}", what, run.first_line));
    there += (there.empty() ? "" : "; ") + log.left_out.back();
  }
  if (log.curves.empty())
    throw InputError({file, ""}, (runs.size() == 1 ? "a test: " : "tests: ") + there, "one of " + options.collective);
  tell_apart(log.curves);
  return log;
}

// What -J writes: src/util.cu of nccl-tests, version 1.
Run parse_json_log(const std::string& text, const std::string& file, bool in_place) {
  const Json json = parse_json(text, file);
  const auto need = [&](const Json& object, const char* key, const std::string& pointer) -> const Json& {
    if (!object.is_object() || !object.contains(key))
      throw InputError({file, pointer + "/" + key}, "nothing", "the output of nccl-tests with -J");
    return object[key];
  };
  const auto need_array = [&](const Json& object, const char* key, const std::string& pointer) -> const Json& {
    const Json& array = need(object, key, pointer);
    if (!array.is_array()) throw InputError({file, pointer + "/" + key}, describe(array), "an array");
    return array;
  };
  Run run;
  run.ended = true;
  const Json& config = need(json, "config", "");
  if (const auto args = json.find("args"); args != json.end() && args->is_array() && !args->empty())
    if (const Json& program = args->front(); program.is_string())
      run.kind = kind_in(std::filesystem::path(program.get<std::string>()).filename().string());
  // JSON has one entry for each process, however many ranks it has.
  std::int64_t each = 1;
  for (const char* of : {"nthreads", "ngpus"}) {
    constexpr std::int64_t kMost = 1 << 20;  // far more than a process can have
    const Json& count = need(config, of, "/config");
    if (!count.is_number_integer() || count < 1 || count > kMost)
      throw InputError({file, std::string("/config/") + of}, describe(count),
                       fmt::format("an integer from 1 to {}", kMost));
    each = std::min(each * count.get<std::int64_t>(), kMost);
  }
  std::set<std::int64_t> firsts;
  for (const Json& device : need_array(config, "devices", "/config")) {
    const std::string pointer = fmt::format("/config/devices/{}", run.ranks.size());
    const auto text_of = [&](const char* key) {
      if (!device.is_object()) throw InputError({file, pointer}, describe(device), "an object");
      const Json value = device.value(key, Json(""));
      if (!value.is_string()) throw InputError({file, pointer + "/" + key}, describe(value), "a text");
      return value.get<std::string>();
    };
    const std::string host = text_of("hostname");
    run.device = text_of("device_info");
    run.ranks.push_back({std::ssize(run.ranks), 0, each, host});
    const Json rank = device.value("rank", Json(nullptr));
    if (rank.is_number_integer() && !firsts.insert(rank.get<std::int64_t>()).second)
      throw InputError({file, pointer + "/rank"}, fmt::format("rank {} twice", rank.dump()),
                       "each rank once: separate processes do not measure a collective together");
  }
  const char* const column = in_place ? "in_place" : "out_of_place";
  std::size_t number = 0;
  for (const Json& result : need_array(json, "results", "")) {
    const std::string pointer = fmt::format("/results/{}", number++), of_column = pointer + "/" + column;
    const Json &size = need(result, "size", pointer), &of = need(result, column, pointer);
    run.unmeasured = run.unmeasured || of.is_null();
    if (of.is_null()) continue;
    const Json& time = of.contains("cpu_time") ? of["cpu_time"] : need(of, "time", of_column);
    if (!time.is_number() || !size.is_number() || !(time.get<double>() > 0))
      throw InputError({file, of_column + "/time"}, describe(time), "a time in microseconds");
    const auto number_at = [&](const char* key) -> std::optional<double> {
      const auto at = of.find(key);
      return at != of.end() && at->is_number() ? at->get<double>() : std::optional<double>();
    };
    if (result.contains("type") && result["type"].is_string()) run.dtype = result["type"];
    run.add({size, 1e-6 * time.get<double>(), 0}, number_at("nwrong"), number_at("alg_bw"), number_at("bus_bw"), 0,
            {file, of_column});
  }
  return run;
}

}  // namespace

CollectiveLog parse_nccl_log(const std::string& text, const std::string& file, const LogOptions& options) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string::npos && text[first] == '{';
  return log_of(is_json ? std::vector{parse_json_log(text, file, options.in_place)}
                        : TableParser(file, options.in_place).parse(text),
                file, options);
}

CollectiveLog read_nccl_log(const std::string& file, const LogOptions& options) {
  return parse_nccl_log(read_file(file, "a log of nccl-tests"), file, options);
}

}  // namespace orrery
