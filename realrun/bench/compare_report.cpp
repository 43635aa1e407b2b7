// Output formats of a comparison.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>

#include "realrun/bench/compare.h"
#include "realrun/bench/text.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

const std::array<Verdict, 10> kVerdicts = [] {
  std::array<Verdict, 10> all{};
  for (std::size_t v = 0; v < all.size(); ++v) all[v] = static_cast<Verdict>(v);
  return all;
}();

bool has_ratio(const Difference& d) { return d.baseline_repetitions > 0 && d.new_repetitions > 0; }
bool was_tested(const Difference& d) { return has_ratio(d) && d.verdict != Verdict::too_few_repetitions; }
bool is_below_threshold(const Difference& d) {
  return d.verdict == Verdict::slower_below_threshold || d.verdict == Verdict::faster_below_threshold;
}
std::string time_cell(double seconds) { return seconds > 0 ? seconds_text(seconds) : "-"; }

// "regression", "failed: out of memory"
std::string verdict_text(const Difference& d) {
  return d.note.empty() ? name_of(d.verdict) : fmt::format("{}: {}", name_of(d.verdict), line_text(d.note));
}

std::vector<std::string> cells_of(const Difference& d) {
  return {line_text(d.name),
          time_cell(d.baseline_seconds),
          time_cell(d.new_seconds),
          has_ratio(d) ? change_text(d.ratio) : "-",
          has_ratio(d) ? change_text(d.fastest_ratio) : "-",
          was_tested(d) ? p_text(d.adjusted_p) : "-",
          verdict_text(d)};
}

constexpr std::string_view kColumns = "<benchmark|baseline|new|change|fastest|p|<verdict";

// "a, b and 7 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 5;
  if (names.size() <= kShown) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} and {} more", fmt::join(std::span(names).first(kShown), ", "), names.size() - kShown);
}

// Returns what a reader of the verdicts must know, one sentence each.
std::vector<std::string> remarks(const Comparison& c) {
  std::vector<std::string> lines;
  if (c.nothing_told()) lines.emplace_back("nothing could be told of any benchmark: this comparison passes nothing");
  for (const std::string& warning : c.warnings) lines.push_back("warning: " + warning);
  if (const std::vector<std::string> missing = c.missing(); !missing.empty())
    lines.push_back(fmt::format("missing: the new run lacks {} of the baseline's benchmarks: {}", missing.size(),
                                some_of(missing)));
  for (std::size_t y = 0; y < kYardsticks.size(); ++y)
    if (std::max(c.drift[y], 1 / c.drift[y]) - 1 > c.options.threshold / 2)
      lines.push_back(fmt::format("warning: the speed of the machine itself changed: {} by {}", kYardsticks[y],
                                  change_text(c.drift[y])));
  if (c.set_aside > 0) lines.push_back(set_aside_text(c.set_aside, c.repetitions));
  if (std::any_of(c.benchmarks.begin(), c.benchmarks.end(), is_below_threshold))
    lines.push_back(
        fmt::format("below the threshold: the change is significant, but the median or the fastest repetition changed "
                    "by less than {:g} %",
                    kPercent * c.options.threshold));
  if (c.count(Verdict::cannot_tell) > 0)
    lines.emplace_back(
        "cannot tell: the machine differed so much between the runs that it may hide a change: measure again");
  if (c.count(Verdict::too_few_repetitions) > 0)
    lines.push_back(
        fmt::format("too few repetitions: {} on both sides are needed for a significant result with so many "
                    "benchmarks",
                    c.needed_repetitions));
  return lines;
}

// Says what could have been detected: a run that detects little is green without meaning.
std::string sight(const Comparison& c) {
  const LeastSlowdown s = c.least_slowdown();
  if (s.benchmarks == 0) return "no slow-down, however large, can be seen in these runs";
  const auto share = [](double value) { return std::isfinite(value) ? percent_text(value) : "infinite"; };
  std::string text = "the least slow-down that can be seen in these runs: " + share(s.median);
  if (s.benchmarks > 1)
    text += fmt::format(" (median; {} to {} over {} benchmarks)", share(s.least), share(s.most), s.benchmarks);
  return text;
}

std::string rule(const Comparison& c) {
  return fmt::format("Mann-Whitney U, Holm-adjusted p < {:g}, and median and fastest repetition beyond {:g} %{}",
                     c.options.alpha, kPercent * c.options.threshold,
                     c.options.strict ? "; strict: what cannot be told or is missing fails" : "");
}

std::string heading(const Comparison& c) {
  const auto side = [](const std::string& file, const std::string& date) {
    return date.empty() ? file : fmt::format("{} ({})", file, date);
  };
  return line_text(fmt::format("{} against {}", side(c.new_file, c.new_date), side(c.baseline_file, c.baseline_date)));
}

TableReport report_of(const Comparison& c) {
  TableReport report{heading(c), {sight(c), rule(c)}, remarks(c), kColumns, {}, {}};
  for (const Difference& d : c.benchmarks) report.rows.push_back({cells_of(d), d.verdict, c.fails(d)});
  for (const Verdict verdict : kVerdicts) add_count(report.summary, c.count(verdict), verdict, name_of(verdict));
  if (report.summary.empty()) report.summary = "nothing to compare";
  return report;
}

OrderedJson json_of(const Difference& d) {
  OrderedJson json{
      {"name", d.name}, {"baseline_repetitions", d.baseline_repetitions}, {"new_repetitions", d.new_repetitions}};
  if (d.baseline_repetitions > 0) json["baseline_median_seconds"] = d.baseline_seconds;
  if (d.new_repetitions > 0) json["new_median_seconds"] = d.new_seconds;
  if (has_ratio(d)) {
    json["ratio_of_medians"] = d.ratio;
    json["ratio_of_fastest"] = d.fastest_ratio;
  }
  json["verdict"] = name_of(d.verdict);
  if (was_tested(d)) {
    json["explained_by_the_machine"] = d.explained;
    json["p"] = d.p;
    json["adjusted_p"] = d.adjusted_p;
    json["least_visible_slowdown"] = d.least_slowdown;
  }
  if (!d.note.empty()) json["note"] = d.note;
  return json;
}

}  // namespace

std::string comparison_text(const Comparison& comparison, bool colour) {
  return terminal_text(report_of(comparison), colour);
}
std::string comparison_markdown(const Comparison& comparison) { return markdown_page(report_of(comparison)); }

std::string comparison_junit(const Comparison& comparison) {
  // Those who only read the file see no exit code: if nothing could be told, it must not consist of skipped test cases.
  const bool nothing_told = comparison.nothing_told();
  const auto is_error = [&](const Difference& d) { return d.verdict == Verdict::failed || nothing_told; };
  const auto is_failure = [&](const Difference& d) { return !is_error(d) && comparison.fails(d); };
  const auto is_skipped = [&](const Difference& d) {
    return !is_error(d) && !is_failure(d) && (d.verdict == Verdict::cannot_tell || !was_tested(d));
  };
  const auto count = [&](const auto& is) {
    return std::count_if(comparison.benchmarks.begin(), comparison.benchmarks.end(), is);
  };
  const std::string counts = fmt::format("tests=\"{}\" failures=\"{}\" errors=\"{}\"", comparison.benchmarks.size(),
                                         count(is_failure), count(is_error));
  std::string text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {0}>\n"
      "<testsuite name=\"orrery bench compare\" {0} skipped=\"{1}\">\n",
      counts, count(is_skipped));
  for (const Difference& d : comparison.benchmarks) {
    text += fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.9f}\"",
                        xml_text(d.name.substr(0, d.name.find('/'))), xml_text(d.name), d.new_seconds);
    const std::string what = xml_text(
        has_ratio(d) ? fmt::format("{}: {} -> {} ({}; fastest {}; p {})", verdict_text(d),
                                   time_cell(d.baseline_seconds), time_cell(d.new_seconds), change_text(d.ratio),
                                   change_text(d.fastest_ratio), was_tested(d) ? p_text(d.adjusted_p) : "-")
                     : verdict_text(d));
    if (is_failure(d)) {
      text += fmt::format(">\n    <failure type=\"{1}\" message=\"{0}\">{0}</failure>\n  </testcase>\n", what,
                          name_of(d.verdict));
    } else if (is_error(d)) {
      text += fmt::format(">\n    <error type=\"{1}\" message=\"{0}\">{0}</error>\n  </testcase>\n", what,
                          name_of(d.verdict));
    } else if (is_skipped(d)) {
      text += fmt::format(">\n    <skipped message=\"{}\"/>\n  </testcase>\n", what);
    } else if (is_below_threshold(d)) {
      text += fmt::format(">\n    <system-out>{}</system-out>\n  </testcase>\n", what);
    } else {
      text += "/>\n";
    }
  }
  text += "  <system-out>" + xml_text(sight(comparison)) + "\n";
  for (const std::string& line : remarks(comparison)) text += xml_text(line_text(line)) + "\n";
  text += "</system-out>\n";
  return text + "</testsuite>\n</testsuites>\n";
}

std::string comparison_json(const Comparison& comparison) {
  OrderedJson json{{"baseline", comparison.baseline_file},      {"new", comparison.new_file},
                   {"threshold", comparison.options.threshold}, {"alpha", comparison.options.alpha},
                   {"strict", comparison.options.strict},       {"exit_code", comparison.exit_code()}};
  if (const LeastSlowdown s = comparison.least_slowdown(); s.benchmarks > 0)
    json["least_visible_slowdown"] = {{"median", s.median}, {"least", s.least}, {"most", s.most}};
  for (const Verdict verdict : kVerdicts) json["verdicts"][name_of(verdict)] = comparison.count(verdict);
  json["missing"] = comparison.missing();
  json["warnings"] = comparison.warnings;
  json["needed_repetitions"] = comparison.needed_repetitions;
  json["repetitions"] = comparison.repetitions;
  json["set_aside"] = comparison.set_aside;
  for (std::size_t y = 0; y < kYardsticks.size(); ++y) json["drift"][std::string(kYardsticks[y])] = comparison.drift[y];
  json["benchmarks"] = OrderedJson::array();
  for (const Difference& d : comparison.benchmarks) json["benchmarks"].push_back(json_of(d));
  return json_text(json, 2) + "\n";
}

std::string comparison_csv(const Comparison& comparison) {
  OrderedJson rows = OrderedJson::array();
  for (const Difference& d : comparison.benchmarks) {
    rows.push_back(json_of(d));
    rows.back()["benchmark"] = d.name;
  }
  return csv_rows(
      "benchmark,verdict,baseline_repetitions,new_repetitions,baseline_median_seconds,new_median_seconds,"
      "ratio_of_medians,ratio_of_fastest,explained_by_the_machine,p,adjusted_p,least_visible_slowdown",
      rows);
}

}  // namespace orrery::bench
