// A sweep: a scenario, and axes over its fields.
//
//   { "scenario": "llama-3-70b-512-h100",
//     "axes": { "cluster.nodes": [8, 16, 32], "plan.tensor_parallel": {"from": 1, "to": 8, "factor": 2} },
//     "zip":  [ { "workload.sequence_length": [4096, 8192], "workload.global_batch_size": [1024, 512] } ],
//     "when": [ { "if": {"plan.tensor_parallel": [4, 8]}, "axes": {"plan.sequence_parallel": [false, true]} } ],
//     "seeds": [1, 2, 3], "engine": "des", "search": { "fix": ["recompute"] } }
//
// docs/sweep.md has the table of its keys.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "strategies/read_scenario.h"
#include "study/search/space.h"
#include "study/simulation/simulation.h"

namespace orrery {

// An axis: fields that change together.
struct SweepAxis {
  std::vector<std::string> fields;                  // "cluster.nodes"
  std::vector<std::vector<nlohmann::json>> values;  // by choice, then by field
  // The axis exists at points where all conditions hold; at other points its fields have the scenario's values. A
  // condition holds if any of its axes has a choice that is marked.
  struct Condition {
    // Indices of earlier axes, each with a mark for each of its choices.
    std::vector<std::pair<std::size_t, std::vector<bool>>> any_of;
  };
  std::vector<Condition> conditions;

  // The argument of apply_set() for one of the fields.
  std::string set(std::size_t choice, std::size_t field) const {
    return fields[field] + "=" + values[choice][field].dump();
  }
};

// How each point searches for its best plan.
struct SweepSearch {
  SpaceOptions space;
  double most_memory_bytes = 0;  // of a device; 0: its capacity
  bool safe = false;             // predicted peaks must fit with their margin
};

struct SweepDocument {
  std::string file;       // the file it was read from
  nlohmann::json given;   // as it was read
  nlohmann::json whole;   // with the scenario's document instead of its name
  nlohmann::json base;    // the scenario's document
  ScenarioSource source;  // of the scenario
  std::vector<SweepAxis> axes;
  SimulationOptions simulation;  // engine, fidelity and routing
  std::optional<SweepSearch> search;

  // All fields of the axes, in order, each once.
  std::vector<std::string> fields() const;
  // Whether the scenario has perturbations that the engine ignores.
  bool leaves_out_perturbations() const;
};

// `file`: the file that relative paths start from and that messages name. Every value of an axis must be valid for its
// field. Throws InputError, with the nearest name if there is no such field.
SweepDocument read_sweep(const nlohmann::json& document, const std::string& file);

// The sweeps that come with Orrery: study/sweep/examples/<name>.json.
std::vector<BundledDocument> bundled_sweeps();

// Goes through the points in order; the last axis changes fastest.
class SweepCursor {
 public:
  static constexpr int kAbsent = -1;  // the choice of an axis whose conditions do not hold

  // REQUIRES: `axes` outlives the cursor.
  explicit SweepCursor(const std::vector<SweepAxis>& axes);

  std::int64_t number() const { return number_; }
  const std::vector<int>& choices() const { return choices_; }  // by axis
  bool advance();                                               // returns false after the last point, and starts again

 private:
  void begin(std::size_t axis);  // chooses first values from this axis on
  bool holds(const SweepAxis& axis) const;

  const std::vector<SweepAxis>& axes_;
  std::vector<int> choices_;
  std::int64_t number_ = 0;
};

// The number of points. Throws InputError beyond 100 million.
std::int64_t count_points(const SweepDocument& sweep);

// The points as scenarios, each a line of JSON (ScenarioReader::read_parts). Not thread-safe: it caches the parts of
// lines.
class SweepLines {
 public:
  explicit SweepLines(const SweepDocument& sweep);

  // Valid until the next call. Throws InputError if a value cannot be set.
  const std::string& line(const std::vector<int>& choices);
  // {"cluster.nodes": 8, ...}: the fields of the axes that exist at the point.
  std::string fields(const std::vector<int>& choices) const;

 private:
  struct Part {
    std::string key;
    std::vector<std::size_t> axes;                       // indices of the axes that change it
    std::string text;                                    // the text if no axis changes it
    std::unordered_map<std::string, std::string> texts;  // by the choices of these axes
  };
  const std::string& text_of(Part& part, const std::vector<int>& choices);

  const SweepDocument& sweep_;
  std::vector<Part> parts_;
  std::string line_, choices_key_;
};

}  // namespace orrery
