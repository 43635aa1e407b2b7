#include "study/validation/measured_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "sim/base/error.h"
#include "sim/base/input_file.h"
#include "sim/base/json_reader.h"
#include "sim/base/statistics.h"

namespace orrery {
namespace {

using Json = nlohmann::json;

constexpr const char* kFile = "results/published/collectives.json";
constexpr const char* kNvlink = "NVLink";
// Messages are simulated one by one: a ring of n ranks has some 2 n^2 of them for each channel.
constexpr std::int64_t kMostRanksExactly = 512;

const Json& published() {
  static const Json json = parse_embedded(kFile);
  return json;
}

std::string links_of(const Cluster& cluster) {
  if (cluster.nodes > 1) return "network";
  switch (cluster.node.intra) {
    case IntraFabric::nvlink_pairs:
      return "NVLink bridges and PCIe";
    case IntraFabric::pcie:
      return "PCIe";
    default:
      return cluster.device.architecture.starts_with("CDNA") ? "xGMI" : kNvlink;
  }
}

void predict(const MeasuredOptions& options, const Cluster& cluster, MeasuredCurve& curve) {
  if (curve.ranks % curve.nodes != 0)
    throw InputError({}, fmt::format("{} ranks on {} nodes", curve.ranks, curve.nodes), "equally many on each node");
  if (has_des(options.engines) && options.des.fidelity == Fidelity::step_exact &&
      curve.ranks > kMostRanksExactly)
    throw InputError({}, fmt::format("{} ranks", curve.ranks),
                     fmt::format("at most {} for --fidelity {}", kMostRanksExactly,
                                 kFidelityNames[static_cast<std::size_t>(Fidelity::step_exact)]));
  const CollectiveKind* kind = find_collective(curve.kind);
  if (kind == nullptr) throw InputError({}, describe(curve.kind), "a collective that Orrery has");
  // Measured between two ranks, in one direction.
  const OpKind op = kind->op == OpKind::ring_shift ? OpKind::send : kind->op;
  const auto algorithm = static_cast<CollectiveAlgorithm>(
      std::ranges::find(kCollectiveAlgorithmNames, curve.algorithm) - kCollectiveAlgorithmNames.begin());
  const CollectivePredictor predictor(cluster, curve.ranks / curve.nodes, curve.ranks, options.des);
  curve.calibration_class =
      cluster.nodes > 1 ? predictor.calibration().inter_class : predictor.calibration().intra_class;
  for (MeasuredPoint& point : curve.points) {
    point.predicted = predictor.predict(op, point.bytes, algorithm, CollectiveProtocol::automatic, options.engines);
    point.predicted.run.reset();  // thousands of points: only their seconds are kept
    if (algorithm != CollectiveAlgorithm::automatic && point.predicted.algorithm != algorithm)
      throw InputError({}, fmt::format("{} as forced algorithm", curve.algorithm),
                       "an algorithm that this group can use");
  }
}

bool wanted(const MeasuredOptions& options, const MeasuredCurve& curve) {
  if (!options.kind.empty() && options.kind != curve.kind) return false;
  for (const std::string* text : {&curve.id, &curve.source, &curve.system, &curve.gpu, &curve.network, &curve.kind})
    if (is_part_of(*text, options.filter)) return true;
  return false;
}

ErrorSummary summary_of(std::string level, std::string name, std::span<const MeasuredCurve* const> curves,
                        const Engines& engines) {
  ErrorSummary summary;
  summary.level = std::move(level);
  summary.name = std::move(name);
  summary.curves = curves.size();
  std::vector<MeasuredPoint> points;
  for (const MeasuredCurve* c : curves) points.insert(points.end(), c->points.begin(), c->points.end());
  for (const std::size_t e : engines) {
    summary.large[e] = error_over(points, e, kLargeBytes);
    summary.all[e] = error_over(points, e, 0);
    std::vector<double> medians;
    for (const MeasuredCurve* c : curves)
      if (const ErrorStatistics error = error_over(c->points, e, kLargeBytes); error.points > 0)
        medians.push_back(error.median);
    if (!medians.empty()) summary.median_curve[e] = median(std::move(medians));
  }
  return summary;
}

}  // namespace

ErrorStatistics error_over(std::span<const MeasuredPoint> points, std::size_t engine, double least_bytes) {
  std::vector<double> errors;
  for (const MeasuredPoint& point : points)
    if (point.bytes >= least_bytes) errors.push_back(point.error(engine));
  return error_statistics(errors);
}

MeasuredCollectives predict_measured(const MeasuredOptions& options) {
  MeasuredCollectives result;
  std::vector<Cluster> clusters;
  std::vector<std::string> names;
  for (const Json& json : published().at("curves")) {
    MeasuredCurve curve;
    curve.id = json.at("id");
    curve.source = json.at("source");
    curve.method = json.at("method");
    curve.system = json.at("system");
    curve.kind = json.at("collective");
    curve.algorithm = json.at("algorithm");
    curve.ranks = json.at("ranks");
    curve.nodes = json.at("nodes");
    curve.not_fitted = json.value("not_fitted", "");
    const Cluster cluster = cluster_of_curve(json, published().at("systems").at(curve.system));
    curve.gpu = cluster.device.name;
    curve.network = cluster.fabric.name;
    curve.links = links_of(cluster);
    for (const std::string* name : {&curve.id, &curve.system, &curve.gpu, &curve.network, &curve.kind})
      names.push_back(*name);
    if (!wanted(options, curve)) continue;
    for (const Json& point : json.at("points")) {
      constexpr double kSecondsPerMicrosecond = 1e-6;
      curve.points.push_back({.bytes = point.at(0),
                              .measured_seconds = point.at(1).get<double>() * kSecondsPerMicrosecond,
                              .predicted = {}});
    }
    result.curves.push_back(std::move(curve));
    clusters.push_back(cluster);
  }
  for (const Json& json : published().at("left_out")) {
    const LeftOutCurve curve{json.at("id"), json.at("why")};
    if (options.kind.empty() && is_part_of(curve.id, options.filter)) result.left_out.push_back(curve);
  }
  if (result.curves.empty())
    throw InputError({"--measured", ""}, describe(options.filter),
                     fmt::format("part of the name, source, system, device or network of a measured {}",
                                 options.kind.empty() ? "curve" : options.kind),
                     nearest_name(options.filter, names));

  for (std::size_t i = 0; i < result.curves.size(); ++i) {
    MeasuredCurve& curve = result.curves[i];
    if (options.progress) options.progress(i, result.curves.size(), curve.id);
    try {
      predict(options, clusters[i], curve);
    } catch (const InputError& error) {
      curve.unpredicted = error.what();
      for (MeasuredPoint& point : curve.points) point.predicted = {};
    }
  }
  return result;
}

std::vector<ErrorSummary> summaries_of(std::span<const MeasuredCurve> curves, const Engines& engines) {
  std::vector<ErrorSummary> summaries;
  for (const bool between : {false, true}) {
    const char* level = between ? "between nodes" : "within a node";
    std::vector<const MeasuredCurve*> all, nvlink;
    std::vector<std::string> classes;  // in the order of the file
    std::map<std::string, std::vector<const MeasuredCurve*>> of_class;
    for (const MeasuredCurve& curve : curves) {
      if (!curve.unpredicted.empty() || (curve.nodes > 1) != between) continue;
      all.push_back(&curve);
      if (curve.links == kNvlink) nvlink.push_back(&curve);
      auto& of_this = of_class[curve.calibration_class];
      if (of_this.empty()) classes.push_back(curve.calibration_class);
      of_this.push_back(&curve);
    }
    for (const std::string& name : classes) summaries.push_back(summary_of(level, name, of_class[name], engines));
    if (!nvlink.empty()) summaries.push_back(summary_of(level, "all of NVLink", nvlink, engines));
    if (!all.empty()) summaries.push_back(summary_of(level, "all", all, engines));
  }
  return summaries;
}

}  // namespace orrery
