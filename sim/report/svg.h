// A picture of a pipeline schedule: stages down, time across, one box per slot with its micro-batch's number.
#pragma once

#include <string>
#include <string_view>

#include "sim/report/report.h"

namespace orrery {

// A standalone SVG document. REQUIRES: the report was made with its timeline.
std::string report_svg(const Report& report, std::string_view title);

}  // namespace orrery
