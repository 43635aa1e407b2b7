#include "study/validation/scaling.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"

namespace orrery {
namespace {

constexpr const char* kFile = "results/published/scaling.json";

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

}  // namespace

std::vector<ScalingSeries> scaling_series(std::span<const PredictedPoint> points) {
  std::map<std::string, const PredictedPoint*> by_id;
  for (const PredictedPoint& p : points) by_id[p.point->id] = &p;
  std::vector<ScalingSeries> all;
  const nlohmann::json document = parse_embedded(kFile);
  const nlohmann::json& listed = document.at("series");
  for (std::size_t i = 0; i < listed.size(); ++i) {
    ScalingSeries series;
    series.name = listed[i].at("name");
    series.weak = listed[i].at("kind") == "weak";
    for (const nlohmann::json& id : listed[i].at("points")) {
      const auto found = by_id.find(id);
      if (found == by_id.end())
        throw InputError({kFile, "/series/" + std::to_string(i)}, id.get<std::string>(), "the id of a published point");
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

}  // namespace orrery
