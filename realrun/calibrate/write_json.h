// Writes JSON as in results/calibration: one entry per line in objects of objects, the innermost on one line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

std::string written_json(const nlohmann::ordered_json& json);

}  // namespace orrery
