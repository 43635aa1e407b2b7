// Output formats of a history.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "realrun/bench/history.h"
#include "realrun/bench/text.h"
#include "sim/base/json_writer.h"
#include "sim/report/format.h"

namespace orrery::bench {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::size_t kShortCommit = 12;

std::string dash_if_empty(const std::string& text) { return text.empty() ? "-" : text; }
std::string commit_text(const HistoryPoint& point) { return dash_if_empty(point.commit.substr(0, kShortCommit)); }

std::vector<std::string> devices_of(const std::vector<HistoryPoint>& points) {
  std::vector<std::string> devices;
  for (const HistoryPoint& point : points)
    if (std::find(devices.begin(), devices.end(), point.device) == devices.end()) devices.push_back(point.device);
  return devices;
}

double slowest(const std::vector<HistoryPoint>& points) {
  double most = 0;
  for (const HistoryPoint& point : points) most = std::max(most, point.high_seconds);
  return most;
}

OrderedJson json_of(const HistoryPoint& p) {
  OrderedJson json{{"date", p.date},
                   {"git_commit", p.commit},
                   {"version", p.version},
                   {"device", p.device},
                   {"repetitions", p.repetitions},
                   {"median_seconds", p.median_seconds},
                   {"first_quartile_seconds", p.low_seconds},
                   {"third_quartile_seconds", p.high_seconds}};
  if (p.ratio > 0) json["ratio_to_previous"] = p.ratio;
  return json;
}

}  // namespace

std::string history_text(const std::string& benchmark, const std::vector<HistoryPoint>& points) {
  constexpr int kBarColumns = 24;
  const double most = slowest(points);
  std::vector<std::vector<std::string>> rows;
  for (const HistoryPoint& p : points)
    rows.push_back({line_text(dash_if_empty(p.date)), line_text(commit_text(p)), line_text(dash_if_empty(p.device)),
                    fmt::format("{}", p.repetitions), seconds_text(p.median_seconds),
                    fmt::format("{} .. {}", seconds_text(p.low_seconds), seconds_text(p.high_seconds)),
                    p.ratio > 0 ? change_text(p.ratio) : "-", bar(p.median_seconds / most, kBarColumns)});
  return line_text(benchmark) + "\n\n" + grid("<date|<commit|<device|n|median|<quartiles|change|<", rows);
}

std::string history_csv(const std::string& benchmark, const std::vector<HistoryPoint>& points) {
  OrderedJson rows = OrderedJson::array();
  for (const HistoryPoint& p : points) rows.emplace_back(json_of(p))["benchmark"] = benchmark;
  return csv_rows(
      "benchmark,date,git_commit,version,device,repetitions,median_seconds,first_quartile_seconds,"
      "third_quartile_seconds,ratio_to_previous",
      rows);
}

std::string history_json(const std::string& benchmark, const std::vector<HistoryPoint>& points) {
  OrderedJson json{{"benchmark", benchmark}, {"runs", OrderedJson::array()}};
  for (const HistoryPoint& p : points) json["runs"].push_back(json_of(p));
  return json_text(json, 2) + "\n";
}

std::string history_svg(const std::string& benchmark, const std::vector<HistoryPoint>& points) {
  // In pixels.
  constexpr double kWidth = 900, kHeight = 420, kLeft = 80, kRight = 20, kTop = 50, kBelow = 90, kLegendRow = 18;
  constexpr std::array kColours{"#2f6fc1", "#d0602c", "#3c9a52", "#8a56b0", "#b8452f", "#5d6670"};
  constexpr int kTicks = 6;
  constexpr double kHeadroom = 1.05;
  constexpr std::size_t kMostLabels = 12;
  const std::vector<std::string> devices = devices_of(points);
  const double height = kHeight + kLegendRow * static_cast<double>(devices.size());
  const double bottom = kHeight - kBelow, most = std::max(slowest(points), 1e-12) * kHeadroom;
  const auto x_of = [&](std::size_t i) {
    const double places = points.size() > 1 ? static_cast<double>(points.size() - 1) : 1;
    return kLeft + (kWidth - kLeft - kRight) * (points.size() > 1 ? static_cast<double>(i) / places : 0.5);
  };
  const auto y_of = [&](double seconds) { return bottom - (bottom - kTop) * seconds / most; };

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n<title>{2}</title>\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"26\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{2}</text>\n",
      kWidth, height, xml_text(benchmark), kLeft);
  const double step = tick_step(most, kTicks);
  for (int i = 0; i * step <= most; ++i) {
    const double y = y_of(i * step);
    out += fmt::format(
        "<line x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\" stroke=\"#e4e4e4\"/>\n"
        "<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#666\">{}</text>\n",
        kLeft, y, kWidth - kRight, y, kLeft - 8, y + 4, seconds_text(i * step));
  }
  const std::size_t every = (points.size() + kMostLabels - 1) / kMostLabels;
  for (std::size_t i = 0; i < points.size(); i += std::max<std::size_t>(every, 1)) {
    const std::string day = points[i].date.substr(0, points[i].date.find('T'));
    out += fmt::format(
        "<text transform=\"translate({:.1f},{}) rotate(-35)\" text-anchor=\"end\" fill=\"#666\">{} {}</text>\n",
        x_of(i), bottom + 16, xml_text(day), xml_text(points[i].commit.substr(0, kShortCommit)));
  }
  for (std::size_t d = 0; d < devices.size(); ++d) {
    const char* const colour = kColours[d % kColours.size()];
    std::string line, marks;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const HistoryPoint& p = points[i];
      if (p.device != devices[d]) continue;
      const double x = x_of(i), y = y_of(p.median_seconds);
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "" : " ", x, y);
      marks += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\" opacity=\"0.45\" "
          "stroke-width=\"3\"/>\n",
          x, y_of(p.low_seconds), y_of(p.high_seconds), colour);
      marks +=
          fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{} {}: {}</title></circle>\n",
                      x, y, colour, xml_text(p.date), xml_text(p.commit), seconds_text(p.median_seconds));
    }
    out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\"/>\n{}", line, colour,
                       marks);
    const double y = kHeight + kLegendRow * static_cast<double>(d);
    out += fmt::format(
        "<circle cx=\"{}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n<text x=\"{}\" y=\"{:.1f}\" fill=\"#333\">{}</text>\n",
        kLeft, y - 4, colour, kLeft + 10, y, xml_text(devices[d].empty() ? "unknown device" : devices[d]));
  }
  return out + "</svg>\n";
}

}  // namespace orrery::bench
