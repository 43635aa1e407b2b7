// Published measurements of training steps (results/published/steps/*.json, compiled in), each with the scenario it was
// of. The format: results/published/README.md.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "sim/base/error.h"

namespace orrery {

enum class Quantity : std::uint8_t {
  step_seconds,
  peak_allocated_bytes,
  peak_reserved_bytes,
  peak_device_bytes,
  fits,
  layer_forward_seconds,
  layer_backward_seconds,
  attention_forward_seconds,
  attention_backward_seconds,
  attention_seconds,
  forward_backward_seconds,
  activation_bytes_per_layer,
  model_state_bytes
};
inline constexpr std::array<std::string_view, 13> kQuantityNames{"step_seconds",
                                                                 "peak_allocated_bytes",
                                                                 "peak_reserved_bytes",
                                                                 "peak_device_bytes",
                                                                 "fits",
                                                                 "layer_forward_seconds",
                                                                 "layer_backward_seconds",
                                                                 "attention_forward_seconds",
                                                                 "attention_backward_seconds",
                                                                 "attention_seconds",
                                                                 "forward_backward_seconds",
                                                                 "activation_bytes_per_layer",
                                                                 "model_state_bytes"};
inline std::string_view name_of(Quantity q) { return kQuantityNames[static_cast<std::size_t>(q)]; }
// Of a layer or its attention, timed on their own, as kernels are: what steps show beyond kernels is no part of it.
inline bool is_of_layer(Quantity q) { return name_of(q).starts_with("layer_") || name_of(q).starts_with("attention_"); }
inline bool is_seconds(Quantity q) { return name_of(q).ends_with("_seconds"); }
inline bool is_bytes(Quantity q) { return name_of(q).find("_bytes") != std::string_view::npos; }

// "1.15 s", "80.0 GiB", "fits".
std::string value_text(Quantity quantity, double value);

struct PublishedPoint {
  std::string id;
  std::string where;  // in the source: a table, a row
  std::string table;  // points that differ in their configuration alone share one; or empty
  std::string quality;
  Quantity quantity = Quantity::step_seconds;
  double value = 0;        // in the quantity's unit; fits: 1 or 0
  std::int64_t steps = 1;  // of which it is the mean, from workload.step on: their documents differ
  std::string published_metric, published_unit;
  double published_value = 0;
  std::vector<std::string> assumptions;  // sentences
  std::map<std::string, double> claims;  // by simulator: its own published prediction, in the quantity's unit
  std::string not_predicted;             // why; empty: predicted
  std::string not_fitted;                // why the step calibration has not seen it; empty: it has
  std::string note, explanation;         // of a large error, where it is known
  std::string memory_explanation;        // of a wrong judgement whether it fits
  // Of points that are not predicted some are published in no unit of a quantity: their value is 0.
  bool has_value() const { return value > 0 || quantity == Quantity::fits; }
  std::shared_ptr<const nlohmann::json>
      scenario;  // whole, the file's models and clusters written out; null: not predicted
};

struct PublishedSource {
  std::string name;  // the file's, without .json
  std::string title, source, system;
  std::string explanation;                    // of large errors, for points that have none of their own
  std::string composed;                       // how one sees that the numbers were computed; empty: they were measured
  std::map<std::string, std::string> claims;  // by simulator: where its predictions were published
  std::vector<PublishedPoint> points;
};

// Strict: unknown keys, unknown assumptions, ids that come twice are InputErrors at their pointer.
PublishedSource read_published(const nlohmann::json& document, const std::string& file);

// All that are compiled in, by name. Ids are unique among them. Read once a process.
const std::vector<PublishedSource>& published_sources();

// The point with this id, or nullptr.
const PublishedPoint* find_published(std::string_view id);
// REQUIRES: a point of published_sources().
const PublishedSource& source_of(const PublishedPoint& point);
const std::string& explanation_of(const PublishedPoint& point);  // its own, or its source's

}  // namespace orrery
