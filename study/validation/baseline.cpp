#include "study/validation/baseline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/statistics.h"
#include "sim/report/format.h"
#include "study/validation/errors.h"

namespace orrery {
namespace {

constexpr double kShown = 1e-4;  // figures are kept to a hundredth of a percent

struct Figures {
  std::size_t points = 0;
  double median = 0, noise = 0;
};

// For a normal distribution: the median's standard error over the mean's, and half the distance of the 16th and 84th
// percentile over the standard deviation.
constexpr double kMedianOverMean = 1.2533;
constexpr double kOneSigmaBelow = 0.1587, kOneSigmaAbove = 0.8413;

std::map<std::string, Figures> figures_of(std::span<const PredictedPoint> points) {
  std::map<std::string, Figures> figures;
  for (const ErrorGroup& group : groups_by(points, [](const PredictedPoint& p) {
         return fmt::format("{}/{}", p.source->name, name_of(p.point->quantity));
       })) {
    if (group.error.points == 0) continue;
    std::vector<double> errors;
    for (const PredictedPoint* p : group.points) errors.push_back(std::abs(p->error()));
    const double spread = (quantile(errors, kOneSigmaAbove) - quantile(errors, kOneSigmaBelow)) / 2;
    const double error = kMedianOverMean * spread / std::sqrt(static_cast<double>(errors.size()));
    figures[group.name] = {group.error.points, group.error.median, std::max(kLeastNoise, error)};
  }
  return figures;
}

double shown(double value) { return std::round(value / kShown) * kShown; }

}  // namespace

nlohmann::ordered_json baseline_json(std::span<const PredictedPoint> points) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, f] : figures_of(points))
    json[name] = {{"points", f.points},
                  {"median", std::stod(fmt::format("{:.4f}", f.median))},
                  {"noise", std::stod(fmt::format("{:.4f}", f.noise))}};
  return json;
}

std::vector<MovedGroup> moved_groups(std::span<const PredictedPoint> points, const nlohmann::json& baseline,
                                     const std::string& file) {
  if (!baseline.is_object()) throw InputError({file, ""}, "no object", "what --write-baseline writes");
  const std::map<std::string, Figures> now = figures_of(points);
  std::vector<MovedGroup> moved;
  for (const auto& [name, kept] : baseline.items()) {
    const auto is_number = [&kept = kept](const char* key) { return kept.contains(key) && kept.at(key).is_number(); };
    const bool counted = kept.is_object() && kept.contains("points") && kept.at("points").is_number_unsigned();
    if (!counted || !is_number("median") || !is_number("noise"))
      throw InputError({file, pointer_to("", name)}, "no figures", "points (a count), median and noise");
    const auto found = now.find(name);
    MovedGroup group{.name = name, .before = kept.at("median"), .noise = kept.at("noise")};
    if (found == now.end()) {
      group.is_worse = true;
      moved.push_back(group);
      continue;
    }
    group.after = found->second.median;
    const bool lost_points = found->second.points < kept.at("points").get<std::size_t>();
    if (std::abs(shown(group.after) - shown(group.before)) < kShown && !lost_points) continue;
    group.is_worse = lost_points || group.after - group.before > group.noise;
    moved.push_back(group);
  }
  for (const auto& [name, figures] : now)
    if (!baseline.contains(name))
      moved.push_back({.name = name, .before = 0, .after = figures.median, .noise = figures.noise});
  return moved;
}

std::string moved_table(const std::vector<MovedGroup>& moved) {
  if (moved.empty()) return "";
  std::vector<std::vector<std::string>> rows;
  for (const MovedGroup& m : moved)
    rows.push_back({m.name, m.before > 0 ? percent_text(m.before) : "new", m.after > 0 ? percent_text(m.after) : "gone",
                    percent_text(m.noise),
                    m.is_worse           ? "WORSE"
                    : m.after < m.before ? "better"
                                         : ""});
  return grid("<group|median before|now|noise|<", rows);
}

}  // namespace orrery
