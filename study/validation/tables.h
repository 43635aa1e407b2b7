// The tables of `orrery validate`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "study/validation/errors.h"
#include "study/validation/figures.h"

namespace orrery {

// The cells of an error's columns, "points|median|mean|90th pct|worst|bias", and of "tau (tables)".
std::vector<std::string> error_cells(const ErrorStatistics& errors);
std::string ranking_cell(const Ranking& ranking);

// The texts end with a newline. Errors are in per cent.
// Returns for each quantity a table with a row per source and a row for all measured points; then the worst points, and
// how well predictions judge whether runs fit in memory.
std::string validation_table(std::span<const PredictedPoint> points);
std::string points_table(std::span<const PredictedPoint> points);  // one row per point
std::string points_csv(std::span<const PredictedPoint> points);
// The table of FitsConfusion::wrong: the columns (`columns_of`), and a row for each run that was predicted to fit but
// ran out of memory, or the reverse.
inline constexpr std::string_view kWronglyJudged = "<id|<source|<it|predicted peak|capacity|beyond it";
std::vector<std::vector<std::string>> wrongly_judged(const FitsConfusion& confusion);
nlohmann::ordered_json validation_json(std::span<const PredictedPoint> points);

// ---- the page results/ACCURACY.md and its picture

// The same points, predicted by calibrations that were fitted on other sources, on all sources, and on none.
struct ValidationRuns {
  std::vector<PredictedPoint> others, all, none;
};

// Markdown; `plot`: the picture's path from the page's folder.
std::string accuracy_page(const ValidationRuns& runs, std::span<const PublishedFigure> figures,
                          const std::string& plot);
// Predicted against measured step times, both logarithmic, a colour a source. SVG. Throws InputError where no step is
// predicted.
std::string accuracy_plot(std::span<const PredictedPoint> points);

}  // namespace orrery
