// What a report says in one line of its bounding stage.
#pragma once

#include "sim/report/report.h"

namespace orrery {

// From the bounding stage's terms and step_seconds: bubble_fraction, exposed_communication_seconds, bound_by.
// REQUIRES: report.stages and bounding_stage are filled.
void summarise_bounding_stage(Report& report);

}  // namespace orrery
