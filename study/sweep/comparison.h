// Two databases of sweeps side by side: which points moved between them, as by another version of Orrery, another
// calibration or another preset.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

namespace orrery {

struct SweepComparisonOptions {
  std::vector<std::string> figures{"step_seconds", "memory_peak_bytes", "memory_fits"};  // columns of both databases
  double threshold = 0.01;  // a number moved where |b / a - 1| is more; a flag or a text where it is another
};

// A point's figure; none where the point has no result.
using SweptFigure = std::variant<std::monostate, double, bool, std::string>;

struct MovedFigure {
  std::string fields;  // of the point, as JSON: {"cluster.nodes": 8}
  std::string figure;  // "error": one of the two has a result and the other this error
  SweptFigure a, b;
  double change = 0;  // b / a - 1; infinite where that is none
};

struct FigureChanges {
  std::string figure;
  std::int64_t moved = 0;
  double lowest = 0, median = 0, highest = 0;  // of all points that have it in both; 0 of what is no number
};

struct ComparedSweeps {
  std::string file;
  std::vector<std::string> versions;  // of the programs that its results are of
  std::vector<std::string> doubts;    // what doubts_about() says of the file
};

struct SweepComparison {
  ComparedSweeps a, b;
  double threshold = 0;
  std::int64_t in_both = 0;
  std::vector<std::string> only_in_a, only_in_b;  // fields of the points
  std::int64_t other_plans = 0;                   // points for which searches found another plan
  std::vector<FigureChanges> figures;
  std::vector<MovedFigure> moved;  // those that moved most first

  // Nothing moved, and no point of A is gone.
  bool alike() const { return moved.empty() && only_in_a.empty(); }
};

// A point is the same in both if its scenario and engine are, written out; else if it stands at the same place of the
// same document, as where a preset has changed; else if it alone has those fields of axes, as where the scenario has
// changed. Of a scenario that one file has several results of, the last counts.
// Throws InputError for files that are no databases of sweeps, figures that one of them lacks (with the nearest name),
// and files that have no point in common.
SweepComparison compare_sweeps(const std::string& a, const std::string& b, const SweepComparisonOptions& options);

// `most`: so many of those that moved most.
std::string sweep_comparison_text(const SweepComparison& comparison, std::size_t most);
nlohmann::ordered_json sweep_comparison_json(const SweepComparison& comparison);
// A row for each that moved: "fields,figure,a,b,change".
std::string sweep_comparison_csv(const SweepComparison& comparison);

}  // namespace orrery
