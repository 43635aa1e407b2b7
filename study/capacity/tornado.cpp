#include "study/capacity/tornado.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>

#include "sim/report/format.h"

namespace orrery {
namespace {

struct HardwareInput {
  const char* name;
  void (*scale)(Cluster& cluster, double factor);
};
constexpr std::array<HardwareInput, 6> kHardware{{
    {"matrix FLOP/s",
     [](Cluster& c, double factor) {
       for (double& peak : c.device.peak_flops_per_second) peak *= factor;
     }},
    {"vector FLOP/s", [](Cluster& c, double factor) { c.device.vector_flops_per_second *= factor; }},
    {"memory bandwidth", [](Cluster& c, double factor) { c.device.memory_bytes_per_second *= factor; }},
    {"memory size", [](Cluster& c, double factor) { c.device.memory_bytes *= factor; }},
    {"bandwidth within nodes",
     [](Cluster& c, double factor) {
       c.device.scale_up_link_bytes_per_second *= factor;
       c.node.intra_bytes_per_second *= factor;
       c.node.pair_bytes_per_second *= factor;
     }},
    {"bandwidth between nodes", [](Cluster& c, double factor) { c.node.nic_bytes_per_second *= factor; }},
}};

// The picture's layout, in pixels.
constexpr double kWidth = 900, kLeft = 250, kRight = 90, kTop = 64, kRow = 26, kBar = 18, kBelow = 34;
constexpr double kLabel = 100;  // what labels of the axis need

}  // namespace

Tornado tornado(const CapacityPlan& plan, const SizedCandidate& sized, PlanOutput output, double swing,
                Simulator& simulator) {
  Tornado result{.output = output, .swing = swing, .value = value_of(sized.forecast, output), .bars = {}};
  const auto of_step = [&](double seconds) {
    Candidate candidate = sized.candidate;
    candidate.step_seconds = {.low = seconds, .value = seconds, .high = seconds};
    candidate.run.step_seconds = seconds;
    return value_of(forecast(candidate), output);
  };
  if (const Estimate& step = sized.candidate.step_seconds; step.low != step.high)
    result.bars.push_back({std::string(kPredictedStep), of_step(step.low), of_step(step.high)});
  const auto on_changed = [&](const HardwareInput& input, double factor, bool& fits) {
    Scenario scenario = *sized.scenario;
    input.scale(scenario.cluster, factor);
    SizedCandidate changed = sized;
    predict_step(plan, scenario, simulator, changed);
    fits = changed.memory_fits;
    return value_of(forecast(changed.candidate), output);
  };
  if (sized.scenario)
    for (const HardwareInput& input : kHardware) {
      bool less_fits = true, more_fits = true;
      const double less = on_changed(input, 1 - swing, less_fits), more = on_changed(input, 1 + swing, more_fits);
      result.bars.push_back({input.name, less, more, less_fits || !sized.memory_fits});
    }
  for (const Sensitivity& s : sensitivities(sized.candidate, output, swing))
    if (s.input != "step_seconds" || !sized.scenario)
      result.bars.push_back({std::string(s.input), s.at_less, s.at_more});
  std::ranges::stable_sort(result.bars, std::greater(), &TornadoBar::width);
  return result;
}

std::string tornado_svg(const Tornado& tornado, std::string_view title, std::string_view unit) {
  double least = tornado.value, most = tornado.value;
  for (const TornadoBar& bar : tornado.bars) {
    least = std::min({least, bar.at_less, bar.at_more});
    most = std::max({most, bar.at_less, bar.at_more});
  }
  const double span = most > least ? most - least : 1;
  const auto x = [&](double value) { return kLeft + (value - least) / span * (kWidth - kLeft - kRight); };
  const double bottom = kTop + kRow * static_cast<double>(tornado.bars.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"16\" y=\"24\" font-size=\"15\" fill=\"#111\">{2}</text>\n"
      "<text x=\"16\" y=\"44\" fill=\"#555\">each input {3:g} % less (blue) and more (orange), the others "
      "unchanged</text>\n",
      kWidth, bottom + kBelow, xml_text(title), tornado.swing * kPercent);
  double y = kTop;
  for (const TornadoBar& bar : tornado.bars) {
    out += fmt::format("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#222\">{}</text>\n", kLeft - 10,
                       y + kBar - 5, xml_text(bar.input));
    const auto half = [&](double end, const char* colour) {
      const double from = x(std::min(end, tornado.value)), to = x(std::max(end, tornado.value));
      out += fmt::format("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"/>\n", from, y,
                         to - from, kBar, colour);
    };
    half(bar.at_less, "#4a86d4");
    half(bar.at_more, "#e59a2f");
    const double end = std::max({x(bar.at_less), x(bar.at_more), x(tornado.value)});
    out += fmt::format(
        "<text x=\"{:.2f}\" y=\"{:.1f}\" fill=\"#555\">{}{}</text>\n", end + 6, y + kBar - 5,
        tornado.value != 0 ? fmt::format("{:.1f} %", bar.width() / std::fabs(tornado.value) * kPercent) : "",
        bar.less_fits ? "" : ", less does not fit");
    y += kRow;
  }
  out += fmt::format("<line x1=\"{0:.2f}\" y1=\"{1}\" x2=\"{0:.2f}\" y2=\"{2}\" stroke=\"#333\"/>\n", x(tornado.value),
                     kTop - 4, bottom);
  const auto label = [&](double value) {
    out += fmt::format("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\" fill=\"#333\">{} {}</text>\n", x(value),
                       bottom + 18, rate_text(value), xml_text(unit));
  };
  label(tornado.value);
  for (const double end : {least, most})
    if (std::fabs(x(end) - x(tornado.value)) > kLabel) label(end);
  return out + "</svg>\n";
}

}  // namespace orrery
