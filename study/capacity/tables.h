// What `orrery plan` shows.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "study/capacity/answer.h"

namespace orrery {

// Ends with a newline. `every_size`: all sizes of all candidates, not the best of each alone.
std::string answer_text(const CapacityAnswer& answer, bool every_size);
nlohmann::ordered_json answer_json(const CapacityAnswer& answer);
// A row for each size of each candidate.
std::string answer_csv(const CapacityAnswer& answer);

// The picture of its tornado. REQUIRES: there is one.
std::string answer_svg(const CapacityAnswer& answer);

}  // namespace orrery
