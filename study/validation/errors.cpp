#include "study/validation/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "sim/base/statistics.h"
#include "sim/report/format.h"

namespace orrery {

ErrorStatistics error_statistics(const std::vector<double>& errors) {
  ErrorStatistics s;
  s.points = errors.size();
  if (errors.empty()) return s;
  std::vector<double> absolute;
  for (const double e : errors) absolute.push_back(std::abs(e));
  for (const double e : absolute) s.mean += e / static_cast<double>(absolute.size());
  s.median = median(absolute);
  constexpr double kNinetieth = 0.9;
  s.percentile_90 = quantile(absolute, kNinetieth);
  s.worst = *std::max_element(absolute.begin(), absolute.end());
  s.bias = median(errors);
  return s;
}

std::optional<double> kendall_tau(std::span<const double> a, std::span<const double> b) {
  const auto sign = [](double x) { return (x > 0) - (x < 0); };
  std::int64_t sum = 0, differ_a = 0, differ_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = i + 1; j < a.size(); ++j) {
      const int order_a = sign(a[i] - a[j]), order_b = sign(b[i] - b[j]);
      sum += order_a * order_b;
      differ_a += std::abs(order_a);
      differ_b += std::abs(order_b);
    }
  if (differ_a == 0 || differ_b == 0) return std::nullopt;
  return static_cast<double>(sum) / std::sqrt(static_cast<double>(differ_a) * static_cast<double>(differ_b));
}

Ranking ranking_of(std::span<const PredictedPoint* const> points) {
  std::map<std::pair<const PublishedSource*, std::string>, std::vector<const PredictedPoint*>> tables;
  for (const PredictedPoint* p : points)
    if (!p->point->table.empty()) tables[{p->source, p->point->table}].push_back(p);
  Ranking ranking;
  double taus = 0, lost = 0;
  for (const auto& [name, table] : tables) {
    if (table.size() < kLeastOfTable) continue;
    std::vector<double> measured, predicted;
    for (const PredictedPoint* p : table) {
      measured.push_back(p->point->value);
      predicted.push_back(p->predicted);
    }
    const std::optional<double> tau = kendall_tau(measured, predicted);
    if (!tau) continue;
    ++ranking.tables;
    taus += *tau;
    const auto chosen = std::min_element(predicted.begin(), predicted.end()) - predicted.begin();
    lost += measured[static_cast<std::size_t>(chosen)] / *std::min_element(measured.begin(), measured.end()) - 1;
  }
  if (ranking.tables > 0) {
    ranking.tau = taus / static_cast<double>(ranking.tables);
    ranking.best_lost = lost / static_cast<double>(ranking.tables);
  }
  return ranking;
}

void sort_worst_first(std::vector<const PredictedPoint*>& points) {
  const auto off = [](const PredictedPoint* p) { return std::abs(std::log(p->predicted / p->point->value)); };
  std::sort(points.begin(), points.end(),
            [&](const PredictedPoint* a, const PredictedPoint* b) { return off(a) > off(b); });
}

bool ran(const PublishedPoint& point) { return point.quantity != Quantity::fits || point.value > 0; }

FitsConfusion fits_confusion(std::span<const PredictedPoint> points) {
  FitsConfusion confusion;
  const auto beyond = [](const PredictedPoint& p) { return std::abs(p.peak_bytes / p.capacity_bytes - 1); };
  for (const PredictedPoint& p : points) {
    const Quantity quantity = p.point->quantity;
    const bool of_a_run = quantity == Quantity::fits || quantity == Quantity::step_seconds ||
                          quantity == Quantity::peak_allocated_bytes || quantity == Quantity::peak_reserved_bytes ||
                          quantity == Quantity::peak_device_bytes;
    if (!p.is_predicted() || !p.is_measured() || !of_a_run || p.capacity_bytes <= 0) continue;
    const bool did = ran(*p.point), fits = p.peak_bytes <= p.capacity_bytes;
    if (did && fits) ++confusion.fits_as_predicted;
    if (!did && !fits) ++confusion.fails_as_predicted;
    if (!did && fits) ++confusion.wrongly_fits;
    if (did && !fits) ++confusion.wrongly_fails;
    if (did == fits) continue;
    confusion.wrong.push_back(&p);
    if (beyond(p) > kFitsMargin) ++confusion.wrong_beyond_margin;
  }
  std::stable_sort(confusion.wrong.begin(), confusion.wrong.end(),
                   [&](const PredictedPoint* a, const PredictedPoint* b) { return beyond(*a) > beyond(*b); });
  return confusion;
}

std::vector<ErrorGroup> groups_by(std::span<const PredictedPoint> points,
                                  const std::function<std::string(const PredictedPoint&)>& key) {
  std::vector<ErrorGroup> groups;
  std::map<std::string, std::size_t> index;
  for (const PredictedPoint& point : points) {
    const std::string name = key(point);
    if (name.empty()) continue;
    const auto [at, is_new] = index.try_emplace(name, groups.size());
    if (is_new) groups.emplace_back().name = name;
    ErrorGroup& group = groups[at->second];
    if (point.is_predicted()) {
      group.points.push_back(&point);
    } else {
      ++group.not_predicted;
    }
  }
  for (ErrorGroup& group : groups) {
    std::vector<double> errors;
    std::vector<const PredictedPoint*> steps;
    for (const PredictedPoint* p : group.points) {
      if (p->point->quantity != Quantity::fits) errors.push_back(p->error());
      if (p->point->quantity == Quantity::step_seconds) steps.push_back(p);
    }
    group.error = error_statistics(errors);
    group.ranking = ranking_of(steps);
  }
  return groups;
}

namespace {

constexpr const char* kScalingFile = "results/published/scaling.json";

// Sequences a device and step; those of a series are of one length.
double work_of(const PredictedPoint& p) {
  return p.point->scenario->at("workload").at("global_batch_size").get<double>() / static_cast<double>(p.devices);
}

// first, last: seconds of a step.
double loss_per_doubling(const ScalingSeries& series, double first, double last) {
  const PredictedPoint &a = *series.points.front(), &b = *series.points.back();
  const double rate = work_of(b) / last / (work_of(a) / first);
  return 1 - std::pow(rate, 1 / std::log2(static_cast<double>(b.devices) / static_cast<double>(a.devices)));
}

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

std::vector<ScalingSeries> scaling_series(std::span<const PredictedPoint> points) {
  std::map<std::string, const PredictedPoint*> by_id;
  for (const PredictedPoint& p : points) by_id[p.point->id] = &p;
  std::vector<ScalingSeries> all;
  const nlohmann::json document = parse_embedded(kScalingFile);
  const nlohmann::json& listed = document.at("series");
  for (std::size_t i = 0; i < listed.size(); ++i) {
    ScalingSeries series;
    series.name = listed[i].at("name");
    series.weak = listed[i].at("kind") == "weak";
    for (const nlohmann::json& id : listed[i].at("points")) {
      const auto found = by_id.find(id);
      if (found == by_id.end())
        throw InputError({kScalingFile, "/series/" + std::to_string(i)}, id.get<std::string>(),
                         "the id of a published point");
      if (found->second->is_predicted()) series.points.push_back(found->second);
    }
    std::stable_sort(series.points.begin(), series.points.end(),
                     [](const PredictedPoint* a, const PredictedPoint* b) { return a->devices < b->devices; });
    if (series.points.size() < 2 || series.points.front()->devices == series.points.back()->devices) continue;
    const PredictedPoint &first = *series.points.front(), &last = *series.points.back();
    series.measured_loss = loss_per_doubling(series, first.point->value, last.point->value);
    series.predicted_loss = loss_per_doubling(series, first.predicted, last.predicted);
    all.push_back(std::move(series));
  }
  return all;
}

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
