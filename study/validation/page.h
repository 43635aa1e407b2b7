// The page results/ACCURACY.md and its picture.
#pragma once

#include <span>
#include <string>

#include "study/validation/errors.h"
#include "study/validation/figures.h"

namespace orrery {

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
