#include "study/answers/points.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "sim/base/json_reader.h"
#include "sim/hardware/presets.h"
#include "strategies/strategy.h"
#include "study/validation/published.h"

namespace orrery {
namespace {

// Says which part of the filter leaves nothing.
[[noreturn]] void refuse(const ValidationFilter& filter, Simulator& simulator) {
  const std::vector<std::string_view> words = all_plan_words();
  if (!filter.strategy.empty() && std::find(words.begin(), words.end(), filter.strategy) == words.end())
    throw InputError({"--strategy", ""}, describe(filter.strategy), fmt::format("one of {}", fmt::join(words, ", ")),
                     nearest_name(filter.strategy, words));
  if (predict_published({.source = filter.source, .gpu = "", .strategy = ""}, simulator).empty()) {
    std::vector<std::string> names;
    for (const PublishedSource& source : published_sources()) names.push_back(source.name);
    throw InputError({"--source", ""}, describe(filter.source), "part of a source's name, title or citation",
                     nearest_name(filter.source, names));
  }
  if (!filter.gpu.empty() && predict_published({.source = "", .gpu = filter.gpu, .strategy = ""}, simulator).empty()) {
    std::vector<std::string> measured;
    for (const PredictedPoint& p : predict_published({}, simulator))
      if (!p.device.empty()) measured.push_back(p.device);
    std::sort(measured.begin(), measured.end());
    measured.erase(std::unique(measured.begin(), measured.end()), measured.end());
    const std::string expected =
        fmt::format("part of the name of a device with published measurements: {}", fmt::join(measured, ", "));
    for (const std::string& device : device_names())
      if (is_part_of(device, filter.gpu))
        throw InputError({"--gpu", ""}, fmt::format("\"{}\": {} has no published measurement", filter.gpu, device),
                         expected);
    throw InputError({"--gpu", ""}, describe(filter.gpu), expected, nearest_name(filter.gpu, measured));
  }
  throw InputError({}, "no predicted point with that source, GPU and strategy", "fewer filters");
}

}  // namespace

std::vector<PredictedPoint> points_asked_for(const ValidationFilter& filter, Simulator& simulator, Seen seen) {
  std::vector<PredictedPoint> points = predict_published(filter, simulator, seen);
  if (points.empty()) refuse(filter, simulator);
  return points;
}

}  // namespace orrery
