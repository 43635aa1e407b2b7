// The tables of `orrery validate`.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "sim/report/format.h"
#include "study/validation/errors.h"

namespace orrery {

// All end with a newline. Errors are in per cent.
// One row per source and quantity, totals, the worst.
std::string validation_table(std::span<const PredictedPoint> points);
std::string points_table(std::span<const PredictedPoint> points);  // one row per point
std::string points_csv(std::span<const PredictedPoint> points);
// A row a run of which it was judged wrongly whether it fits.
inline constexpr std::string_view kWronglyJudged = "<id|<source|<it|predicted peak|capacity|beyond it";
std::vector<std::vector<std::string>> wrongly_judged(const FitsConfusion& confusion);
nlohmann::ordered_json validation_json(std::span<const PredictedPoint> points);

}  // namespace orrery
