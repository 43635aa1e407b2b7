#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/report/format.h"
#include "study/training/training.h"

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

// The picture's layout, in pixels.
constexpr double kWidth = 960, kLeft = 96, kRight = 24, kLine = 17, kPanel = 92, kBetween = 34, kBelow = 44;
constexpr double kAcross = kWidth - kLeft - kRight;
constexpr int kTicks = 10;
constexpr double kSlack = 0.08;  // of a panel, above and below

struct Panel {
  const TrainingColumn* column = nullptr;
  std::string heading;
};

bool changes(const TrainingColumn& column) {
  return std::ranges::any_of(column.values, [&](double value) { return value != column.values.front(); });
}

// Time of steps always; of what follows from it, or is there for programs, none.
std::vector<Panel> panels_of(const Training& training) {
  std::vector<Panel> panels;
  for (const TrainingColumn& column : training.columns) {
    if (column.name == "step" || column.name == "begin_seconds" || column.name == "tokens_per_second_per_device")
      continue;
    if (column.name == "step_seconds" || changes(column)) panels.push_back({&column, column.name});
  }
  for (Panel& panel : panels) {
    constexpr std::string_view kSeconds = "_seconds", kBytes = "_bytes";
    for (const auto& [ending, unit] : {std::pair{kSeconds, " (s)"}, std::pair{kBytes, " (GiB)"}})
      if (panel.heading.ends_with(ending))
        panel.heading.replace(panel.heading.size() - ending.size(), ending.size(), unit);
    if (panel.heading == "mfu") panel.heading = "MFU (%)";
    std::ranges::replace(panel.heading, '_', ' ');
  }
  return panels;
}

double shown(const TrainingColumn& column, double value) {
  constexpr double kGiB = 1024.0 * 1024 * 1024;
  return column.name.ends_with("_bytes") ? value / kGiB : column.name == "mfu" ? value * kPercent : value;
}

void text_at(std::string& out, double x, double y, std::string_view anchor, std::string_view colour,
             std::string_view text) {
  out += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     xml_text(text));
}

// Draws the first, the lowest, the highest and the last of the steps that share a pixel.
std::string path_of(const TrainingColumn& column, double top, double low, double high) {
  const std::size_t count = column.values.size();
  const auto y = [&](double value) { return top + kPanel * (high - shown(column, value)) / (high - low); };
  std::string path;
  const auto to = [&](double x, double value) {
    path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", x, y(value));
  };
  const auto pixels = static_cast<std::size_t>(kAcross);
  const std::size_t places = std::min(count, pixels);
  for (std::size_t place = 0; place < places; ++place) {
    const std::size_t begin = count * place / places, end = count * (place + 1) / places;
    const auto values = std::span(column.values).subspan(begin, end - begin);
    const double left = kLeft + kAcross * static_cast<double>(begin) / static_cast<double>(count);
    const double right = kLeft + kAcross * static_cast<double>(end) / static_cast<double>(count);
    if (values.size() == 1) {
      to(left, values.front());
      to(right, values.front());
      continue;
    }
    to(left, values.front());
    to(left, std::ranges::min(values));
    to(left, std::ranges::max(values));
    to(right, values.back());
  }
  return path;
}

void draw(std::string& out, const Panel& panel, double top) {
  const auto [least, most] = std::ranges::minmax_element(panel.column->values);
  double low = shown(*panel.column, *least), high = shown(*panel.column, *most);
  const double span = high - low;
  // One that hardly changes is not drawn as if it did.
  const double slack = std::max(span * kSlack, std::max(std::abs(high) * 0.01, 1e-12));
  low -= slack;
  high += slack;
  const double step = tick_step(high - low, 4);
  for (double at = std::ceil(low / step) * step; at <= high; at += step) {
    const double y = top + kPanel * (high - at) / (high - low);
    out += fmt::format("<line x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\" stroke=\"#e4e4e4\"/>\n", kLeft,
                       kWidth - kRight, y);
    text_at(out, kLeft - 6, y + 4, "end", "#666", fmt::format("{:.6g}", std::abs(at) < step / 1e6 ? 0 : at));
  }
  text_at(out, kLeft, top - 6, "start", "#222", panel.heading);
  out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"#2f6fbf\" stroke-width=\"1.2\"/>\n",
                     path_of(*panel.column, top, low, high));
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

std::string training_svg(const Training& training, const std::vector<std::string>& title) {
  const std::vector<Panel> panels = panels_of(training);
  const double head = kLine * static_cast<double>(title.size() + 1) + kBetween;
  const double bottom = head + static_cast<double>(panels.size()) * (kPanel + kBetween) - kBetween;
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
      kWidth, bottom + kBelow);
  double y = kLine;
  for (const std::string& line : title) {
    text_at(out, kLeft, y + 4, "start", "#222", line);
    y += kLine;
  }
  text_at(out, kLeft, y + 4, "start", "#666",
          fmt::format("{} steps in {}", training.steps, seconds_text(training.seconds)));
  const auto count = static_cast<double>(training.steps);
  const double step = std::max(1.0, tick_step(std::max(count, 1.0), kTicks));
  for (double at = 0; at <= count; at += step) {
    const double x = kLeft + kAcross * at / count;
    out += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#f0f0f0\"/>\n", x,
                       head, bottom);
    text_at(out, x, bottom + kLine, "middle", "#666",
            fmt::format("{:.0f}", static_cast<double>(training.first_step) + at));
  }
  text_at(out, kLeft + kAcross / 2, bottom + 2 * kLine, "middle", "#666", "step");
  double top = head;
  for (const Panel& panel : panels) {
    draw(out, panel, top);
    top += kPanel + kBetween;
  }
  return out + "</svg>\n";
}

}  // namespace orrery
