// Compares two databases of sweeps: which points changed between them, for example because of another version of
// Orrery, another calibration or another preset.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace orrery {

struct SweepComparisonOptions {
  std::vector<std::string> figures{"step_seconds", "memory_peak_bytes", "memory_fits"};  // columns of both databases
  double threshold = 0.01;  // a number has moved if |b / a - 1| is more; a flag or a text if it differs
};

struct MovedFigure {
  std::string fields;           // fields of the point, as JSON: {"cluster.nodes": 8}
  std::string figure;           // "error": one side has a result, and the other this error
  nlohmann::ordered_json a, b;  // a number, a flag or a text; null: the point has no result
  double change = 0;            // b / a - 1; infinite if that is not a number
};

struct FigureChanges {
  std::string figure;
  std::int64_t moved = 0;
  double lowest = 0, median = 0, highest = 0;  // over all points with it on both sides; 0 if no number
};

struct ComparedSweeps {
  std::string file;
  std::vector<std::string> versions;  // versions of the programs that made the results
  std::vector<std::string> doubts;    // doubts_about() of the file
};

struct SweepComparison {
  ComparedSweeps a, b;
  double threshold = 0;
  std::int64_t in_both = 0;
  std::vector<std::string> only_in_a, only_in_b;  // fields of the points
  std::int64_t other_plans = 0;                   // points for which searches found different plans
  std::vector<FigureChanges> figures;
  std::vector<MovedFigure> moved;  // largest change first

  // Nothing moved, and all points of A are in B.
  bool alike() const { return moved.empty() && only_in_a.empty(); }
};

// A point is the same in both if its complete scenario and engine are equal; otherwise if it is at the same place of
// the same document (a preset has changed); otherwise if it is the only one with these values of the axes' fields (the
// scenario has changed). If a file has several results of a scenario, the last one counts. Throws InputError for files
// that are not databases of sweeps, for figures that one of them lacks (with the nearest name), and for files without a
// common point.
SweepComparison compare_sweeps(const std::string& a, const std::string& b, const SweepComparisonOptions& options);

// `most`: number of moved figures to list, largest change first.
std::string sweep_comparison_text(const SweepComparison& comparison, std::size_t most);
nlohmann::ordered_json sweep_comparison_json(const SweepComparison& comparison);
// One row per moved figure: "fields,figure,a,b,change".
std::string sweep_comparison_csv(const SweepComparison& comparison);

}  // namespace orrery
