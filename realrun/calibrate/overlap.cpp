#include "realrun/calibrate/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "realrun/calibrate/fit.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

bool is_measured(const OverlapPair& pair, const std::map<std::string, Measurement>& measured) {
  for (const std::string* id : {&pair.product_alone, &pair.copy_alone, &pair.product_beside, &pair.copy_beside})
    if (measured.count(*id) == 0) return false;
  return true;
}

// Stated as the file states it.
double slowdown_of(const std::vector<double>& log_ratios) {
  double sum = 0;
  for (const double ratio : log_ratios) sum += ratio;
  const double mean = std::expm1(sum / static_cast<double>(log_ratios.size()));
  return std::max(0.0, std::stod(fmt::format("{:.4f}", mean)));  // below zero it is the clock's noise
}

Residual scatter_of(double slowdown, std::vector<double> log_ratios) {
  for (double& ratio : log_ratios) ratio = std::log1p(slowdown) - ratio;
  return residual_of(log_ratios);
}

}  // namespace

std::vector<OverlapPair> overlap_pairs(const SweepOptions& options) {
  std::vector<OverlapPair> pairs;
  for (const SweepPoint& product : overlap_products(options))
    for (const SweepPoint& copy : overlap_copies(options)) {
      const std::string both = fmt::format("{} | {}", product.id, copy.id);
      pairs.push_back({.product = product,
                       .copy = copy,
                       .product_alone = "product alone: " + both,
                       .copy_alone = "copy alone: " + both,
                       .product_beside = "product beside copy: " + both,
                       .copy_beside = "copy beside product: " + both});
    }
  return pairs;
}

std::optional<CopyOverlaps> fit_overlaps(const std::vector<OverlapPair>& pairs,
                                         const std::map<std::string, Measurement>& measured) {
  const auto of = [&](Place to) -> std::optional<CopyOverlap> {
    std::vector<double> products, copies;
    const auto ratio = [&](const std::string& beside, const std::string& alone) {
      return std::log(measured.at(beside).seconds / measured.at(alone).seconds);
    };
    for (const OverlapPair& pair : pairs) {
      if (direction_of(pair.copy.op, pair.copy.tensors).to != to || !is_measured(pair, measured)) continue;
      products.push_back(ratio(pair.product_beside, pair.product_alone));
      copies.push_back(ratio(pair.copy_beside, pair.copy_alone));
    }
    if (products.empty()) return std::nullopt;
    CopyOverlap overlap;
    overlap.product_slowdown = slowdown_of(products);
    overlap.copy_slowdown = slowdown_of(copies);
    overlap.product_residual = scatter_of(overlap.product_slowdown, products);
    overlap.copy_residual = scatter_of(overlap.copy_slowdown, copies);
    return overlap;
  };
  const std::optional<CopyOverlap> up = of(Place::device), down = of(Place::host);
  if (!up || !down) return std::nullopt;
  return CopyOverlaps{.to_device = *up, .to_host = *down, .source = {}};
}

}  // namespace orrery
