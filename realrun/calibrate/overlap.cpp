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

// The logarithm of a slow-down.
double log_ratio(const std::map<std::string, Measurement>& measured, const std::string& beside,
                 const std::string& alone) {
  return std::log(measured.at(beside).seconds / measured.at(alone).seconds);
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
  CopyOverlaps result;
  std::map<Place, std::vector<double>> products, copies;  // by where the copy goes
  for (const OverlapPair& pair : pairs) {
    if (!is_measured(pair, measured)) continue;
    const double compute = log_ratio(measured, pair.compute_beside, pair.compute_alone),
                 copy = log_ratio(measured, pair.copy_beside, pair.copy_alone);
    if (is_attention(pair.compute.op.kind)) {
      result.attention.push_back(
          {.attention = pair.compute.id,
           .copy = pair.copy.id,
           .attention_seconds = measured.at(pair.compute_alone).seconds,
           .attention_slowdown = slowdown_of({compute}),
           .copy_bytes_per_second = bytes(pair.copy.op, pair.copy.tensors) / measured.at(pair.copy_alone).seconds,
           .copy_slowdown = slowdown_of({copy})});
    } else {
      products[place_of(pair.copy)].push_back(compute);
      copies[place_of(pair.copy)].push_back(copy);
    }
  }
  for (const auto& [to, overlap] : {std::pair(Place::device, &result.to_device), {Place::host, &result.to_host}}) {
    if (products[to].empty()) return std::nullopt;
    overlap->product_slowdown = slowdown_of(products[to]);
    overlap->copy_slowdown = slowdown_of(copies[to]);
    overlap->product_residual = scatter_of(overlap->product_slowdown, products[to]);
    overlap->copy_residual = scatter_of(overlap->copy_slowdown, copies[to]);
  }
  return result;
}

}  // namespace orrery
