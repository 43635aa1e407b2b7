// Output formats of a drift.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "realrun/bench/drift.h"
#include "realrun/bench/text.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array kTrendVerdicts{
    Verdict::regression, Verdict::improvement,        Verdict::slower_below_threshold, Verdict::faster_below_threshold,
    Verdict::unchanged,  Verdict::too_few_repetitions};

std::string_view verdict_name(Verdict verdict) {
  Trend trend;
  trend.verdict = verdict;
  return trend_verdict(trend);
}

std::string run_cell(const HistoryPoint& point) {
  constexpr std::size_t kShortCommit = 12;
  const std::string commit = point.commit.substr(0, kShortCommit);
  if (point.date.empty()) return commit.empty() ? "-" : line_text(commit);
  return line_text(commit.empty() ? point.date : point.date + " " + commit);
}

bool has_devices(const Drift& drift) {
  return std::any_of(drift.trends.begin(), drift.trends.end(),
                     [&](const Trend& t) { return t.device != drift.trends.front().device; });
}

const char* columns_of(const Drift& drift) {
  return has_devices(drift) ? "<benchmark|<device|runs|before|since|change|fastest|p|<first run|<verdict"
                            : "<benchmark|runs|before|since|change|fastest|p|<first run|<verdict";
}

// One row per change, at least one; only the first row of a benchmark has the verdict.
std::vector<std::vector<std::string>> rows_of(const Drift& drift, const Trend& trend, const std::string& verdict) {
  std::vector<std::string> front{line_text(trend.name)};
  if (has_devices(drift)) front.push_back(trend.device.empty() ? "-" : line_text(trend.device));
  front.push_back(fmt::format("{}", trend.points.size()));
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::vector<std::string>& cells) {
    rows.push_back(front);
    rows.back().insert(rows.back().end(), cells.begin(), cells.end());
    rows.back().push_back(rows.size() == 1 ? verdict : "");
  };
  for (const LevelChange& c : trend.changes)
    add({seconds_text(c.before_seconds), seconds_text(c.after_seconds), change_text(c.ratio),
         change_text(c.fastest_ratio), p_text(c.adjusted_p), run_cell(trend.points[c.first])});
  const bool tested = is_told(trend.verdict);
  if (rows.empty()) add({"-", seconds_text(trend.seconds), "-", "-", tested ? p_text(trend.adjusted_p) : "-", "-"});
  return rows;
}

// "2 regressions, 1 improvement, 37 unchanged"
std::string summary(const Drift& drift) {
  std::string text;
  for (const Verdict verdict : kTrendVerdicts) {
    const std::size_t n = drift.count(verdict);
    if (n == 0) continue;
    const bool plural = n > 1 && (verdict == Verdict::regression || verdict == Verdict::improvement);
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", n, verdict_name(verdict), plural ? "s" : "");
  }
  return text.empty() ? "no benchmark" : text;
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
  for (const Trend& trend : drift.trends)
    for (const LevelChange& change : trend.changes)
      for (const std::string& fact : change.machine) {
        const std::string line =
            fmt::format("warning: with the run of {} {}", run_cell(trend.points[change.first]), fact);
        if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
      }
  if (drift.count(Verdict::too_few_repetitions) > 0)
    lines.push_back(
        fmt::format("too few runs: {} are needed for a significant result with so many benchmarks", drift.needed_runs));
  for (std::string& line : lines) line = line_text(line);
  return lines;
}

std::string trend_colour(Verdict verdict) {
  return verdict == Verdict::regression ? "\x1b[31m" : verdict == Verdict::improvement ? "\x1b[32m" : "";
}

}  // namespace

std::string drift_text(const Drift& drift, bool colour) {
  std::vector<std::vector<std::string>> rows;
  for (const Trend& trend : drift.trends) {
    const std::string escape = colour ? trend_colour(trend.verdict) : "";
    const std::string verdict = fmt::format("{}{}{}", escape, trend_verdict(trend), escape.empty() ? "" : "\x1b[0m");
    for (std::vector<std::string>& row : rows_of(drift, trend, verdict)) rows.push_back(std::move(row));
  }
  std::string text = fmt::format("{}\n{}\n\n{}\n", heading(drift), rule(drift), grid(columns_of(drift), rows));
  for (const std::string& line : remarks(drift)) text += line + "\n";
  return text + summary(drift) + "\n";
}

std::string drift_markdown(const Drift& drift) {
  std::vector<std::vector<std::string>> rows;
  for (const Trend& trend : drift.trends)
    for (std::vector<std::string>& row : rows_of(drift, trend, std::string(trend_verdict(trend)))) {
      for (std::string& cell : row) cell = markdown_text(cell);
      if (drift.fails(trend) && !row.back().empty()) row.back() = "**" + row.back() + "**";
      rows.push_back(std::move(row));
    }
  std::string text = fmt::format("**{}**: {}\n\n{}\n\n{}", summary(drift), markdown_text(heading(drift)), rule(drift),
                                 markdown_grid(columns_of(drift), rows));
  const std::vector<std::string> lines = remarks(drift);
  if (!lines.empty()) text += "\n";
  for (const std::string& line : lines) text += "- " + markdown_text(line) + "\n";
  return text;
}

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
  for (const Trend& trend : drift.trends) {
    OrderedJson& line = json["benchmarks"].emplace_back();
    line = {{"name", trend.name},
            {"device", trend.device},
            {"verdict", trend_verdict(trend)},
            {"runs", trend.points.size()},
            {"last_level_seconds", trend.seconds}};
    if (is_told(trend.verdict)) line["adjusted_p"] = trend.adjusted_p;
    line["ratio_of_medians"] = trend.ratio;
    line["ratio_of_fastest"] = trend.fastest_ratio;
    line["changes"] = OrderedJson::array();
    for (const LevelChange& c : trend.changes) {
      const HistoryPoint &last = trend.points[c.first - 1], &first = trend.points[c.first];
      line["changes"].push_back({{"date", first.date},
                                 {"git_commit", first.commit},
                                 {"version", first.version},
                                 {"previous_date", last.date},
                                 {"previous_git_commit", last.commit},
                                 {"before_seconds", c.before_seconds},
                                 {"after_seconds", c.after_seconds},
                                 {"ratio_of_medians", c.ratio},
                                 {"ratio_of_fastest", c.fastest_ratio},
                                 {"adjusted_p", c.adjusted_p},
                                 {"machine", c.machine}});
    }
  }
  // The names of files may contain any bytes.
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::string drift_csv(const Drift& drift) {
  std::string text =
      "benchmark,device,verdict,runs,last_level_seconds,date,git_commit,previous_date,previous_git_commit,"
      "before_seconds,after_seconds,ratio_of_medians,ratio_of_fastest,adjusted_p\n";
  for (const Trend& trend : drift.trends) {
    const std::string front = fmt::format("{},{},{},{},{},", csv_text(trend.name), csv_text(trend.device),
                                          trend_verdict(trend), trend.points.size(), trend.seconds);
    for (const LevelChange& c : trend.changes) {
      const HistoryPoint &last = trend.points[c.first - 1], &first = trend.points[c.first];
      text += fmt::format("{}{},{},{},{},{},{},{},{},{}\n", front, csv_text(first.date), csv_text(first.commit),
                          csv_text(last.date), csv_text(last.commit), c.before_seconds, c.after_seconds, c.ratio,
                          c.fastest_ratio, c.adjusted_p);
    }
    if (trend.changes.empty())
      text += fmt::format("{},,,,,,,,{}\n", front,
                          is_told(trend.verdict) ? fmt::format("{}", trend.adjusted_p) : std::string());
  }
  return text;
}

}  // namespace orrery::bench
