// Output formats of a drift.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "realrun/bench/drift.h"
#include "realrun/bench/text.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array kTrendVerdicts{
    Verdict::regression, Verdict::improvement,        Verdict::slower_below_threshold, Verdict::faster_below_threshold,
    Verdict::unchanged,  Verdict::too_few_repetitions};

std::string_view verdict_name(Verdict verdict) {
  return verdict == Verdict::too_few_repetitions ? "too few runs" : name_of(verdict);
}

std::string run_cell(const HistoryPoint& point) {
  constexpr std::size_t kShortCommit = 12;
  const std::string commit = point.commit.substr(0, kShortCommit);
  if (point.date.empty()) return commit.empty() ? "-" : line_text(commit);
  return line_text(commit.empty() ? point.date : point.date + " " + commit);
}

bool has_devices(const Drift& drift) {
  return std::any_of(drift.benchmarks.begin(), drift.benchmarks.end(),
                     [&](const Trend& t) { return t.device != drift.benchmarks.front().device; });
}

const char* columns_of(const Drift& drift) {
  return has_devices(drift) ? "<benchmark|<device|runs|before|since|change|fastest|p|<first run|<verdict"
                            : "<benchmark|runs|before|since|change|fastest|p|<first run|<verdict";
}

// One row per change, at least one; only the first row of a benchmark has the verdict.
void add_rows(const Drift& drift, const Trend& trend, std::vector<TableRow>& rows) {
  bool first = true;
  const auto add = [&](const std::vector<std::string>& cells) {
    TableRow& row = rows.emplace_back();
    row.cells.push_back(line_text(trend.name));
    if (has_devices(drift)) row.cells.push_back(trend.device.empty() ? "-" : line_text(trend.device));
    row.cells.push_back(fmt::format("{}", trend.points.size()));
    row.cells.insert(row.cells.end(), cells.begin(), cells.end());
    row.cells.emplace_back(first ? verdict_name(trend.verdict) : "");
    row.verdict = first ? trend.verdict : Verdict::unchanged;
    row.fails = drift.fails(trend);
    first = false;
  };
  for (const LevelChange& c : trend.changes)
    add({seconds_text(c.before_seconds), seconds_text(c.after_seconds), change_text(c.ratio),
         change_text(c.fastest_ratio), p_text(c.adjusted_p), run_cell(trend.points[c.first])});
  const bool tested = is_told(trend.verdict);
  if (first) add({"-", seconds_text(trend.seconds), "-", "-", tested ? p_text(trend.adjusted_p) : "-", "-"});
}

std::string heading(const Drift& drift) {
  return line_text(fmt::format("{}: the last {} runs", drift.history, drift.runs));
}

std::string rule(const Drift& drift) {
  return fmt::format(
      "maximally selected rank statistic of the runs' medians, binary segmentation, Holm-adjusted p < {:g}; slower: "
      "the last level, of medians and of fastest repetitions, more than {:g} % above the fastest before it{}",
      drift.options.alpha, kPercent * drift.options.threshold,
      drift.options.strict ? "; strict: too few runs fail" : "");
}

std::vector<std::string> remarks(const Drift& drift) {
  std::vector<std::string> lines;
  if (drift.nothing_told()) lines.emplace_back("nothing could be told of any benchmark: this history passes nothing");
  for (const std::string& warning : drift.warnings) lines.push_back("warning: " + warning);
  for (const Trend& trend : drift.benchmarks)
    for (const LevelChange& change : trend.changes)
      for (const std::string& fact : change.machine) {
        const std::string line =
            fmt::format("warning: with the run of {} {}", run_cell(trend.points[change.first]), fact);
        if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
      }
  if (drift.count(Verdict::too_few_repetitions) > 0)
    lines.push_back(
        fmt::format("too few runs: {} are needed for a significant result with so many benchmarks", drift.needed_runs));
  return lines;
}

TableReport report_of(const Drift& drift) {
  TableReport report{heading(drift), {rule(drift)}, remarks(drift), columns_of(drift), {}, {}};
  for (const Trend& trend : drift.benchmarks) add_rows(drift, trend, report.rows);
  for (const Verdict verdict : kTrendVerdicts)
    add_count(report.summary, drift.count(verdict), verdict, verdict_name(verdict));
  if (report.summary.empty()) report.summary = "no benchmark";
  return report;
}

OrderedJson json_of(const Trend& trend, const LevelChange& c) {
  const HistoryPoint &last = trend.points[c.first - 1], &first = trend.points[c.first];
  return {{"date", first.date},
          {"git_commit", first.commit},
          {"version", first.version},
          {"previous_date", last.date},
          {"previous_git_commit", last.commit},
          {"before_seconds", c.before_seconds},
          {"after_seconds", c.after_seconds},
          {"ratio_of_medians", c.ratio},
          {"ratio_of_fastest", c.fastest_ratio},
          {"adjusted_p", c.adjusted_p},
          {"machine", c.machine}};
}

}  // namespace

std::string drift_text(const Drift& drift, bool colour) { return terminal_text(report_of(drift), colour); }
std::string drift_markdown(const Drift& drift) { return markdown_page(report_of(drift)); }

std::string drift_json(const Drift& drift) {
  OrderedJson json{{"history", drift.history},
                   {"runs", drift.runs},
                   {"threshold", drift.options.threshold},
                   {"alpha", drift.options.alpha},
                   {"strict", drift.options.strict},
                   {"exit_code", drift.exit_code()}};
  for (const Verdict verdict : kTrendVerdicts)
    json["verdicts"][std::string(verdict_name(verdict))] = drift.count(verdict);
  json["warnings"] = drift.warnings;
  json["needed_runs"] = drift.needed_runs;
  json["benchmarks"] = OrderedJson::array();
  for (const Trend& trend : drift.benchmarks) {
    OrderedJson& line = json["benchmarks"].emplace_back();
    line = {{"name", trend.name},
            {"device", trend.device},
            {"verdict", verdict_name(trend.verdict)},
            {"runs", trend.points.size()},
            {"last_level_seconds", trend.seconds}};
    if (is_told(trend.verdict)) line["adjusted_p"] = trend.adjusted_p;
    line["ratio_of_medians"] = trend.ratio;
    line["ratio_of_fastest"] = trend.fastest_ratio;
    line["changes"] = OrderedJson::array();
    for (const LevelChange& c : trend.changes) line["changes"].push_back(json_of(trend, c));
  }
  return json_text(json, 2) + "\n";
}

std::string drift_csv(const Drift& drift) {
  OrderedJson rows = OrderedJson::array();
  for (const Trend& trend : drift.benchmarks) {
    const auto add = [&](const OrderedJson& change) {
      OrderedJson& row = rows.emplace_back(change);
      row["benchmark"] = trend.name;
      row["device"] = trend.device;
      row["verdict"] = verdict_name(trend.verdict);
      row["runs"] = trend.points.size();
      row["last_level_seconds"] = trend.seconds;
    };
    for (const LevelChange& c : trend.changes) add(json_of(trend, c));
    if (!trend.changes.empty()) continue;
    add(is_told(trend.verdict) ? OrderedJson{{"adjusted_p", trend.adjusted_p}} : OrderedJson::object());
  }
  return csv_rows(
      "benchmark,device,verdict,runs,last_level_seconds,date,git_commit,previous_date,previous_git_commit,"
      "before_seconds,after_seconds,ratio_of_medians,ratio_of_fastest,adjusted_p",
      rows);
}

}  // namespace orrery::bench
