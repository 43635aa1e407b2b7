// A training as table, CSV, JSON and SVG.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "study/training/training.h"

namespace orrery {

// One row per range of steps, and their totals. `title`: lines that say what was simulated.
std::string training_table(const Training& training, const std::vector<std::string>& title);

// One row per step: "scenario", the columns, then the columns `more`, which have the values `inputs` in each row.
std::string training_csv(const Training& training, const std::string& scenario, std::span<const std::string_view> more,
                         std::span<const std::string> inputs);

// {"steps": ..., "seconds": ..., "columns": {"step": [...], ...}}
nlohmann::ordered_json training_json(const Training& training);

// A standalone SVG document: a panel for the step time, and one for each other figure that changes. If there are more
// steps than pixels, the drawing spans the lowest to the highest value of the steps that share a pixel.
std::string training_svg(const Training& training, const std::vector<std::string>& title);

}  // namespace orrery
