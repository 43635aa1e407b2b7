#include "sim/report/csv.h"

#include <fmt/format.h>

#include <utility>

#include "sim/report/format.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

struct Field {
  std::string name;
  std::string value;
};

std::vector<Field> columns(const std::string& scenario, const Report& r) {
  std::vector<Field> row;
  // Shortest text that reads back as the same number.
  const auto number = [&](std::string name, double value) {
    row.push_back({std::move(name), fmt::format("{}", value)});
  };
  const auto text = [&](std::string name, const std::string& value) {
    row.push_back({std::move(name), csv_text(value)});
  };
  text("scenario", scenario);
  text("engine", r.engine);
  number("devices", static_cast<double>(r.devices));
  number("step_seconds", r.step_seconds);
  number("expected_step_seconds_low", r.expected ? r.expected->low_seconds : 0);
  number("expected_step_seconds_high", r.expected ? r.expected->high_seconds : 0);
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
  for (const auto& [place, shared] : {std::pair{Place::host, r.host_memory}, {Place::storage, r.storage}}) {
    number(fmt::format("node_{}_bytes", name_of(place)), shared.node_bytes);
    number(fmt::format("node_{}_capacity_bytes", name_of(place)), shared.capacity_bytes);
  }
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
  for (const Field& column : columns("", Report{})) line += (line.empty() ? "" : ",") + column.name;
  return line + '\n';
}

std::string csv_row(const std::string& scenario, const Report& report) {
  std::string line;
  bool first = true;
  for (const Field& column : columns(scenario, report)) {
    if (!first) line += ',';
    first = false;
    line += column.value;
  }
  return line + '\n';
}

}  // namespace orrery
