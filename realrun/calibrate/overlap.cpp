#include "realrun/calibrate/overlap.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "realrun/calibrate/fit.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

Place place_of(const KernelPoint& copy) { return direction_of(copy.op, copy.tensors).to; }

bool is_measured(const OverlapPair& pair, const std::map<std::string, Measurement>& measured) {
  for (const std::string* id : {&pair.compute_alone, &pair.copy_alone, &pair.compute_beside, &pair.copy_beside})
    if (measured.count(*id) == 0) return false;
  return true;
}

// Rounded as the file does.
double slowdown_of(const std::vector<double>& log_ratios) {
  double sum = 0;
  for (const double ratio : log_ratios) sum += ratio;
  const double mean = std::expm1(sum / static_cast<double>(log_ratios.size()));
  return std::max(0.0, std::stod(fmt::format("{:.4f}", mean)));  // below zero it is noise of the clock
}

Residual scatter_of(double slowdown, std::vector<double> log_ratios) {
  for (double& ratio : log_ratios) ratio = std::log1p(slowdown) - ratio;
  return residual_of(log_ratios);
}

std::vector<AttentionOverlap> attention_overlaps(const std::vector<OverlapPair>& pairs,
                                                 const std::map<std::string, Measurement>& measured) {
  std::vector<AttentionOverlap> rows;
  for (const OverlapPair& pair : pairs) {
    if (!is_attention(pair.compute.op.kind) || !is_measured(pair, measured)) continue;
    const auto seconds = [&](const std::string& id) { return measured.at(id).seconds; };
    const auto slowdown = [&](const std::string& beside, const std::string& alone) {
      return slowdown_of({std::log(seconds(beside) / seconds(alone))});
    };
    rows.push_back({.attention = pair.compute.id,
                    .copy = pair.copy.id,
                    .attention_seconds = seconds(pair.compute_alone),
                    .attention_slowdown = slowdown(pair.compute_beside, pair.compute_alone),
                    .copy_bytes_per_second = bytes(pair.copy.op, pair.copy.tensors) / seconds(pair.copy_alone),
                    .copy_slowdown = slowdown(pair.copy_beside, pair.copy_alone)});
  }
  return rows;
}

}  // namespace

std::vector<OverlapPair> overlap_pairs(const SweepOptions& options) {
  std::vector<OverlapPair> pairs;
  const auto add = [&](const char* kind, const KernelPoint& compute, const KernelPoint& copy) {
    const std::string both = fmt::format("{} | {}", compute.id, copy.id);
    pairs.push_back({.compute = compute,
                     .copy = copy,
                     .compute_alone = fmt::format("{} alone: {}", kind, both),
                     .copy_alone = "copy alone: " + both,
                     .compute_beside = fmt::format("{} beside copy: {}", kind, both),
                     .copy_beside = fmt::format("copy beside {}: {}", kind, both)});
  };
  const std::vector<KernelPoint> copies = overlap_copies(options);
  for (const KernelPoint& product : overlap_products(options))
    for (const KernelPoint& copy : copies) add("product", product, copy);
  for (const KernelPoint& attention : overlap_attentions(options)) {
    const Place to = attention.op.kind == OpKind::attention ? Place::host : Place::device;
    const KernelPoint* largest = nullptr;
    for (const KernelPoint& copy : copies)
      if (place_of(copy) == to &&
          (largest == nullptr || bytes(copy.op, copy.tensors) > bytes(largest->op, largest->tensors)))
        largest = &copy;
    if (largest != nullptr) add("attention", attention, *largest);
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
      if (place_of(pair.copy) != to || is_attention(pair.compute.op.kind) || !is_measured(pair, measured)) continue;
      products.push_back(ratio(pair.compute_beside, pair.compute_alone));
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
  return CopyOverlaps{
      .to_device = *up, .to_host = *down, .attention = attention_overlaps(pairs, measured), .source = {}};
}

}  // namespace orrery
