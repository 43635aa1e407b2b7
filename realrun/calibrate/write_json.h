// JSON as the files of results/calibration lay it out: objects of objects a line an entry, the innermost on one line.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

std::string written_json(const nlohmann::ordered_json& json);

}  // namespace orrery
