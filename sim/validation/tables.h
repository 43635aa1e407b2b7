// What `orrery validate` shows.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "sim/validation/errors.h"

namespace orrery {

// All end with a newline. Errors are in percent.
std::string validation_table(std::span<const PredictedPoint> points);  // a row a source and quantity, sums, the worst
std::string points_table(std::span<const PredictedPoint> points);      // a row a point
std::string points_csv(std::span<const PredictedPoint> points);
nlohmann::ordered_json validation_json(std::span<const PredictedPoint> points);

}  // namespace orrery
