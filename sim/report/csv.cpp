#include "sim/report/csv.h"

#include <fmt/format.h>

#include "sim/report/terms.h"

namespace orrery {
namespace {

struct Column {
  std::string name;
  std::string value;
};

std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string result = "\"";
  for (const char c : text) result += c == '"' ? std::string("\"\"") : std::string(1, c);
  return result + '"';
}

std::vector<Column> columns(const std::string& scenario, const Report& r) {
  std::vector<Column> row;
  // Shortest text that reads back as the same number.
  const auto number = [&](std::string name, double value) {
    row.push_back({std::move(name), fmt::format("{}", value)});
  };
  const auto text = [&](std::string name, const std::string& value) {
    row.push_back({std::move(name), quoted(value)});
  };
  text("scenario", scenario);
  text("engine", r.engine);
  number("devices", static_cast<double>(r.devices));
  number("step_seconds", r.step_seconds);
  number("tokens_per_second", r.tokens_per_second);
  number("tokens_per_second_per_device", r.tokens_per_second_per_device);
  number("sequences_per_second", r.sequences_per_second);
  number("model_flops_per_second_per_device", r.model_flops_per_second_per_device);
  number("mfu", r.mfu);
  number("mfu_full_attention", r.mfu_full_attention);
  number("hfu", r.hfu);
  number("bubble_fraction", r.bubble_fraction);
  number("exposed_communication_seconds", r.exposed_communication_seconds);
  text("bound_by", r.bound_by);
  text("memory_fits", r.memory_fits ? "true" : "false");
  number("memory_peak_bytes", r.memory_peak_bytes);
  number("memory_capacity_bytes", r.memory_capacity_bytes);
  const StageReport none;
  const auto stage = [&](std::int64_t index) -> const StageReport& {
    return r.stages.empty() ? none : r.stages[static_cast<std::size_t>(index)];
  };
  for (const Term& term : terms_of(stage(r.bounding_stage).time)) number(term.name + "_seconds", term.seconds);
  for (const MemoryTerm& term : terms_of(stage(r.memory_stage).memory)) number(term.name + "_bytes", term.bytes);
  number("unmeasured_share", r.unmeasured_share);
  return row;
}

}  // namespace

std::string csv_header() {
  std::string line;
  for (const Column& column : columns("", Report{})) line += (line.empty() ? "" : ",") + column.name;
  return line + '\n';
}

std::string csv_row(const std::string& scenario, const Report& report) {
  std::string line;
  bool first = true;
  for (const Column& column : columns(scenario, report)) {
    if (!first) line += ',';
    first = false;
    line += column.value;
  }
  return line + '\n';
}

}  // namespace orrery
