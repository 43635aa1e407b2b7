// Writes JSON in the layout of the files in results/calibration.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace orrery {

// Returns the text, with a newline at its end. The outermost object, objects that contain objects or texts, and lists
// of objects have one entry per line; every other value is on a single line.
std::string written_json(const nlohmann::ordered_json& json);

}  // namespace orrery
