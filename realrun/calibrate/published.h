// Fits the bundled calibrations (results/calibration) to published measurements (results/published): by the formulas of
// sim/cost and by the fit that a user's own measurements get. Everything of a calibration that is no fitted number
// stays as its file has it: which curves it borrows, its prior and its bounds, its notes.
#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

struct PublishedFit {
  std::map<std::string, std::string> files;  // calibrations: names in their folder, and text
  std::string table;                         // of residuals
};

// `points`: a document as results/published/kernels.json, `file` its name. `date`: of the fit. Throws InputError for a
// document that is not as that one.
PublishedFit fit_published_kernels(const nlohmann::json& points, const std::string& file, const std::string& date);

// `curves`: a document as results/published/collectives.json. Each class is fitted from its "prior" to the curves of
// its systems. `only`: the name of the one class that is fitted; empty: all.
PublishedFit fit_published_collectives(const nlohmann::json& curves, const std::string& file, const std::string& only);

}  // namespace orrery
