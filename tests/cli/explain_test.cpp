// Do the numbers that --explain prints recompute to what they explain, whatever is asked for? And do the tables of
// measured collectives say what their curves say? In this process: topics are many, and each is quick.
#include "cli/explain.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numbers>
#include <regex>
#include <set>
#include <sstream>

#include "cli/measured_tables.h"
#include "sim/base/error.h"
#include "sim/cost/step_calibration.h"
#include "sim/report/format.h"
#include "sim/report/table.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A number as it is printed: the values that round to it.
struct Range {
  double low = 0, high = 0;

  bool holds(double value) const { return value >= low - slack() && value <= high + slack(); }
  bool meets(const Range& other) const { return low - slack() <= other.high && other.low - slack() <= high; }
  double middle() const { return (low + high) / 2; }
  double slack() const { return 1e-9 * std::max(std::abs(low), std::abs(high)); }
};
Range operator*(Range a, Range b) { return {a.low * b.low, a.high * b.high}; }
Range operator/(Range a, Range b) { return {a.low / b.high, a.high / b.low}; }
Range operator+(Range a, Range b) { return {a.low + b.low, a.high + b.high}; }
std::ostream& operator<<(std::ostream& out, const Range& r) { return out << r.low << " to " << r.high; }

// "1.234 ms", "56.81 GiB", "12.3 %", "-3", "1.2340e+12".
Range range_of(const std::string& text) {
  static const std::map<std::string, double> kUnits{{"", 1},         {"%", 0.01},     {"s", 1},        {"ms", 1e-3},
                                                    {"us", 1e-6},    {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                                                    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"k", 1e3},      {"M", 1e6},
                                                    {"G", 1e9},      {"T", 1e12},     {"P", 1e15}};
  std::size_t end = 0;
  const double number = std::stod(text, &end);
  const std::string digits = text.substr(0, end), unit = end < text.size() ? text.substr(end + 1) : "";
  const double scale = kUnits.at(unit);
  const std::size_t e = digits.find('e'), dot = digits.find('.');
  const std::size_t places = dot == digits.npos ? 0 : std::min(e, digits.size()) - dot - 1;
  const double exponent = e == digits.npos ? 0 : std::stod(digits.substr(e + 1));
  const double half = 0.5 * std::pow(10, exponent - static_cast<double>(places));
  return {(number - half) * scale, (number + half) * scale};
}

constexpr const char* kTime = R"((-?[0-9.]+ (?:s|ms|us)))";
constexpr const char* kBytes = R"((-?[0-9.]+ [KMGTP]?i?B))";

// Returns the groups of `form` for each of its matches. In `form` TIME and BYTES stand for such texts.
using Groups = std::vector<std::string>;
std::vector<Groups> all_of(const std::string& text, const std::string& form) {
  static std::map<std::string, std::regex> known;
  auto found = known.find(form);
  if (found == known.end()) {
    std::string written = form;
    for (const auto& [mark, what] : {std::pair<std::string, const char*>("TIME", kTime), {"BYTES", kBytes}})
      for (std::size_t at = written.find(mark); at != written.npos; at = written.find(mark))
        written.replace(at, mark.size(), what);
    found = known.emplace(form, std::regex(written, std::regex::ECMAScript | std::regex::multiline)).first;
  }
  std::vector<Groups> all;
  for (std::sregex_iterator at(text.begin(), text.end(), found->second), end; at != end; ++at)
    all.emplace_back(std::next(at->begin()), at->end());
  return all;
}
Groups the_only(const std::string& text, const std::string& form) {
  const std::vector<Groups> all = all_of(text, form);
  if (all.size() != 1) throw std::runtime_error(fmt::format("{} times, not once: {}\nin: {}", all.size(), form, text));
  return all.front();
}

struct Explained {
  Simulator simulator;
  std::unique_ptr<Simulation> simulation;

  explicit Explained(const char* name) {
    ScenarioSource source;
    const nlohmann::json document = load_scenario_document(name, {}, source);
    simulation = std::make_unique<Simulation>(simulator.evaluate(document, source, {.ops = true}));
  }
  std::string operator()(const std::string& topic) {
    return explain(topic, *simulation, [&](const Scenario& other) { return simulator.evaluate(other, {.ops = true}); });
  }
  const Report& report() const { return simulation->report; }
  const TimeBreakdown& time() const { return report().bounding().time; }
};

class Explanations : public testing::TestWithParam<const char*> {
 protected:
  Explained& about() const {
    static std::map<std::string, std::unique_ptr<Explained>> known;
    std::unique_ptr<Explained>& found = known[GetParam()];
    if (!found) found = std::make_unique<Explained>(GetParam());
    return *found;
  }
};

Range exactly(double value) { return {value, value}; }

// Whatever is listed has an explanation that says something, the same under each of its names.
TEST_P(Explanations, EveryNameHasOne) {
  Explained& of = about();
  for (const std::string& name : explained_names()) {
    if (name == "memory_plan") continue;  // of a program of its own
    try {
      EXPECT_GT(of(name).size(), 10u) << name;
    } catch (const InputError& error) {  // a topic of other plans
      EXPECT_EQ(error.where().file, "--explain") << name;
      EXPECT_THAT(error.expected(), HasSubstr("a plan")) << name;
    }
  }
  for (const TimeTerm& term : time_terms())
    for (const std::string& name : {term.label, term.key}) EXPECT_EQ(of(name), of(term.name)) << name;
  for (const MemoryPart& part : memory_parts())
    for (const std::string& name : {part.label, part.key}) EXPECT_EQ(of(name), of(part.name)) << name;
  for (const Figure& figure : of.report().figures) {
    const std::string text = of(figure.kind->key), head = std::string(figure.kind->key) + ": ";
    if (text.starts_with(head)) {  // or a topic of that name says more
      EXPECT_EQ(text, head + figure_text(figure) + ", " + figure.kind->explanation + "\n");
    }
  }
  const auto same = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) EXPECT_EQ(of(name), of(*names.begin())) << name;
  };
  same({"step", "step time", "step_seconds", "bound by", "bound_by", "total"});
  same({"tokens/s", "tokens/s per device", "sequences/s", "tokens_per_second"});
  same({"mfu", "MFU", "MFU, full attention", "model TFLOP/s per device"});
  same({"hfu", "HFU"});
  same({"memory", "peak", "memory_peak_bytes"});
  same({"interval", "80 %"});
  // Every line of the head, by the label that is printed.
  std::istringstream head(report_table(of.report(), {}, {}));
  std::size_t labels = 0;
  for (std::string line; std::getline(head, line) && line.starts_with("  "); ++labels) {
    const std::string label = line.substr(2, line.find("  ", 2) - 2);
    if (label != "host memory") {  // that it is tight: a line of the head, and none of the table of memory
      EXPECT_FALSE(of(label).empty()) << label;
    }
  }
  EXPECT_GE(labels, 10u);
  for (const char* none : {"steps", "layer.forward", "fc"}) EXPECT_THROW(of(none), InputError) << none;
}

TEST_P(Explanations, HeadLinesAreQuotientsOfTheirNumbers) {
  Explained& of = about();
  const Report& r = of.report();
  const Range devices = exactly(static_cast<double>(r.devices));
  for (const auto& [topic, value] : {std::pair("mfu", r.mfu), {"hfu", r.hfu}}) {
    const std::string text = of(topic);
    const Range said = range_of(the_only(text, "^(?:MFU|HFU): ([0-9.]+ %)")[0]);
    const Groups m = the_only(text, R"(^  = ([0-9.e+]+) / \(TIME x (\d+) x ([0-9.]+) TFLOP/s\)$)");
    EXPECT_EQ(m[2], std::to_string(r.devices));
    EXPECT_TRUE(range_of(m[1]).holds(r.step_seconds)) << text;
    EXPECT_TRUE(said.holds(value)) << text;
    EXPECT_TRUE((range_of(m[0]) / (range_of(m[1]) * devices * range_of(m[3]) * exactly(1e12))).meets(said)) << text;
  }
  EXPECT_TRUE(
      range_of(the_only(of("mfu"), R"(appendix B\): [0-9.e+]+ FLOPs, ([0-9.]+ %))")[0]).holds(r.mfu_full_attention));
  const std::string rates = of("tokens/s");
  const Groups said = the_only(
      rates,
      R"(^tokens/s: ([0-9.]+(?: [kMGT])?), ([0-9.]+(?: [kMGT])?) per device; sequences/s: ([0-9.]+(?: [kMGT])?)$)");
  const Groups m =
      the_only(rates, R"(= ([0-9]+) tokens in ([0-9]+) sequences / TIME; per device: divided by (\d+) devices)");
  EXPECT_TRUE((range_of(m[0]) / range_of(m[2])).meets(range_of(said[0]))) << rates;
  EXPECT_TRUE((range_of(m[1]) / range_of(m[2])).meets(range_of(said[2]))) << rates;
  EXPECT_TRUE((range_of(said[0]) / devices).meets(range_of(said[1]))) << rates;
  EXPECT_EQ(m[3], std::to_string(r.devices));
}

// The step's terms add up to it, those of communication to what is exposed, the parts of memory to the peak; each row
// is the report's.
TEST_P(Explanations, RowsAddUpToWhatIsExplained) {
  Explained& of = about();
  const Report& r = of.report();
  struct Sum {
    const char *topic, *head;
    double value;
    bool communication;
  };
  for (const Sum& sum :
       {Sum{"step", "^step time: TIME", r.step_seconds, false},
        Sum{"exposed communication", "^exposed communication: TIME", r.exposed_communication_seconds, true}}) {
    const std::string text = of(sum.topic);
    EXPECT_TRUE(range_of(the_only(text, sum.head)[0]).holds(sum.value)) << text;
    Range total;
    std::set<std::string> listed;
    for (const Groups& row : all_of(text, R"(^  \S.*? +TIME  (\w+)$)")) {
      const auto term = std::ranges::find(time_terms(), row[1], &TimeTerm::name);
      ASSERT_NE(term, time_terms().end()) << row[1];
      EXPECT_TRUE(range_of(row[0]).holds(term->of(of.time()))) << row[1];
      listed.insert(row[1]);
      total = total + range_of(row[0]);
    }
    EXPECT_TRUE(total.holds(sum.value)) << total << " in " << text;
    for (const TimeTerm& term : time_terms())
      EXPECT_EQ(listed.contains(term.name), term.of(of.time()) != 0 && (term.is_communication() || !sum.communication))
          << term.name;
  }
  const std::string memory = of("memory");
  const Groups head = the_only(memory, "^memory: BYTES of BYTES at the peak");
  EXPECT_TRUE(range_of(head[0]).holds(r.memory_peak_bytes));
  EXPECT_TRUE(range_of(head[1]).holds(r.memory_capacity_bytes));
  std::istringstream lines(memory);
  Range total;
  std::size_t parts = 0;
  for (std::string line; std::getline(lines, line) && !line.starts_with("host: ") && !line.starts_with("storage: ");) {
    const std::vector<Groups> row = all_of(line, "^  (\\S.*?)  +BYTES$");
    if (row.size() != 1) continue;
    const auto part = std::ranges::find(memory_parts(), row[0][0], &MemoryPart::label);
    if (part == memory_parts().end()) continue;  // behind the parts, of the allocator
    EXPECT_TRUE(range_of(row[0][1]).holds(part->of(r.fullest().memory))) << line;
    ++parts;
    if (part->place == Place::device) total = total + range_of(row[0][1]);
  }
  EXPECT_GE(parts, 4u);
  EXPECT_TRUE(total.holds(r.memory_peak_bytes)) << total << " in " << memory;
  for (const auto& [name, shared] : {std::pair("host", r.host_memory), {"storage", r.storage}}) {
    const std::vector<Groups> found =
        all_of(memory, fmt::format("^{}: BYTES of (?:BYTES|an unknown capacity) per node", name));
    ASSERT_EQ(found.size(), shared.peak_bytes > 0 ? 1u : 0u) << memory;
    if (found.empty()) continue;
    EXPECT_TRUE(range_of(found[0][0]).holds(shared.node_bytes));
    if (shared.capacity_bytes > 0) {
      EXPECT_TRUE(range_of(found[0][1]).holds(shared.capacity_bytes));
    }
  }
}

// What pieces hold, times how often, and the temporary rest add up to each category on the device; tensors have the
// bytes of their sizes.
TEST_P(Explanations, CategoriesAreTheirPieces) {
  static const std::map<std::string, double> kBytesOf{{"fp32", 4},  {"bf16", 2}, {"fp16", 2},  {"fp8", 1}, {"int32", 4},
                                                      {"int64", 8}, {"int8", 1}, {"uint8", 1}, {"bool", 1}};
  Explained& of = about();
  std::size_t products = 0, tensors = 0;
  for (const MemoryPart& part : category_parts()) {
    const double bytes = part.of(of.report().fullest().memory);
    const std::string text = of(part.name);
    EXPECT_TRUE(range_of(the_only(text, ": BYTES of the memory peak on the fullest stage")[0]).holds(bytes)) << text;
    Range total;
    for (const Groups& m : all_of(text, R"(^    \S.*? +BYTES x (\d+)(?: x ([0-9.]+) micro-batches)? +=  *BYTES$)")) {
      ++products;
      const Range product = range_of(m[0]) * exactly(std::stod(m[1])) *
                            (m[2].empty() ? exactly(1) : Range{std::stod(m[2]) * 0.9995, std::stod(m[2]) * 1.0005});
      EXPECT_TRUE(product.meets(range_of(m[3]))) << m[0] << " x " << m[1] << " x " << m[2] << " = " << m[3];
      total = total + range_of(m[3]);
    }
    for (const Groups& m : all_of(text, "^  temporary tensors +BYTES$")) total = total + range_of(m[0]);
    EXPECT_TRUE(total.holds(bytes)) << total << " in " << text;
    for (const Groups& m : all_of(text, R"(^      \S+ +BYTES  ([0-9 x]+) of (\w+)$)")) {
      const auto size = kBytesOf.find(m[2]);
      if (size == kBytesOf.end()) continue;
      ++tensors;
      double expected = size->second;
      std::istringstream sizes(m[1]);
      for (std::string word; sizes >> word;)
        if (word != "x") expected *= std::stod(word);
      EXPECT_TRUE(range_of(m[0]).holds(expected)) << m[0] << " for " << m[1] << " of " << m[2];
    }
  }
  EXPECT_GE(products, 4u);
  EXPECT_GE(tensors, 10u);
}

struct OpRow {
  std::string name;
  Range once, times, per_step, share;
  std::string rate, bound;
};
std::vector<OpRow> op_rows(const std::string& text) {
  std::vector<OpRow> rows;
  for (const Groups& m :
       all_of(text, R"(^  (\S.*?) +TIME +([0-9.e+]+) +(?:0 s|TIME) +([0-9.]+ %) *([0-9.]*)  (\S.*)?$)"))
    rows.push_back({m[0],
                    range_of(m[1]),
                    {std::stod(m[2]) * (1 - 1e-5), std::stod(m[2]) * (1 + 1e-5)},
                    m[3].empty() ? Range{} : range_of(m[3]),
                    range_of(m[4]),
                    m[5],
                    m[6]});
  return rows;
}

// Each op's row is its report's, and its numbers follow from one another.
TEST_P(Explanations, OpsAreThoseOfTheReport) {
  Explained& of = about();
  const Report& r = of.report();
  const std::vector<OpRow> rows = op_rows(op_table(*of.simulation));
  std::vector<const OpReport*> listed;
  for (const OpReport& op : r.ops)
    if (op.seconds > 0) listed.push_back(&op);
  ASSERT_EQ(rows.size(), listed.size()) << op_table(*of.simulation);
  std::set<std::string> asked;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const OpRow& row = rows[i];
    const OpReport& op = *listed[i];
    EXPECT_EQ(row.name, op.name);
    EXPECT_TRUE(row.once.holds(op.seconds)) << op.name;
    EXPECT_TRUE(row.times.holds(op.times_per_step)) << op.name;
    EXPECT_TRUE((row.once * row.times).meets(row.per_step)) << op.name;
    EXPECT_TRUE(row.per_step.holds(op.seconds * op.times_per_step)) << op.name;
    EXPECT_TRUE(row.share.holds(op.seconds * op.times_per_step / r.step_seconds)) << op.name << ' ' << row.share;
    EXPECT_EQ(row.rate.empty(), !(op.flops > 0)) << op.name;
    if (op.flops > 0) {
      EXPECT_TRUE(range_of(row.rate).holds(op.flops / op.seconds * 1e-12)) << op.name;
    }
    EXPECT_EQ(row.bound, op.bound) << op.name;
    if (!asked.insert(op.name).second) continue;
    const std::string text = of(op.name);  // its formula follows its row
    EXPECT_THAT(text, HasSubstr("  " + op.name)) << op.name;
    EXPECT_THAT(text, AllOf(HasSubstr("\nkernels: "), HasSubstr("\ncollectives in a node: "))) << op.name;
    EXPECT_THAT(text, ::testing::ContainsRegex("\n    [^ ]")) << op.name;
    // By its last part, too: at least as many ops.
    const std::string last = op.name.substr(op.name.rfind('.') + 1);
    if (std::ranges::none_of(time_terms(), [&](const TimeTerm& t) { return t.name == last; }) &&
        std::ranges::none_of(memory_parts(), [&](const MemoryPart& p) { return p.name == last; })) {
      EXPECT_GE(op_rows(of(last)).size(), op_rows(text).size()) << last;
    }
  }
}

// The text of a term says its share, and the ops that belong to it, the longest first. On one stage, the sum of kernels
// and of what collectives beside them cost makes the term.
TEST_P(Explanations, TermsAreTheirOps) {
  Explained& of = about();
  const Report& r = of.report();
  std::map<std::string, std::set<std::string>> of_term;
  // Rows of a stage with documents, micro-batch by micro-batch, add up to a little more than their term.
  const double rounding = of.simulation->scenario.workload.documents.empty() ? 1e-12 : 0.006;
  for (const TimeTerm& term : time_terms()) {
    const double seconds = term.of(of.time());
    const std::string text = of(term.name);
    const Groups head = the_only(text, "^[^\\n]*?: (?:0 s|TIME), ([0-9.]+ %) of the step$");
    if (seconds != 0) {
      EXPECT_TRUE(range_of(head[0]).holds(seconds)) << text;
    }
    EXPECT_TRUE(range_of(head[1]).holds(seconds / r.step_seconds)) << text;
    EXPECT_THAT(text, HasSubstr(term.definition));
    double before = 1e300;
    Range sum;
    for (const OpRow& row : op_rows(text)) {
      EXPECT_LE(row.per_step.low, before * (1 + 1e-9)) << text;
      before = row.per_step.high;
      sum = sum + row.per_step;
      of_term[row.name].insert(term.name);
    }
    for (const Groups& m : all_of(text, R"(overlap_slowdown of the calibration\), by (?:0 s|TIME) in all)"))
      EXPECT_TRUE((m[0].empty() ? sum : sum + range_of(m[0])).meets({seconds, seconds * (1 + rounding)})) << text;
    const bool of_kernels = term.name == "matmul" || term.name == "attention" || term.name == "memory_bound";
    if (of_kernels && seconds > 0) {
      EXPECT_THAT(text, HasSubstr("kernels are slower while collectives run")) << text;
    }
    if (term.name.starts_with("exposed_") && seconds > 0) {
      EXPECT_FALSE(op_rows(text).empty()) << text;
    }
  }
  // A name may be that of a product, of what is fused to it, and of both again in the backward.
  for (const OpReport& op : r.ops)
    if (op.seconds > 0) {
      EXPECT_LE(of_term[op.name].size(), 3u) << op.name << testing::PrintToString(of_term[op.name]);
    }
}

// The mean of the largest of n normal numbers, by integration.
double expected_largest(double n) {
  double mean = 0;
  constexpr double kStep = 1e-3;
  for (double x = -9; x < 9; x += kStep) {
    const double below = std::erfc(-x / std::numbers::sqrt2) / 2;
    mean += x * n * std::pow(below, n - 1) * std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi) * kStep;
  }
  return mean;
}

TEST_P(Explanations, SpecialTermsHaveTheirFormula) {
  Explained& of = about();
  const Program& program = *of.simulation->program;
  const Groups bubble = the_only(of("bubble"), R"(schedule of (\d+) micro-batches over (\d+) stages of (\d+) chunks)");
  EXPECT_EQ(bubble[0], std::to_string(program.schedule.micro_batches));
  EXPECT_EQ(bubble[1], std::to_string(program.stages.size()));
  EXPECT_EQ(bubble[2], std::to_string(program.schedule.chunks));
  EXPECT_TRUE(range_of(the_only(of("bubble"), R"(\(v m\) = ([0-9.]+) of)")[0])
                  .holds((std::stod(bubble[1]) - 1) / (std::stod(bubble[2]) * std::stod(bubble[0]))));
  const Groups host = the_only(
      of("host_issue"), "^(?:0 s|TIME) per kernel, (?:0 s|TIME) per collective, (?:0 s|TIME) per kernel of the update");
  const double per[]{program.runtime.host_seconds_per_op, program.runtime.host_seconds_per_collective,
                     program.runtime.host_seconds_per_update_op};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(host[i].empty() ? per[i] == 0 : range_of(host[i]).holds(per[i])) << i;
  EXPECT_EQ(of("host_issue").find("the host waits until the device has routed") != std::string::npos,
            program.runtime.reads_row_counts);
  EXPECT_EQ(program.runtime.reads_row_counts, of.simulation->scenario.model.has_experts());
  const Groups slowest = the_only(of("slowest_device"),
                                  R"(= ([0-9.]+) of products and attention: ([0-9.]+) x \(E\((\d+)\) - E\((\d+)\)\))");
  const double loss = std::stod(slowest[1]) *
                      std::max(0.0, expected_largest(std::stod(slowest[2])) - expected_largest(std::stod(slowest[3])));
  EXPECT_NEAR(std::stod(slowest[0]), loss, 1e-4 + 0.002 * loss);
  EXPECT_EQ(slowest[2], std::to_string(of.report().devices));
  const std::vector<Groups> interval = all_of(of("interval"), R"(= TIME to TIME, w = ([0-9.]+))");
  if (!of.report().expected) return;
  ASSERT_EQ(interval.size(), 1u);
  const double w = std::stod(interval[0][2]), step = of.report().step_seconds;
  EXPECT_NEAR(range_of(interval[0][0]).middle(), step * std::exp(-w), 2e-3 * step);
  EXPECT_NEAR(range_of(interval[0][1]).middle(), step * std::exp(w), 2e-3 * step * std::exp(w));
  EXPECT_TRUE(range_of(interval[0][0]).holds(of.report().expected->low_seconds));
  EXPECT_TRUE(range_of(interval[0][1]).holds(of.report().expected->high_seconds));
  // w is the stack's, times the factors and plus what is far.
  const std::string text = of("interval");
  double product = std::stod(the_only(text, "w = ([0-9.]+) for the stack")[0]);
  for (const Groups& m : all_of(text, "stack x ([0-9.]+) for borrowed curves")) product *= std::stod(m[0]);
  for (const Groups& m : all_of(text, "x ([0-9.]+) for mixtures of experts")) product *= std::stod(m[0]);
  for (const Groups& m : all_of(text, "x ([0-9.]+), no step of")) product *= std::stod(m[0]);
  for (const Groups& m : all_of(text, R"(\+ ([0-9.]+) for \d+ devices)")) product += std::stod(m[0]);
  EXPECT_NEAR(product, w, 3e-3);
}

INSTANTIATE_TEST_SUITE_P(All, Explanations,
                         testing::Values("llama-3-70b-512-h100", "offload", "mixtral-8x7b-64-h100", "small-gpt",
                                         "packed_documents"),
                         [](const testing::TestParamInfo<const char*>& i) {
                           std::string name = i.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// ---- measured collectives

MeasuredCurve curve_of(const std::string& id, std::int64_t nodes, double factor) {
  MeasuredCurve curve{.id = id,
                      .source = "a, \"source\"",
                      .method = "m",
                      .system = "s",
                      .gpu = "H100",
                      .network = "n",
                      .links = nodes > 1 ? "network" : "NVLink",
                      .calibration_class = nodes > 1 ? "C" : "B",
                      .kind = "all_reduce",
                      .algorithm = "automatic",
                      .ranks = 8 * nodes,
                      .nodes = nodes,
                      .not_fitted = {},
                      .unpredicted = {},
                      .points = {}};
  for (int i = 0; i < 4; ++i) {
    MeasuredPoint& p = curve.points.emplace_back();
    p.bytes = std::pow(32.0, i) * 1024;
    p.measured_seconds = 1e-5 * (i + 1);
    p.predicted.seconds = {p.measured_seconds * factor * (1 + 0.01 * i), p.measured_seconds * (factor - 0.2)};
  }
  return curve;
}

MeasuredCollectives some_measured() {
  MeasuredCollectives all;
  all.curves = {curve_of("one", 1, 1.1), curve_of("two", 2, 0.9), curve_of("three", 2, 1.3), curve_of("four", 1, 1)};
  all.curves[1].not_fitted = "doubtful";
  all.curves[2].algorithm = "ring";
  all.curves[3].unpredicted = "no, \"such\" ranks";
  all.left_out = {{"five", "a picture"}};
  return all;
}

TEST(MeasuredTables, ReadLikeThis) {
  EXPECT_EQ(
      measured_table(some_measured(), {0, 1}),
      R"(  curve  system  collective        nodes x devices  points     analytical            des  analytical, all  des, all
  one    s       all_reduce                  1 x 8       4   12.8 (+12.8)   10.0 (-10.0)     11.7 (+11.7)  10.0 (-10.0)
  two *  s       all_reduce                  2 x 8       4     7.7 (-7.7)   30.0 (-30.0)       8.6 (-8.6)  30.0 (-30.0)
  three  s       all_reduce, ring            2 x 8       4   33.2 (+33.2)   10.0 (+10.0)     31.9 (+31.9)  10.0 (+10.0)
  four   s       all_reduce                  1 x 8       4  not predicted  not predicted    not predicted  not predicted

                 links          curves  points    analytical           des  analytical, all      des, all  analytical, by curve  des, by curve
  within a node  B                   1       2  12.8 (+12.8)  10.0 (-10.0)     11.7 (+11.7)  10.0 (-10.0)                  12.8           10.0
  within a node  all of NVLink       1       2  12.8 (+12.8)  10.0 (-10.0)     11.7 (+11.7)  10.0 (-10.0)                  12.8           10.0
  within a node  all                 1       2  12.8 (+12.8)  10.0 (-10.0)     11.7 (+11.7)  10.0 (-10.0)                  12.8           10.0
  between nodes  C                   2       4  20.4 (+12.7)  20.0 (-10.0)     20.0 (+11.4)  20.0 (-10.0)                  20.5           20.0
  between nodes  all                 2       4  20.4 (+12.7)  20.0 (-10.0)     20.0 (+11.4)  20.0 (-10.0)                  20.5           20.0

Median of |predicted / measured - 1| over points from 1 MiB on ("all": over all sizes) in percent; the median of predicted / measured - 1 is in brackets. By curve: median over the curves' medians, from 1 MiB on.
Not predicted: four: no, "such" ranks
* Not used by the calibration: two: doubtful
Published without points: five: a picture
)");
  EXPECT_THAT(measured_table(some_measured(), {1}), AllOf(HasSubstr(" des "), Not(HasSubstr("analytical"))));
}

// A row for each point, with the same cells as the JSON has.
TEST(MeasuredTables, CsvAndJsonAreTheSamePoints) {
  const MeasuredCollectives measured = some_measured();
  const nlohmann::json all = nlohmann::json::parse(measured_json(measured, {0, 1}).dump());
  std::istringstream lines(measured_csv(measured, {0, 1}));
  std::string line;
  const auto cells = [&] {
    std::vector<std::string> found(1);
    std::getline(lines, line);
    bool quoted = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && quoted && line[i + 1] == '"')
        found.back() += line[i++];
      else if (line[i] == '"')
        quoted = !quoted;
      else if (line[i] == ',' && !quoted)
        found.emplace_back();
      else
        found.back() += line[i];
    }
    return found;
  };
  const std::vector<std::string> headings = cells();
  ASSERT_EQ(all["curves"].size(), 4u);
  for (std::size_t c = 0; c < 4; ++c) {
    nlohmann::json row = all["curves"][c];
    row["curve"] = row["id"];
    row["fitted"] = row["not_fitted"] == "";
    for (std::size_t p = 0; p < 4; ++p) {
      nlohmann::json point = row;
      point.update(all["curves"][c]["points"][p]);
      const MeasuredPoint& of = measured.curves[c].points[p];
      EXPECT_EQ(point["bytes"], of.bytes);
      EXPECT_EQ(point["measured_seconds"], of.measured_seconds);
      for (const auto& [engine, e] : {std::pair("analytical", 0u), {"des", 1u}}) {
        EXPECT_EQ(point.contains(engine), c != 3);
        if (c == 3) continue;
        EXPECT_EQ(point[engine], of.predicted.seconds[e]);
        point[std::string(engine) + "_seconds"] = of.predicted.seconds[e];
        point[std::string(engine) + "_error"] = of.predicted.seconds[e] / of.measured_seconds - 1;
      }
      const std::vector<std::string> found = cells();
      ASSERT_EQ(found.size(), headings.size()) << line;
      for (std::size_t i = 0; i < found.size(); ++i) {
        const auto value = point.find(headings[i]);
        if (value == point.end()) {
          EXPECT_EQ(found[i], "") << headings[i];
        } else if (value->is_number()) {
          EXPECT_EQ(std::stod(found[i]), value->get<double>()) << headings[i];
        } else {
          EXPECT_EQ(found[i], value->is_string() ? value->get<std::string>() : value->dump()) << headings[i];
        }
      }
    }
    EXPECT_EQ(row.contains("all_sizes"), c != 3);
    if (c == 3) continue;
    // Sizes are 1 KiB, 32 KiB, 1 MiB and 32 MiB: two are large.
    EXPECT_EQ(row["all_sizes"]["des"]["points"], 4);
    EXPECT_EQ(row["from_1_mib"]["des"]["points"], 2);
    EXPECT_NEAR(row["from_1_mib"]["analytical"]["median_error"].get<double>(),
                std::abs((measured.curves[c].points[2].error(0) + measured.curves[c].points[3].error(0)) / 2), 1e-12);
    EXPECT_NEAR(row["all_sizes"]["des"]["bias"].get<double>(), measured.curves[c].points[0].error(1), 1e-12);
  }
  EXPECT_FALSE(std::getline(lines, line));
  EXPECT_EQ(all["left_out"], nlohmann::json::parse(R"([{"id": "five", "why": "a picture"}])"));
  std::vector<std::string> summaries;
  for (const nlohmann::json& s : all["summary"])
    summaries.push_back(fmt::format("{}, {}: {}", s["level"].get<std::string>(), s["links"].get<std::string>(),
                                    s["curves"].get<int>()));
  EXPECT_THAT(summaries,
              ::testing::ElementsAre("within a node, B: 1", "within a node, all of NVLink: 1", "within a node, all: 1",
                                     "between nodes, C: 2", "between nodes, all: 2"));
}

}  // namespace
}  // namespace orrery
