// What a report says in one line of its bounding stage.
#pragma once

#include "sim/report/report.h"

namespace orrery {

// From the bounding stage's terms and step_seconds: bubble_fraction, exposed_communication_seconds, bound_by. The last
// is the largest term, in words, with all exposed communication as one: of its terms the fewest, largest first, that
// together exceed every other ("exposed gradient reduction + parameter gathering").
// REQUIRES: report.stages and bounding_stage are filled.
void summarise_bounding_stage(Report& report);

}  // namespace orrery
