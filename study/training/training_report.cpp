#include "study/training/training_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/report/format.h"

namespace orrery {
namespace {

constexpr std::size_t kMostRows = 20;
constexpr int kBarColumns = 16;
constexpr std::size_t kLabelColumns = 24;

double mean(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::string steps_text(std::span<const double> steps) {
  return steps.size() == 1 ? fmt::format("{:.0f}", steps.front())
                           : fmt::format("{:.0f}-{:.0f}", steps.front(), steps.back());
}

// Hours say more about many steps.
std::string long_text(double seconds) {
  constexpr double kHour = 3600;
  return seconds < 2 * kHour ? seconds_text(seconds) : fmt::format("{:.2f} h", seconds / kHour);
}

std::string rows_text(const Training& training) {
  const auto count = static_cast<std::size_t>(training.steps);
  const std::size_t rows = std::min(kMostRows, count);
  const double slowest = std::ranges::max(training.column("step_seconds"));
  std::string headings = "steps|step|<|waiting|MFU|exposed|peak memory";
  std::vector<const FigureKind*> shown;
  for (const FigureKind* kind : figure_columns()) {
    const std::vector<double>& values = training.column(kind->column);
    if (!kind->always && std::ranges::all_of(values, [&](double value) { return value == kind->otherwise; })) continue;
    shown.push_back(kind);
    headings += fmt::format("|{}", kind->heading);
  }
  const std::span<const TrainingColumn> figures =  // the controllers'
      std::span(training.columns).subspan(std::size(kTrainingColumns) + figure_columns().size());
  for (const TrainingColumn& figure : figures) headings += "|" + figure.name;
  std::vector<std::vector<std::string>> cells;
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t begin = count * row / rows, end = count * (row + 1) / rows;
    const auto of = [&](const std::vector<double>& values) { return std::span(values).subspan(begin, end - begin); };
    const double seconds = mean(of(training.column("step_seconds")));
    const std::span<const double> waits = of(training.column("waiting_seconds"));
    const double waiting = mean(waits);
    cells.push_back({steps_text(of(training.column("step"))), seconds_text(seconds),
                     bar(seconds / slowest, kBarColumns), waiting > 0 ? seconds_text(waiting) : "-",
                     percent_text(mean(of(training.column("mfu")))),
                     seconds_text(mean(of(training.column("exposed_communication_seconds")))),
                     bytes_text(std::ranges::max(of(training.column("memory_peak_bytes"))))});
    for (const FigureKind* kind : shown) {
      const double value = mean(of(training.column(kind->column)));
      cells.back().push_back(kind->unit == FigureUnit::share ? percent_text(value) : fmt::format("{:.3f}", value));
    }
    for (const TrainingColumn& figure : figures) cells.back().push_back(fmt::format("{:.4g}", mean(of(figure.values))));
  }
  return grid(headings, cells);
}

std::string summary_text(const Training& training) {
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) {
    text += fmt::format("  {} {}\n", left(label, kLabelColumns), value);
  };
  const std::vector<double>& steps = training.column("step_seconds");
  const std::vector<double>& waits = training.column("waiting_seconds");
  line("all steps", long_text(training.seconds));
  line("per step", fmt::format("{} on average, {} to {}", seconds_text(mean(steps)),
                               seconds_text(std::ranges::min(steps)), seconds_text(std::ranges::max(steps))));
  const double waited = std::accumulate(waits.begin(), waits.end(), 0.0);
  if (waited > 0)
    line("waiting", fmt::format("{} before {} steps", seconds_text(waited),
                                std::ranges::count_if(waits, [](double wait) { return wait > 0; })));
  if (training.unfinished_seconds > 0)
    line("still moving", fmt::format("{} of sending after the last step", seconds_text(training.unfinished_seconds)));
  const double peak = std::ranges::max(training.column("memory_peak_bytes"));
  line("memory", fmt::format("at most {} of {}: {}", bytes_text(peak), bytes_text(training.memory_capacity_bytes),
                             training.memory_fits ? "fits in every step" : "does not fit in every step"));
  line("predicted", fmt::format("{} different steps for all {}", training.different, training.steps));
  return text;
}

}  // namespace

std::string training_table(const Training& training, const std::vector<std::string>& title) {
  std::string text;
  for (const std::string& line : title) text += line + "\n";
  return text + "\n" + rows_text(training) + "\n" + summary_text(training);
}

std::string training_csv(const Training& training, const std::string& scenario, std::span<const std::string_view> more,
                         std::span<const std::string> inputs) {
  std::string text = "scenario";
  for (const TrainingColumn& column : training.columns) text += "," + column.name;
  for (const std::string_view name : more) text += fmt::format(",{}", name);
  text += '\n';
  const std::string name = csv_text(scenario);
  std::string tail;
  for (const std::string& input : inputs) tail += "," + csv_text(input);
  for (std::size_t row = 0; row < static_cast<std::size_t>(training.steps); ++row) {
    text += name;
    for (const TrainingColumn& column : training.columns)
      fmt::format_to(std::back_inserter(text), ",{}", column.values[row]);
    text += tail + '\n';
  }
  return text;
}

nlohmann::ordered_json training_json(const Training& training) {
  nlohmann::ordered_json columns = nlohmann::ordered_json::object();
  for (const TrainingColumn& column : training.columns) {
    if (column.name == "step") {
      columns[column.name] = std::vector<std::int64_t>(column.values.begin(), column.values.end());
    } else {
      columns[column.name] = column.values;
    }
  }
  return {{"first_step", training.first_step},
          {"steps", training.steps},
          {"different_steps", training.different},
          {"seconds", training.seconds},
          {"unfinished_seconds", training.unfinished_seconds},
          {"memory_capacity_bytes", training.memory_capacity_bytes},
          {"memory_fits", training.memory_fits},
          {"columns", std::move(columns)}};
}

}  // namespace orrery
