// Do the tables for people say what the same command's JSON says?
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <vector>

#include "tests/cli/command.h"

namespace orrery {
namespace {

// All numbers of a document, also those within its texts.
void append_numbers(const nlohmann::json& document, std::vector<double>& numbers) {
  static const std::regex kNumber(R"(\d+(\.\d+)?)");
  if (document.is_number()) {
    numbers.push_back(std::abs(document.get<double>()));
  } else if (document.is_string()) {
    const auto& text = document.get_ref<const std::string&>();
    for (std::sregex_iterator at(text.begin(), text.end(), kNumber), end; at != end; ++at)
      numbers.push_back(std::stod(at->str()));
  } else if (document.is_structured()) {
    for (const nlohmann::json& each : document) append_numbers(each, numbers);
  }
}

// A number as a table shows it: between these two, in SI units.
struct Shown {
  std::string text;
  double low, high;
};

std::vector<Shown> numbers_of(const std::string& line) {
  static const std::regex kShown(
      R"((^|[^\w.=])([-+]?(\d+)(\.(\d+))?(e[-+]?\d+)?)( ?(%|[GTMk]B/s|[KMGT]iB|ms|us|ns|[sBxhkMTGK])(?!\w))?)");
  static const std::map<std::string, double> kUnits{
      {"", 1},       {"%", 0.01},     {"s", 1},        {"ms", 1e-3},    {"us", 1e-6},    {"ns", 1e-9},
      {"B", 1},      {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB/s", 1e3},
      {"MB/s", 1e6}, {"GB/s", 1e9},   {"TB/s", 1e12},  {"x", 1},        {"h", 3600},     {"k", 1e3},
      {"M", 1e6},    {"G", 1e9},      {"T", 1e12},     {"K", 1024}};
  std::vector<Shown> found;
  for (std::sregex_iterator at(line.begin(), line.end(), kShown), end; at != end; ++at) {
    const std::smatch& m = *at;
    const double unit = kUnits.at(m[8].str()), exponent = m[6].length() > 0 ? std::stod(m[6].str().substr(1)) : 0;
    const double value = std::abs(std::stod(m[2].str())) * unit;
    const double half = 0.51 * unit * std::pow(10, exponent - static_cast<double>(m[5].length()));
    found.push_back({m[0].str(), value - half, value + half});
  }
  return found;
}

struct Case {
  const char* name;
  const char* command;
  // Members of the JSON: shares in the table are of these.
  std::vector<std::string> wholes = {};
  // A table may also say a number of the JSON times one of these: its columns or labels name the unit.
  std::vector<double> scales = {};
  // Lines that say something else: a regular expression.
  const char* except = "^$";
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class Tables : public testing::TestWithParam<Case> {};

TEST_P(Tables, SayWhatTheirJsonSays) {
  const Case& c = GetParam();
  const Workplace place;
  const std::string command = c.command;
  const CommandResult table = place.orrery(command), written = place.orrery(command + " --json told.json");
  ASSERT_EQ(table.code, 0) << table.err;
  ASSERT_EQ(written.code, 0) << written.err;
  const nlohmann::json document = nlohmann::json::parse(place.read("told.json"));
  std::vector<double> all;
  append_numbers(document, all);
  const std::size_t plain = all.size();
  for (const std::string& whole : c.wholes) {
    const double of = document.at(nlohmann::json::json_pointer(whole)).get<double>();
    for (std::size_t i = 0; i < plain; ++i) {
      all.push_back(all[i] / of);
      all.push_back(std::abs(all[i] / of - 1));
    }
  }
  for (const double scale : c.scales)
    for (std::size_t i = 0; i < plain; ++i) all.push_back(all[i] * scale);
  std::sort(all.begin(), all.end());
  const std::regex except(c.except);
  std::istringstream lines(table.out);
  std::size_t numbers = 0;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, except)) continue;
    for (const Shown& shown : numbers_of(line)) {
      ++numbers;
      const auto near = std::lower_bound(all.begin(), all.end(), shown.low * (1 - 1e-9) - 1e-300);
      EXPECT_TRUE(near != all.end() && *near <= shown.high * (1 + 1e-9)) << shown.text << " in: " << line;
    }
  }
  EXPECT_GT(numbers, 10u);
}

INSTANTIATE_TEST_SUITE_P(
    All, Tables,
    testing::Values(
        Case{"Collective", "collective all_reduce --node dgx-h100 --nodes 4 -e 64M", {}, {1e6, 1e-9}, "^#"},
        Case{"AllToAll", "collective all_to_all --node dgx-h100 --nodes 2 -e 64M --engine both", {}, {1e6, 1e-9}, "^#"},
        Case{"Simulate",
             "simulate mixtral-8x7b-64-h100",
             {"/step_seconds", "/memory/capacity_bytes"},
             {1e-12},
             R"(one published peak in ten|^ {8,}\d)"},  // a row of stages sums what is exposed
        Case{"Events",
             "simulate straggler --engine des",
             {"/step_seconds", "/memory/capacity_bytes", "/discrete_event/uncontended_step_seconds"},
             {1e-12},
             "one published peak in ten|more, .* together"},
        Case{"Compare",
             "compare small-gpt small-gpt --set-b plan.tensor_parallel=4",
             {"/a/step_seconds", "/a/tokens_per_second_per_device", "/a/mfu", "/a/memory/peak_bytes"},
             {1e-12}},
        Case{"Validate", "validate --source vtrain --points"}, Case{"Pack", "pack --generate 1000 --context 8192"}),
    [](const testing::TestParamInfo<Case>& i) { return i.param.name; });

}  // namespace
}  // namespace orrery
