#include "realrun/bench/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

#include "sim/base/digest.h"
#include "sim/base/error.h"
#include "sim/base/json_reader.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

using nlohmann::json;

// A day, optionally with a time and an offset from UTC: what SQLite's datetime() understands.
bool is_iso_8601(const std::string& text) {
  static const std::regex kForm(
      R"((\d{4})-(\d{2})-(\d{2})(?:[T ](\d{2}):(\d{2})(?::(\d{2})(?:\.\d{1,9})?)?(?:Z|[+-](\d{2}):(\d{2}))?)?)");
  constexpr std::size_t kLongest = 40;
  std::smatch parts;
  if (text.size() > kLongest || !std::regex_match(text, parts, kForm)) return false;
  const auto part = [&](std::size_t i) { return parts[i].matched ? std::stoi(parts[i].str()) : 0; };
  const std::chrono::year_month_day day(std::chrono::year(part(1)), std::chrono::month(static_cast<unsigned>(part(2))),
                                        std::chrono::day(static_cast<unsigned>(part(3))));
  constexpr int kHours = 24, kMinutes = 60, kSeconds = 60, kFarthestOffset = 14;
  return day.ok() && part(4) < kHours && part(5) < kMinutes && part(6) < kSeconds && part(7) <= kFarthestOffset &&
         part(8) < kMinutes;
}

class Reader {
 public:
  Reader(const json& document, const std::string& file) : document_(document), file_(file) {}

  BenchmarkRun read() {
    if (!document_.is_object() || !document_.contains("context") || !document_.contains("benchmarks"))
      fail("", document_, "the JSON of a Google Benchmark run: an object with \"context\" and \"benchmarks\"");
    const json& context = document_["context"];
    const json& benchmarks = document_["benchmarks"];
    if (!context.is_object()) fail("/context", context, "an object");
    if (!benchmarks.is_array()) fail("/benchmarks", benchmarks, "an array");
    run_.file = file_;
    run_.digest = digest_text(digest_of(json_text(document_)));
    for (const auto& [key, value] : context.items()) {
      if (value.is_structured()) continue;  // caches, load averages
      run_.context.emplace_back(key, value.is_string() ? value.get<std::string>() : json_text(value));
    }
    run_.date = run_.fact("date");
    if (context.contains("date") && !is_iso_8601(run_.date))
      fail("/context/date", context["date"], "a date by ISO 8601, such as 2026-01-02T03:04:05+00:00");
    bool aggregates = false;
    for (std::size_t i = 0; i < benchmarks.size(); ++i) {
      at_ = fmt::format("/benchmarks/{}", i);
      if (!benchmarks[i].is_object()) fail(at_, benchmarks[i], "an object");
      if (benchmarks[i].value("run_type", json("iteration")) == "aggregate") {
        aggregates = true;
        continue;
      }
      read_entry(benchmarks[i]);
    }
    if (run_.series.empty() && aggregates)
      fail("/benchmarks", benchmarks,
           "repetitions (the file has aggregates only: run it without report_aggregates_only)");
    return std::move(run_);
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const json& found, const std::string& expected) const {
    throw InputError({file_, pointer}, describe(found), expected);
  }

  std::string text(const json& entry, const char* key) const {
    const json value = entry.value(key, json());
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) fail(at_ + "/" + key, value, "a name");
    return value;
  }
  double number(const json& entry, const char* key) const {
    const json value = entry.value(key, json());
    if (!value.is_number() || !(value.get<double>() >= 0)) fail(at_ + "/" + key, value, "a number of at least 0");
    return value;
  }
  double unit(const json& entry) const {
    const json value = entry.value("time_unit", json());
    static const std::map<std::string, double> kUnits{{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
    const auto known = value.is_string() ? kUnits.find(value.get<std::string>()) : kUnits.end();
    if (known == kUnits.end()) fail(at_ + "/time_unit", value, "\"ns\", \"us\", \"ms\" or \"s\"");
    return known->second;
  }

  // Limits ensure that ratios of times, and their powers, are finite.
  void check_time(const std::string& pointer, double seconds) const {
    constexpr double kLeast = 1e-18, kMost = 1e9;
    if (!(seconds >= kLeast && seconds <= kMost)) fail(pointer, seconds, "a time from 1e-18 to 1e9 seconds");
  }

  void read_entry(const json& entry) {
    const std::string name = text(entry, entry.contains("run_name") ? "run_name" : "name");
    const auto [place, is_new] = index_.try_emplace(name, run_.series.size());
    if (is_new) run_.series.emplace_back().name = name;
    Series& series = run_.series[place->second];
    const auto says = [&](const char* what) { return name.find(what) != std::string::npos; };
    series.by_real_time = says("/real_time") || says("/manual_time");
    if (entry.value("error_occurred", json()) == true) {
      const json message = entry.value("error_message", json());
      series.error = message.is_string() ? message.get<std::string>() : "failed";
      return;
    }
    const double seconds = unit(entry), real = number(entry, "real_time") * seconds;
    const double cpu = number(entry, "cpu_time") * seconds, iterations = number(entry, "iterations");
    constexpr double kMostIterations = 1e15;  // of one nanosecond each: two weeks
    if (!(iterations <= kMostIterations)) fail(at_ + "/iterations", iterations, "a count of at most 1e15");
    Repetition repetition{real, cpu, static_cast<std::int64_t>(iterations), {}};
    check_time(at_ + (series.by_real_time ? "/real_time" : "/cpu_time"), series.seconds(repetition));
    for (std::size_t y = 0; y < kYardsticks.size(); ++y) {
      if (!entry.contains(kYardsticks[y])) continue;
      double& yardstick = repetition.yardstick_seconds[y];
      yardstick = number(entry, kYardsticks[y].data());
      if (yardstick != 0) check_time(fmt::format("{}/{}", at_, kYardsticks[y]), yardstick);
    }
    series.repetitions.push_back(repetition);
    if (entry.contains("bytes")) series.bytes = number(entry, "bytes");
    if (entry.contains("flops")) series.flops = number(entry, "flops");
    if (entry.contains("percent_of_peak"))
      series.bound_seconds = number(entry, "percent_of_peak") / kPercent * series.seconds(repetition);
  }

  const json& document_;
  const std::string& file_;
  BenchmarkRun run_;
  std::map<std::string, std::size_t> index_;
  std::string at_;
};

}  // namespace

std::string BenchmarkRun::fact(std::string_view key) const {
  const auto at = std::find_if(context.begin(), context.end(), [&](const auto& f) { return f.first == key; });
  return at == context.end() ? std::string() : at->second;
}

bool BenchmarkRun::has_cold_caches() const { return fact("cache_state") == kColdCaches; }

const Series* BenchmarkRun::find(std::string_view name) const {
  const auto at = std::find_if(series.begin(), series.end(), [&](const Series& s) { return s.name == name; });
  return at == series.end() ? nullptr : &*at;
}

BenchmarkRun read_run(const std::string& path) {
  return Reader(parse_json_file(path), path == "-" ? "<stdin>" : path).read();
}

BenchmarkRun parse_run(const std::string& text, const std::string& file) {
  return Reader(parse_json(text, file), file).read();
}

}  // namespace orrery::bench
