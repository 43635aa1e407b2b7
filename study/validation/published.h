// Published measurements of training steps (results/published/steps/*.json, compiled in), each with its scenario.
// results/published/README.md describes the format.
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
// Whether it is the time of one layer or one attention call alone, which is predicted without the step calibration.
inline bool is_of_layer(Quantity q) { return name_of(q).starts_with("layer_") || name_of(q).starts_with("attention_"); }
inline bool is_seconds(Quantity q) { return name_of(q).ends_with("_seconds"); }
inline bool is_bytes(Quantity q) { return name_of(q).find("_bytes") != std::string_view::npos; }

// "1.15 s", "80.0 GiB", "fits".
std::string value_text(Quantity quantity, double value);

struct PublishedPoint {
  std::string id;
  std::string where;  // place in the source: a table, a row
  std::string table;  // points that differ only in their configuration share one; may be empty
  std::string quality;  // of the measurement: "A" as printed, "B" converted or partly inferred, "C" doubtful
  Quantity quantity = Quantity::step_seconds;
  double value = 0;        // in the quantity's unit; fits: 1 or 0
  std::int64_t steps = 1;  // `value` is the mean of so many steps from workload.step on; 1 unless documents differ
  std::string published_metric, published_unit;
  double published_value = 0;
  std::vector<std::string> assumptions;  // sentences
  std::map<std::string, double> claims;  // by simulator: its published prediction, in the quantity's unit
  std::string not_predicted;             // the reason; empty: predicted
  std::string not_fitted;                // why the step calibration is not fitted on it; empty: it is
  std::string explanation;               // of a large error, if known: its own, or its source's
  std::string memory_explanation;        // of a wrong prediction whether it fits
  // Some points that are not predicted are published in a unit that no quantity has. Their value is 0.
  bool has_value() const { return value > 0 || quantity == Quantity::fits; }
  // Complete, including the file's models and clusters; null: not predicted.
  std::shared_ptr<const nlohmann::json> scenario;
};

struct PublishedSource {
  std::string name;  // name of the file without .json
  std::string title, source, system;
  std::string composed;  // how one sees that the numbers were computed; empty: they were measured
  std::vector<PublishedPoint> points;
};

// Strict: throws InputError at the pointer for unknown keys, unknown assumptions and repeated ids.
PublishedSource read_published(const nlohmann::json& document, const std::string& file);

// All compiled-in sources, sorted by name. Ids are unique among them. Read once per process.
const std::vector<PublishedSource>& published_sources();

// The point with this id, or nullptr.
const PublishedPoint* find_published(std::string_view id);
// REQUIRES: the point is one of published_sources().
const PublishedSource& source_of(const PublishedPoint& point);

}  // namespace orrery
