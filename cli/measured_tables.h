// Output of `orrery collective --measured`: a row per curve and a row per class of links, or every point.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "study/validation/measured_collectives.h"

namespace orrery {

// All end with a newline. Errors are in percent.
std::string measured_table(const MeasuredCollectives& measured, const Engines& engines);
std::string measured_markdown(const MeasuredCollectives& measured, const Engines& engines);
std::string measured_csv(const MeasuredCollectives& measured, const Engines& engines);  // a row per point
nlohmann::ordered_json measured_json(const MeasuredCollectives& measured, const Engines& engines);

}  // namespace orrery
