// Measured curves of collectives (results/published/collectives.json, compiled in) with the engines' predictions.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "study/simulation/collective_prediction.h"
#include "study/validation/errors.h"

namespace orrery {

struct MeasuredPoint {
  double bytes = 0;
  double measured_seconds = 0;
  CollectivePrediction predicted;

  double error(std::size_t engine) const { return predicted.seconds[engine] / measured_seconds - 1; }
};

struct MeasuredCurve {
  std::string id, source, method;
  std::string system, gpu, network;
  std::string links;  // the links that bound it: "NVLink", "PCIe", ... within a node, "network" between nodes
  std::string calibration_class;  // of those links
  std::string kind, algorithm;    // `algorithm`: the one that the measurement was forced to, or "automatic"
  std::int64_t ranks = 0, nodes = 0;
  std::string not_fitted;   // empty, or why the calibration does not use it
  std::string unpredicted;  // empty, or why there is no prediction; the points then have none
  std::vector<MeasuredPoint> points;
};

// A measured curve whose points are not kept.
struct LeftOutCurve {
  std::string id, why;
};

struct MeasuredCollectives {
  std::vector<MeasuredCurve> curves;
  std::vector<LeftOutCurve> left_out;
};

// Sizes from here on are large: bandwidth, not latency, takes most of the time.
inline constexpr double kLargeBytes = 1 << 20;

// Errors of points of at least `least_bytes`.
ErrorStatistics error_over(std::span<const MeasuredPoint> points, std::size_t engine, double least_bytes);

struct MeasuredOptions {
  std::string filter;  // part of a curve's id, source, system, device, network or kind, in any letter case
  std::string kind;    // one of kCollectiveKinds; empty: all
  Engines engines{0, 1};
  DiscreteEventOptions des;
  // Called before each curve.
  std::function<void(std::size_t done, std::size_t total, const std::string& id)> progress;
};
// Predicts each curve on its own cluster, with that cluster's bundled calibration. Throws InputError if no curve is
// left.
MeasuredCollectives predict_measured(const MeasuredOptions& options);

// Prediction errors of groups of curves: of each class of the calibration, and of all NVLink nodes, all nodes, and all
// clusters. Groups without predicted curves are left out.
struct ErrorSummary {
  std::string level;  // "within a node", "between nodes"
  std::string name;
  std::size_t curves = 0;
  std::array<ErrorStatistics, kEngines> large, all;  // over all points of all curves
  std::array<double, kEngines> median_curve{};       // median of the curves' median errors, large messages
};
std::vector<ErrorSummary> summaries_of(std::span<const MeasuredCurve> curves, const Engines& engines);

}  // namespace orrery
