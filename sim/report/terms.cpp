#include "sim/report/terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "sim/report/format.h"

namespace orrery {
namespace {

constexpr std::array<const char*, kCategories> kCategoryLabels{
    "parameters", "gradients", "optimizer states", "activations", "communication buffers", "workspace"};

}  // namespace

double TimeBreakdown::total() const {
  double seconds = matmul + attention + memory_bound + recompute + slowest_device + host_issue + bubble + optimizer;
  seconds += production;
  for (const double waiting : exposed) seconds += waiting;
  return seconds;
}

const std::vector<TimeTerm>& time_terms() {
  static const std::vector<TimeTerm> all = [] {
    std::vector<TimeTerm> terms;
    const auto add = [&](const std::string& name, const std::string& label, double TimeBreakdown::*field,
                         const char* definition, std::size_t stream = 0) {
      terms.push_back({name, label, name + "_seconds", definition, label, field, stream});
    };
    add("matmul", "matrix products", &TimeBreakdown::matmul,
        "matrix products of the forward and the backward, on the stage that bounds the step");
    add("attention", "attention", &TimeBreakdown::attention, "fused attention kernels, forward and backward");
    add("memory_bound", "memory-bound kernels", &TimeBreakdown::memory_bound,
        "kernels whose time follows from the bytes they move: norms, activations, dropouts, casts");
    add("recompute", "recomputation", &TimeBreakdown::recompute,
        "all compute that repeats forward work in the backward");
    add("slowest_device", "waiting for the slowest device", &TimeBreakdown::slowest_device,
        "products and attention last until the slowest of all devices has finished: at the power limit, rates of "
        "devices of one type differ (results/calibration/scale.json)");
    terms.back().bound = "the slowest device";
    add("host_issue", "waiting for the host to launch", &TimeBreakdown::host_issue,
        "the compute stream is empty because the CPU has not launched the next kernel yet");
    terms.back().bound = "the host's launches";
    for (const StreamRow& row : kStreamRows)
      if (is_account(row.stream))
        add(std::string("exposed_") + row.name, std::string("exposed ") + row.label, nullptr,
            "the compute stream waits for what runs on this stream; the rest is hidden under compute",
            static_cast<std::size_t>(row.stream));
    add("bubble", "pipeline bubble", &TimeBreakdown::bubble, "the stage waits for micro-batches of its neighbours");
    add("optimizer", "optimizer", &TimeBreakdown::optimizer,
        "gradient norm and parameter update after the last backward");
    add("production", "production slow-down", &TimeBreakdown::production,
        "what the median job loses on a shared production cluster (cluster.production; "
        "results/calibration/scale.json)");
    return terms;
  }();
  return all;
}

void add_terms(const TimeBreakdown& from, TimeBreakdown& to) {
  for (const TimeTerm& term : time_terms()) term.of(to) += term.of(from);
}

const std::vector<MemoryPart>& memory_parts() {
  static const std::vector<MemoryPart> all = [] {
    std::vector<MemoryPart> parts;
    const auto add = [&](std::string name, std::string label, double MemoryBreakdown::*field,
                         Place place = Place::device, std::size_t category = 0) {
      std::string key = name + "_bytes";
      parts.push_back({std::move(name), std::move(label), std::move(key), field, place, category});
    };
    for (std::size_t c = 0; c < kCategories; ++c)
      add(name_of(static_cast<Category>(c)), kCategoryLabels[c], nullptr, Place::device, c);
    add("framework", "framework", &MemoryBreakdown::framework_bytes);
    add(name_of(Place::host), "in host memory", nullptr, Place::host);
    add(name_of(Place::storage), "in storage", nullptr, Place::storage);
    return parts;
  }();
  return all;
}

std::span<const MemoryPart> category_parts() { return std::span(memory_parts()).first(kCategories); }

std::string figure_text(const Figure& figure) {
  const FigureUnit unit = figure.kind->unit;
  if (unit == FigureUnit::share) return percent_text(figure.value);
  return fmt::format("{:.{}f}{}", figure.value, unit == FigureUnit::count ? 0 : 2,
                     unit == FigureUnit::times ? "x" : "");
}

const StageReport& Report::stage_at(std::int64_t index) const {
  static const StageReport none;
  return stages.empty() ? none : stages[static_cast<std::size_t>(index)];
}

const Figure* Report::figure(std::string_view group, std::string_view key) const {
  for (const Figure& figure : figures)
    if (figure.kind->group == group && (key.empty() || figure.kind->key == key)) return &figure;
  return nullptr;
}

std::string_view flop_convention() {
  return "model FLOPs: forward and backward without recomputation; causal attention counts the lower triangle only";
}

void summarise_bounding_stage(Report& report) {
  const TimeBreakdown& time = report.bounding().time;
  report.bubble_fraction = time.bubble / report.step_seconds;
  report.exposed_communication_seconds = 0;
  for (const StreamRow& row : kStreamRows)
    if (row.occupies == Occupies::fabric)
      report.exposed_communication_seconds += time.exposed[static_cast<std::size_t>(row.stream)];

  double largest = -1;
  for (const TimeTerm& term : time_terms()) {
    if (term.is_communication() || term.of(time) <= largest) continue;
    largest = term.of(time);
    report.bound_by = term.bound;
  }

  // For a planner, all waiting for the fabric is one term, whatever kinds of groups it consists of.
  if (report.exposed_communication_seconds <= largest) return;
  std::array<const StreamRow*, kStreams> rows;
  std::size_t count = 0;
  for (const StreamRow& row : kStreamRows)
    if (is_account(row.stream) && row.occupies == Occupies::fabric) rows[count++] = &row;
  const auto seconds = [&](const StreamRow* row) { return time.exposed[static_cast<std::size_t>(row->stream)]; };
  std::stable_sort(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count),
                   [&](const StreamRow* a, const StreamRow* b) { return seconds(a) > seconds(b); });
  report.bound_by = "exposed ";
  double named = 0;
  for (std::size_t i = 0; i < count && named <= largest; ++i) {
    if (i > 0) report.bound_by += " + ";
    report.bound_by += rows[i]->label;
    named += seconds(rows[i]);
  }
}

}  // namespace orrery
