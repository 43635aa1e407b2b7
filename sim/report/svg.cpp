#include "sim/report/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "sim/report/format.h"

namespace orrery {
namespace {

// The picture's layout, in pixels.
constexpr double kWidth = 1200, kLeft = 64, kRight = 16, kTop = 58, kRow = 30, kGap = 5, kBelow = 58;
constexpr double kDigitWidth = 6.2;  // of the numbers' font
constexpr double kThinnest = 0.05;   // boxes narrower than this would vanish: drawn this wide
constexpr int kTicks = 8;

struct Kind {
  const char* label;
  // Light to dark: later chunks of a virtual pipeline are darker.
  const char* light;
  const char* dark;
};
constexpr std::array<Kind, 4> kKinds{{{"forward", "#9ec5f4", "#4a86d4"},
                                      {"backward", "#a8dcae", "#45a558"},
                                      {"weight gradient", "#ffd591", "#e59a2f"},
                                      {"update", "#c9c4d8", "#c9c4d8"}}};

std::string mixed(std::string_view a, std::string_view b, double share) {
  const auto channel = [](std::string_view colour, std::size_t i) {
    return std::stoi(std::string(colour.substr(1 + 2 * i, 2)), nullptr, 16);
  };
  std::string out = "#";
  for (std::size_t i = 0; i < 3; ++i)
    out += fmt::format("{:02x}", static_cast<int>(std::lround(channel(a, i) * (1 - share) + channel(b, i) * share)));
  return out;
}

// 1, 2 or 5 times a power of ten.
double tick_step(double span) {
  const double raw = span / kTicks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) return factor * power;
  return 10 * power;
}

void axis(std::string& out, double span, double scale, double bottom) {
  const double step = tick_step(span);
  const auto [unit, per_second] = span >= 1      ? std::pair("s", 1.0)
                                  : span >= 1e-3 ? std::pair("ms", 1e3)
                                                 : std::pair("us", 1e6);
  for (int i = 0; i * step <= span * (1 + 1e-9); ++i) {
    const double x = kLeft + i * step * scale;
    out += fmt::format("<line x1=\"{0:.2f}\" y1=\"{1}\" x2=\"{0:.2f}\" y2=\"{2}\" stroke=\"#e4e4e4\"/>\n", x, kTop - 4,
                       bottom);
    out += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#666\">{:g} {}</text>\n", x,
                       bottom + 16, i * step * per_second, unit);
  }
}

void legend(std::string& out, const std::set<std::size_t>& kinds, double y) {
  double x = kLeft;
  for (const std::size_t kind : kinds) {
    const std::string_view label = kKinds[kind].label;
    out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n", x, y - 10,
                       mixed(kKinds[kind].light, kKinds[kind].dark, 0.5));
    out += fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#333\">{}</text>\n", x + 17, y, label);
    x += 36 + kDigitWidth * static_cast<double>(label.size());
  }
}

}  // namespace

std::string report_svg(const Report& report, std::string_view title) {
  std::int32_t stages = 0;
  std::uint16_t chunks = 1;
  double span = report.step_seconds;
  std::set<std::size_t> kinds;
  for (const Interval& interval : report.timeline.intervals) {
    stages = std::max(stages, interval.stage + 1);
    span = std::max(span, interval.end_seconds);
    if (interval.stream != Stream::compute) continue;
    chunks = std::max<std::uint16_t>(chunks, static_cast<std::uint16_t>(interval.chunk + 1));
    kinds.insert(std::min<std::size_t>(interval.kind, kKinds.size() - 1));
  }
  const double bottom = kTop + kRow * stages;
  const double height = bottom + kBelow;
  const double scale = span > 0 ? (kWidth - kLeft - kRight) / span : 0;

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{2}</text>\n"
      "<text x=\"{3}\" y=\"40\" fill=\"#666\">step {4}, pipeline bubble {5}</text>\n",
      kWidth, height, xml_text(title), kLeft, seconds_text(report.step_seconds), percent_text(report.bubble_fraction));
  if (span > 0) axis(out, span, scale, bottom);
  for (std::int32_t stage = 0; stage < stages; ++stage)
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#333\">stage {}</text>\n", kLeft - 8,
                       kTop + kRow * stage + (kRow - kGap) / 2 + 4, stage);
  for (const Interval& interval : report.timeline.intervals) {
    if (interval.stream != Stream::compute || interval.end_seconds <= interval.begin_seconds) continue;
    const Kind& kind = kKinds[std::min<std::size_t>(interval.kind, kKinds.size() - 1)];
    const double x = kLeft + interval.begin_seconds * scale;
    const double y = kTop + kRow * interval.stage;
    const double width = std::max(kThinnest, (interval.end_seconds - interval.begin_seconds) * scale);
    const double shade = chunks > 1 ? static_cast<double>(interval.chunk) / (chunks - 1) : 0.5;
    out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}/>\n", x, y,
                       width, kRow - kGap, mixed(kind.light, kind.dark, shade),
                       width >= 2 ? " stroke=\"#ffffff\" stroke-width=\"0.6\"" : "");
    const std::string number = interval.kind < 3 ? std::to_string(interval.micro_batch) : "";
    if (!number.empty() && width >= kDigitWidth * static_cast<double>(number.size()) + 2)
      out += fmt::format("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" fill=\"#1b1b1b\">{}</text>\n",
                         x + width / 2, y + (kRow - kGap) / 2 + 4, number);
  }
  legend(out, kinds, bottom + 42);
  return out + "</svg>\n";
}

}  // namespace orrery
