// A training for people and for programs.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "study/training/training.h"

namespace orrery {

// Steps in ranges, a row each, and what they come to. `title`: lines that say what was simulated.
std::string training_table(const Training& training, const std::vector<std::string>& title);

// A row a step: "scenario", the columns, then `more`, whose values are `inputs` in each row.
std::string training_csv(const Training& training, const std::string& scenario, std::span<const std::string_view> more,
                         std::span<const std::string> inputs);

// {"steps": ..., "seconds": ..., "columns": {"step": [...], ...}}
nlohmann::ordered_json training_json(const Training& training);

// A standalone SVG document: a panel for the time of steps and for each other figure that changes. Where steps are more
// than pixels, what is drawn reaches from the lowest to the highest of those that share one.
std::string training_svg(const Training& training, const std::vector<std::string>& title);

}  // namespace orrery
