// Do the tables for people say what the same command's JSON says?
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "sim/report/format.h"
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

// The lines of a table from the heading with these words on: cells are two spaces or more apart.
std::vector<std::vector<std::string>> rows_under(const std::string& text, const std::string& heading) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(heading) != line.npos) inside = true;
    if (inside && !line.starts_with("  ")) break;
    if (!inside) continue;
    std::vector<std::string>& cells = rows.emplace_back();
    for (std::size_t at = line.find_first_not_of(' '); at < line.size();) {
      const std::size_t end = std::min(line.find("  ", at), line.size());
      cells.push_back(line.substr(at, end - at));
      at = line.find_first_not_of(' ', end);
    }
  }
  return rows;
}

// A column: its heading, and how its cell follows from the row's member in the JSON.
struct Column {
  const char* heading;
  std::function<std::string(const nlohmann::json&)> cell;
};

struct Columns {
  const char* name;
  const char* command;
  const char* heading;  // words of the heading
  const char* rows;     // the rows in the JSON
  std::vector<Column> columns;
};
void PrintTo(const Columns& c, std::ostream* out) { *out << c.name; }

std::function<std::string(const nlohmann::json&)> member(const char* pointer, std::string (*text)(double) = nullptr,
                                                         double scale = 1) {
  return [=](const nlohmann::json& row) {
    const nlohmann::json& value = row.at(nlohmann::json::json_pointer(pointer));
    if (text != nullptr) return text(scale * value.get<double>());
    return value.is_string() ? value.get<std::string>() : fmt::format("{:.0f}", value.get<double>());
  };
}
std::string two_digits(double value) { return fmt::format("{:.2f}", value); }
std::string rate_of_bytes(double value) { return rate_text(value) + "B/s"; }

class TableColumns : public testing::TestWithParam<Columns> {};

TEST_P(TableColumns, AreMembersOfTheJson) {
  const Columns& c = GetParam();
  const Workplace place;
  const std::string command = c.command;
  const bool flag = command.starts_with("show ");  // whose --json is a flag
  const CommandResult table = place.orrery(flag ? command : command + " --json told.json");
  ASSERT_EQ(table.code, 0) << table.err;
  const nlohmann::json document =
      nlohmann::json::parse(flag ? place.orrery(command + " --json").out : place.read("told.json"));
  const nlohmann::json& rows = document.at(nlohmann::json::json_pointer(c.rows));
  const std::vector<std::vector<std::string>> shown = rows_under(table.out, c.heading);
  ASSERT_GT(shown.size(), rows.size()) << table.out;
  std::size_t met = 0;
  for (std::size_t h = 0; h < shown.front().size(); ++h) {
    const auto column =
        std::ranges::find(c.columns, shown.front()[h], [](const Column& of) { return std::string(of.heading); });
    if (column == c.columns.end()) continue;
    ++met;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      // Columns before it have no empty cells; a number stands before the first heading of some tables.
      const std::size_t more = shown[i + 1].front() == std::to_string(i + 1) && shown.front()[0] != "bytes" ? 1 : 0;
      ASSERT_GT(shown[i + 1].size(), h + more);
      EXPECT_EQ(shown[i + 1][h + more], column->cell(rows[i])) << column->heading << " of row " << i;
    }
  }
  EXPECT_EQ(met, c.columns.size()) << table.out;
}

std::vector<Column> collective_columns(std::vector<const char*> engines) {
  std::vector<Column> columns{
      {"bytes", member("/bytes")}, {"algorithm", member("/algorithm")}, {"protocol", member("/protocol")}};
  static const std::map<std::string, std::array<std::pair<std::string, std::string>, 3>> kOf{
      {"analytical",
       {{{"analytical us", "/analytical/seconds"},
         {"analytical algbw", "/analytical/algorithm_bytes_per_second"},
         {"analytical busbw", "/analytical/bus_bytes_per_second"}}}},
      {"des",
       {{{"des us", "/des/seconds"},
         {"des algbw", "/des/algorithm_bytes_per_second"},
         {"des busbw", "/des/bus_bytes_per_second"}}}}};
  for (const char* engine : engines) {
    const auto& of = kOf.at(engine);
    columns.push_back({of[0].first.c_str(), member(of[0].second.c_str(), two_digits, 1e6)});
    for (const std::size_t rate : {1u, 2u})
      columns.push_back({of[rate].first.c_str(), member(of[rate].second.c_str(), two_digits, 1e-9)});
  }
  if (engines.size() == 2)
    columns.push_back({"difference", [](const nlohmann::json& row) {
                         const double percent =
                             100 *
                             (row["des"]["seconds"].get<double>() / row["analytical"]["seconds"].get<double>() - 1);
                         return fmt::format("{:.2f} %", std::abs(percent) < 0.005 ? 0.0 : percent);
                       }});
  return columns;
}

const std::vector<Column> kPlanColumns{{"dp", member("/plan/data_parallel")},
                                       {"micro-batches", member("/micro_batches")},
                                       {"step", member("/step_seconds", seconds_text)},
                                       {"tokens/s/device", member("/tokens_per_second_per_device", rate_text)},
                                       {"MFU", member("/mfu", percent_text)},
                                       {"memory", member("/memory/peak_bytes", bytes_text)},
                                       {"up to", member("/memory/upper_bytes", bytes_text)}};
INSTANTIATE_TEST_SUITE_P(
    All, TableColumns,
    testing::Values(Columns{"Collective", "collective all_gather --node dgx-h100 --nodes 2 -b 8 -e 1G --engine both",
                            "algorithm  protocol", "/points", collective_columns({"analytical", "des"})},
                    Columns{"Groups", "collective reduce_scatter --node dgx-a100 --nodes 4 --groups 8 -b 1M -e 1G -f 4",
                            "algorithm  protocol", "/points", collective_columns({"analytical", "des"})},
                    Columns{"Analytical", "collective all_reduce --node dgx-h100 -b 1K -e 1G --engine analytical",
                            "algorithm  protocol", "/points", collective_columns({"analytical"})},
                    Columns{"LinkKinds",
                            "show links straggler",
                            "rate of each",
                            "",
                            {{"kind", member("/kind")},
                             {"links", member("/links")},
                             {"for example", member("/example")},
                             {"rate of each",
                              [](const nlohmann::json& row) {
                                const double least = row["least_bytes_per_second"],
                                             greatest = row["greatest_bytes_per_second"];
                                return rate_of_bytes(least) +
                                       (greatest > least ? " to " + rate_of_bytes(greatest) : "");
                              }}}},
                    Columns{"Links",
                            "show links dgx-h100 'node0.*'",
                            "link  ",
                            "",
                            {{"link", member("/name")},
                             {"kind", member("/kind")},
                             {"rate", member("/bytes_per_second", rate_of_bytes)}}},
                    Columns{"Search", "search small-gpt --top 8", "micro-batches", "/plans", kPlanColumns}),
    [](const testing::TestParamInfo<Columns>& i) { return i.param.name; });

// Cells of each line of CSV by RFC 4180.
std::vector<std::vector<std::string>> rows_of_csv(const std::string& text) {
  std::vector<std::vector<std::string>> rows;
  bool quoted = false, begin = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (begin) rows.emplace_back(1);
    begin = false;
    std::vector<std::string>& cells = rows.back();
    if (text[i] == '"' && quoted && text[i + 1] == '"')
      cells.back() += text[i++];
    else if (text[i] == '"')
      quoted = !quoted;
    else if (text[i] == ',' && !quoted)
      cells.emplace_back();
    else if (text[i] == '\n' && !quoted)
      begin = true;
    else
      cells.back() += text[i];
  }
  return rows;
}

// Every command that writes both: rows of CSV are as long as their heading, and each cell is the JSON's figure.
struct Csv {
  const char* name;
  const char* command;
  std::vector<const char*> rows;                   // in the JSON, one list behind the other
  std::map<std::string, std::string> places = {};  // of columns that are not called as their members
  std::size_t least_met = 5;                       // columns
};
void PrintTo(const Csv& c, std::ostream* out) { *out << c.name; }

class CsvOfCommands : public testing::TestWithParam<Csv> {};

TEST_P(CsvOfCommands, HasTheFiguresOfTheJson) {
  const Csv& c = GetParam();
  const Workplace place;
  const CommandResult run = place.orrery(std::string(c.command) + " --json told.json --csv told.csv");
  ASSERT_EQ(run.code, 0) << run.err;
  const nlohmann::json document = nlohmann::json::parse(place.read("told.json"));
  std::vector<nlohmann::json> expected;
  for (const char* list : c.rows) {
    const nlohmann::json& rows = document.at(nlohmann::json::json_pointer(list));
    if (rows.is_array())
      expected.insert(expected.end(), rows.begin(), rows.end());
    else
      expected.push_back(rows);
  }
  const std::vector<std::vector<std::string>> rows = rows_of_csv(place.read("told.csv"));
  ASSERT_EQ(rows.size(), expected.size() + 1);
  std::set<std::string> met;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(rows[i + 1].size(), rows[0].size());
    for (std::size_t k = 0; k < rows[0].size(); ++k) {
      const std::string& column = rows[0][k];
      const auto found = c.places.find(column);
      const nlohmann::json::json_pointer at(found != c.places.end() ? found->second : "/" + column);
      const nlohmann::json* value = expected[i].contains(at)                        ? &expected[i].at(at)
                                    : document.is_object() && document.contains(at) ? &document.at(at)
                                                                                    : nullptr;
      if (value != nullptr && value->is_object() && value->contains("value")) value = &value->at("value");
      if (value == nullptr || value->is_structured()) continue;
      met.insert(column);
      const std::string& cell = rows[i + 1][k];
      if (value->is_number()) {
        EXPECT_EQ(std::stod(cell), value->get<double>()) << column << " of row " << i;
      } else if (value->is_null()) {
        EXPECT_EQ(cell, "") << column << " of row " << i;
      } else {
        EXPECT_EQ(cell, value->is_string() ? value->get<std::string>() : value->dump()) << column << " of row " << i;
      }
    }
  }
  EXPECT_GE(met.size(), c.least_met) << testing::PrintToString(met);
}

INSTANTIATE_TEST_SUITE_P(
    All, CsvOfCommands,
    testing::Values(Csv{"Collective",
                        "collective all_reduce --node dgx-h100 --nodes 2 -b 1M -e 64M",
                        {"/points"},
                        {{"analytical_seconds", "/analytical/seconds"},
                         {"analytical_algorithm_bytes_per_second", "/analytical/algorithm_bytes_per_second"},
                         {"analytical_bus_bytes_per_second", "/analytical/bus_bytes_per_second"},
                         {"des_seconds", "/des/seconds"},
                         {"des_algorithm_bytes_per_second", "/des/algorithm_bytes_per_second"},
                         {"des_bus_bytes_per_second", "/des/bus_bytes_per_second"}},
                        12},
                    Csv{"Search",
                        "search small-gpt --top 5 --front 1.5",
                        {"/plans", "/front"},
                        {{"tensor_parallel", "/plan/tensor_parallel"},
                         {"pipeline_parallel", "/plan/pipeline_parallel"},
                         {"micro_batch_size", "/plan/micro_batch_size"},
                         {"zero_stage", "/plan/zero_stage"},
                         {"recompute", "/plan/recompute"},
                         {"data_parallel", "/plan/data_parallel"},
                         {"memory_peak_bytes", "/memory/peak_bytes"},
                         {"memory_upper_bytes", "/memory/upper_bytes"},
                         {"memory_fits", "/memory/fits"},
                         {"loses_most_by", "/loses_most_by"}},
                        12},
                    Csv{"Pack", "pack --generate 500 --context 4096 --policy best_fit --policy concat", {""}, {}, 15},
                    Csv{"Plan", "plan llama-3-70b-60-days", {"/candidates"}, {}, 5},
                    Csv{"Simulate",
                        "simulate offload",
                        {""},
                        {{"memory_peak_bytes", "/memory/peak_bytes"},
                         {"memory_capacity_bytes", "/memory/capacity_bytes"},
                         {"memory_fits", "/memory/fits"},
                         {"memory_verdict", "/memory/verdict"},
                         {"node_host_bytes", "/memory/host/node_bytes"},
                         {"node_host_capacity_bytes", "/memory/host/node_capacity_bytes"},
                         {"expected_step_seconds_low", "/expected_step_seconds/low"},
                         {"expected_step_seconds_high", "/expected_step_seconds/high"},
                         {"matmul_seconds", "/time/matmul_seconds"},
                         {"bubble_seconds", "/time/bubble_seconds"},
                         {"optimizer_seconds", "/time/optimizer_seconds"},
                         {"parameter_bytes", "/memory/parts/parameter_bytes"},
                         {"activation_bytes", "/memory/parts/activation_bytes"},
                         {"framework_bytes", "/memory/parts/framework_bytes"},
                         {"host_bytes", "/memory/parts/host_bytes"}},
                        28}),
    [](const testing::TestParamInfo<Csv>& i) { return i.param.name; });

}  // namespace
}  // namespace orrery
