#include "sim/report/columns.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

#include "sim/report/format.h"
#include "sim/report/memory_verdict.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

}  // namespace

const std::vector<ReportColumn>& report_columns() {
  static const std::vector<ReportColumn> all = [] {
    std::vector<ReportColumn> columns;
    const auto add = [&](std::string name, std::function<ColumnValue(const Report&)> value, bool of_ops = false) {
      columns.push_back({std::move(name), std::move(value), of_ops});
    };
    const auto number = [&](std::string name, double Report::*field, bool of_ops = false) {
      add(
          std::move(name), [field](const Report& r) { return r.*field; }, of_ops);
    };
    const auto text = [&](std::string name, std::string Report::*field) {
      add(std::move(name), [field](const Report& r) { return std::string_view(r.*field); });
    };
    text("engine", &Report::engine);
    add("devices", [](const Report& r) { return r.devices; });
    number("step_seconds", &Report::step_seconds);
    add("expected_step_seconds_low", [](const Report& r) { return r.expected ? r.expected->low_seconds : kNone; });
    add("expected_step_seconds_high", [](const Report& r) { return r.expected ? r.expected->high_seconds : kNone; });
    number("tokens_per_second", &Report::tokens_per_second);
    number("tokens_per_second_per_device", &Report::tokens_per_second_per_device);
    number("sequences_per_second", &Report::sequences_per_second);
    number("model_flops_per_second_per_device", &Report::model_flops_per_second_per_device);
    number("mfu", &Report::mfu);
    number("mfu_full_attention", &Report::mfu_full_attention);
    number("hfu", &Report::hfu);
    number("bubble_fraction", &Report::bubble_fraction);
    number("exposed_communication_seconds", &Report::exposed_communication_seconds);
    text("bound_by", &Report::bound_by);
    add("memory_fits", [](const Report& r) { return r.memory_fits; });
    number("memory_peak_bytes", &Report::memory_peak_bytes);
    number("memory_capacity_bytes", &Report::memory_capacity_bytes);
    for (const auto& [place, shared] :
         {std::pair{Place::host, &Report::host_memory}, std::pair{Place::storage, &Report::storage}}) {
      const std::string node = std::string("node_") + name_of(place);
      add(node + "_bytes", [shared = shared](const Report& r) { return (r.*shared).node_bytes; });
      add(node + "_capacity_bytes", [shared = shared](const Report& r) { return (r.*shared).capacity_bytes; });
    }
    for (const TimeTerm& term : time_terms())
      add(term.key, [&term](const Report& r) { return term.of(r.bounding().time); });
    for (const MemoryPart& part : memory_parts())
      add(part.key, [&part](const Report& r) { return part.of(r.fullest().memory); });
    number("unmeasured_share", &Report::unmeasured_share, /*of_ops=*/true);
    add("memory_verdict", [](const Report& r) { return name_of(memory_verdict(r)); });
    return columns;
  }();
  return all;
}

const ReportColumn* find_report_column(std::string_view name) {
  const std::vector<ReportColumn>& all = report_columns();
  const auto found = std::find_if(all.begin(), all.end(), [&](const ReportColumn& c) { return c.name == name; });
  return found == all.end() ? nullptr : &*found;
}

void append_csv(const ColumnValue& value, std::string& out) {
  std::visit(
      [&](const auto& its) {
        using Value = std::decay_t<decltype(its)>;
        if constexpr (std::is_same_v<Value, std::string_view>) {
          out += csv_text(its);
        } else if constexpr (std::is_same_v<Value, double>) {
          if (!std::isnan(its)) fmt::format_to(std::back_inserter(out), "{}", its);
        } else {
          fmt::format_to(std::back_inserter(out), "{}", its);
        }
      },
      value);
}

void write_json(const ColumnValue& value, JsonWriter& writer) {
  std::visit([&](const auto& its) { writer.value(its); }, value);
}

std::string csv_header(std::span<const std::string_view> more) {
  std::string line = "scenario";
  for (const ReportColumn& column : report_columns()) line += ',' + column.name;
  for (const std::string_view name : more) (line += ',') += name;
  return line + '\n';
}

std::string csv_row(const std::string& scenario, const Report& report, std::span<const std::string> more) {
  std::string line = csv_text(scenario);
  for (const ReportColumn& column : report_columns()) {
    line += ',';
    append_csv(column.value(report), line);
  }
  for (const std::string& text : more) (line += ',') += csv_text(text);
  return line + '\n';
}

std::string comparison_csv(const Report& a, const Report& b) {
  std::string text = "column,a,b,difference\n";
  for (const ReportColumn& column : report_columns()) {
    if (column.of_ops) continue;
    const ColumnValue of_a = column.value(a), of_b = column.value(b);
    text += column.name + ',';
    append_csv(of_a, text);
    text += ',';
    append_csv(of_b, text);
    text += ',';
    std::visit(
        [&](const auto& value) {
          using Value = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<Value, double> || std::is_same_v<Value, std::int64_t>)
            append_csv(std::get<Value>(of_b) - value, text);
        },
        of_a);
    text += '\n';
  }
  return text;
}

}  // namespace orrery
