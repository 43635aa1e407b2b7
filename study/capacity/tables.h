// The tables of `orrery plan`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "study/capacity/answer.h"

namespace orrery {

// Returns the answer for people; it ends with a newline. `every_size`: list all sizes of all candidates instead of only
// the best size of each.
std::string answer_text(const CapacityAnswer& answer, bool every_size);
nlohmann::ordered_json answer_json(const CapacityAnswer& answer);
// Returns CSV with one row per size of each candidate.
std::string answer_csv(const CapacityAnswer& answer);

// Returns the chart of CapacityAnswer::tornado. REQUIRES: the answer has one.
std::string answer_svg(const CapacityAnswer& answer);

}  // namespace orrery
