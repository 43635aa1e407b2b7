#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/report/format.h"
#include "sim/report/trace.h"

namespace orrery {
namespace {

// The picture's layout, in pixels.
constexpr double kWidth = 1200, kLeft = 64, kRight = 16, kTop = 58, kRow = 30, kGap = 5, kBelow = 58;
constexpr double kDigitWidth = 6.2;  // of the font for numbers
constexpr double kBox = kRow - kGap;
constexpr int kTicks = 8;

// Positions along the time axis in hundredths of a pixel: boxes that touch still touch after rounding, and positions do
// not drift although each box is placed relative to the one before.
using Hundredths = std::int64_t;
constexpr Hundredths kThinnest = 5;    // narrower boxes would vanish: they are drawn this wide
constexpr Hundredths kBordered = 200;  // boxes from this width on have a border
constexpr Hundredths kBorder = 30;
Hundredths hundredths(double pixels) { return std::llround(pixels * 100); }
std::string pixels(Hundredths x) { return fmt::format("{:.7g}", static_cast<double>(x) / 100); }

// Columns replace boxes if a row has more slots than can be told apart: more than two per pixel.
constexpr double kColumnWidth = 2;
constexpr auto kColumnsOfRow = static_cast<std::size_t>((kWidth - kLeft - kRight) / kColumnWidth);
constexpr std::size_t kMostBoxes = 2 * static_cast<std::size_t>(kWidth - kLeft - kRight);

struct Kind {
  const char* label;
  // From light to dark: later chunks of a virtual pipeline are darker.
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

void axis(std::string& out, double span, double scale, double bottom) {
  const double step = tick_step(span, kTicks);
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

std::size_t kind_drawn(const TimelineSpan& interval) { return std::min<std::size_t>(interval.kind, kKinds.size() - 1); }
bool is_drawn(const TimelineSpan& interval) {
  return interval.stream == Stream::compute && interval.end_seconds > interval.begin_seconds;
}
double top_of(std::int32_t stage) { return kTop + kRow * stage; }

// One thick line per row and colour, interrupted where boxes of other colours, or none, lie.
void draw_boxes(std::string& out, const std::vector<TimelineSpan>& intervals, std::uint16_t chunks, double scale) {
  struct Line {
    std::string path;
    Hundredths end = 0;
  };
  std::map<std::int32_t, std::map<std::string, Line>> rows;
  std::string numbers;
  for (const TimelineSpan& interval : intervals) {
    if (!is_drawn(interval)) continue;
    const Kind& kind = kKinds[kind_drawn(interval)];
    const double shade = chunks > 1 ? static_cast<double>(interval.chunk) / (chunks - 1) : 0.5;
    Hundredths begin = hundredths(kLeft + interval.begin_seconds * scale);
    Hundredths width = std::max(kThinnest, hundredths(kLeft + interval.end_seconds * scale) - begin);
    const double middle = top_of(interval.stage) + kBox / 2;
    const std::string number = interval.kind < kKinds.size() - 1 ? std::to_string(interval.micro_batch) : "";
    if (!number.empty() && width >= hundredths(kDigitWidth * static_cast<double>(number.size()) + 2))
      numbers += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", pixels(begin + width / 2), middle + 4, number);
    if (width >= kBordered) {
      begin += kBorder;
      width -= 2 * kBorder;
    }
    Line& line = rows[interval.stage][mixed(kind.light, kind.dark, shade)];
    line.path += line.path.empty() ? fmt::format("M{} {}", pixels(begin), middle)
                                   : fmt::format("m{} 0", pixels(begin - line.end));
    line.path += "h" + pixels(width);
    line.end = begin + width;
  }
  out += fmt::format("<g fill=\"none\" stroke-width=\"{}\">\n", kBox);
  for (const auto& [stage, lines] : rows)
    for (const auto& [colour, line] : lines) out += fmt::format("<path stroke=\"{}\" d=\"{}\"/>\n", colour, line.path);
  out += "</g>\n<g text-anchor=\"middle\" fill=\"#1b1b1b\">\n" + numbers + "</g>\n";
}

// For a row with more slots than can be told apart: the share of each column's time per kind, stacked from below in the
// order of the legend. White is idle time.
void draw_columns(std::string& out, const std::vector<TimelineSpan>& intervals, std::int32_t stages, double scale) {
  using Shares = std::array<double, kKinds.size()>;
  std::vector<Shares> shares(static_cast<std::size_t>(stages) * kColumnsOfRow);
  for (const TimelineSpan& interval : intervals) {
    if (!is_drawn(interval)) continue;
    Shares* row = &shares[static_cast<std::size_t>(interval.stage) * kColumnsOfRow];
    const double begin = interval.begin_seconds * scale / kColumnWidth,
                 end = interval.end_seconds * scale / kColumnWidth;
    for (auto k = static_cast<std::size_t>(begin); k < kColumnsOfRow && static_cast<double>(k) < end; ++k)
      row[k][kind_drawn(interval)] +=
          std::min(end, static_cast<double>(k + 1)) - std::max(begin, static_cast<double>(k));
  }
  out += "<g>\n";
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    Shares* row = &shares[static_cast<std::size_t>(stage) * kColumnsOfRow];
    const double bottom = top_of(stage) + kBox;
    // Each is as high as its own share and those below it together; the highest is drawn first, and later ones cover
    // the rest.
    for (std::size_t kind = kKinds.size(); kind-- > 0;) {
      std::string path;
      double before = 0;
      for (std::size_t k = 0; k <= kColumnsOfRow; ++k) {
        double share = 0;
        if (k < kColumnsOfRow && row[k][kind] > 0)
          for (std::size_t below = 0; below <= kind; ++below) share += row[k][below];
        const double high = std::round(2 * kBox * std::min(1.0, share)) / 2;  // rounded to half pixels
        if (high == before) continue;
        const double x = kLeft + kColumnWidth * static_cast<double>(k);
        path += path.empty() ? fmt::format("M{} {}", x, bottom) : fmt::format("H{}", x);
        path += fmt::format("V{}", bottom - high);
        before = high;
      }
      if (!path.empty())
        out += fmt::format("<path fill=\"{}\" d=\"{}z\"/>\n", mixed(kKinds[kind].light, kKinds[kind].dark, 0.5), path);
    }
  }
  out += "</g>\n";
}

}  // namespace

std::string report_svg(const Report& report, std::string_view title) {
  const std::vector<TimelineSpan>& intervals = report.timeline.intervals;
  std::int32_t stages = 0;
  std::uint16_t chunks = 1;
  double span = report.step_seconds;
  std::set<std::size_t> kinds;
  std::map<std::int32_t, std::size_t> slots;
  for (const TimelineSpan& interval : intervals) {
    stages = std::max(stages, interval.stage + 1);
    span = std::max(span, interval.end_seconds);
    if (interval.stream != Stream::compute) continue;
    chunks = std::max<std::uint16_t>(chunks, static_cast<std::uint16_t>(interval.chunk + 1));
    kinds.insert(kind_drawn(interval));
    ++slots[interval.stage];
  }
  const bool too_many =
      std::any_of(slots.begin(), slots.end(), [](const auto& row) { return row.second > kMostBoxes; });
  const double bottom = top_of(stages);
  const double height = bottom + kBelow;
  const double scale = span > 0 ? (kWidth - kLeft - kRight) / span : 0;

  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"11\">\n"
      "<title>{2}</title>\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n"
      "<text x=\"{3}\" y=\"22\" font-size=\"15\" font-weight=\"bold\" fill=\"#222\">{2}</text>\n"
      "<text x=\"{3}\" y=\"40\" fill=\"#666\">step {4}, pipeline bubble {5}{6}</text>\n",
      kWidth, height, xml_text(title), kLeft, seconds_text(report.step_seconds), percent_text(report.bubble_fraction),
      too_many ? "; too many slots to draw each: heights are shares of the time, white is idle" : "");
  if (span > 0) axis(out, span, scale, bottom);
  for (std::int32_t stage = 0; stage < stages; ++stage)
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#333\">stage {}</text>\n", kLeft - 8,
                       top_of(stage) + kBox / 2 + 4, stage);
  if (too_many)
    draw_columns(out, intervals, stages, scale);
  else
    draw_boxes(out, intervals, chunks, scale);
  legend(out, kinds, bottom + 42);
  return out + "</svg>\n";
}

}  // namespace orrery
