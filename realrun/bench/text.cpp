#include "realrun/bench/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "realrun/bench/machine_state.h"
#include "sim/base/error.h"
#include "sim/base/one_line.h"
#include "sim/base/words.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

// For a cell or a line of GitHub's Markdown: escapes markup, HTML and ends of cells.
std::string markdown_text(std::string_view text) {
  return escaped(line_text(text), {{'<', "&lt;"},
                                   {'>', "&gt;"},
                                   {'&', "&amp;"},
                                   {'\\', "\\\\"},
                                   {'`', "\\`"},
                                   {'*', "\\*"},
                                   {'[', "\\["},
                                   {']', "\\]"},
                                   {'|', "\\|"}});
}

}  // namespace

std::string change_text(double ratio) { return signed_percent_text(ratio - 1); }

std::string p_text(double p) { return p < 1e-3 ? fmt::format("{:.0e}", p) : fmt::format("{:.3f}", p); }

std::string line_text(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool is_control = byte < 0x20 || byte == 0x7f;
    line += c == '\n' ? ' ' : is_control ? '?' : c;
  }
  return line;
}

std::string set_aside_text(std::size_t set_aside, std::size_t repetitions) {
  return fmt::format(
      "{} of {} repetitions are ignored: the machine was busy with other work, and a yardstick was more than {:g} % "
      "(memory: {:g} %) above its usual value",
      set_aside, repetitions, kPercent * kDisturbance[0], kPercent * kDisturbance[1]);
}

void add_count(std::string& summary, std::size_t count, Verdict verdict, std::string_view name) {
  if (count == 0) return;
  const bool plural = count > 1 && (verdict == Verdict::regression || verdict == Verdict::improvement);
  summary += fmt::format("{}{} {}{}", summary.empty() ? "" : ", ", count, name, plural ? "s" : "");
}

std::string terminal_text(const TableReport& report, bool colour) {
  std::vector<std::vector<std::string>> rows;
  for (const TableRow& row : report.rows) {
    rows.push_back(row.cells);
    const bool bad = row.verdict == Verdict::failed || row.verdict == Verdict::regression;
    if (colour && (bad || row.verdict == Verdict::improvement))
      rows.back().back() = fmt::format("\x1b[{}m{}\x1b[0m", bad ? 31 : 32, rows.back().back());
  }
  std::string text = fmt::format("{}\n{}\n\n", report.heading, fmt::join(report.rules, "\n"));
  if (!rows.empty()) text += grid(report.columns, rows) + "\n";
  for (const std::string& remark : report.remarks) text += line_text(remark) + "\n";
  return text + report.summary + "\n";
}

std::string markdown_page(const TableReport& report) {
  std::vector<std::vector<std::string>> rows;
  for (const TableRow& row : report.rows) {
    std::vector<std::string>& cells = rows.emplace_back();
    for (const std::string& cell : row.cells) cells.push_back(markdown_text(cell));
    if (row.fails && !cells.back().empty()) cells.back() = "**" + cells.back() + "**";
  }
  std::string text = fmt::format("**{}**: {}\n\n{}\n\n", report.summary, markdown_text(report.heading),
                                 fmt::join(report.rules, "\n\n"));
  if (!rows.empty()) text += markdown_grid(report.columns, rows);
  if (!report.remarks.empty()) text += "\n";
  for (const std::string& remark : report.remarks) text += "- " + markdown_text(remark) + "\n";
  return text;
}

std::string csv_rows(std::string_view columns, const nlohmann::ordered_json& objects) {
  std::string text = std::string(columns) + "\n";
  for (const auto& object : objects) {
    for (const std::string_view column : split(columns, ',')) {
      if (const auto at = object.find(std::string(column)); at != object.end())
        text += at->is_string()         ? csv_text(at->get_ref<const std::string&>())
                : at->is_number_float() ? fmt::format("{}", at->get<double>())
                                        : at->dump();
      text += ',';
    }
    text.back() = '\n';
  }
  return text;
}

std::function<bool(const std::string&)> matches(const std::string& filter) {
  try {
    return [expression = std::regex(filter)](const std::string& name) { return std::regex_search(name, expression); };
  } catch (const std::regex_error&) {
    throw InputError({"--filter", ""}, '"' + filter + '"', "a regular expression");
  }
}

}  // namespace orrery::bench
