// The tables of `orrery plan`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "study/capacity/answer.h"

namespace orrery {

// Ends with a newline. `every_size`: all sizes of all candidates, instead of only the best of each.
std::string answer_text(const CapacityAnswer& answer, bool every_size);
nlohmann::ordered_json answer_json(const CapacityAnswer& answer);
// One row per size of each candidate.
std::string answer_csv(const CapacityAnswer& answer);

// The chart of its tornado. REQUIRES: it has one.
std::string answer_svg(const CapacityAnswer& answer);

}  // namespace orrery
