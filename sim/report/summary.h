// Summarises a report's bounding stage in one line.
#pragma once

#include "sim/report/report.h"

namespace orrery {

// Computes bubble_fraction, exposed_communication_seconds and bound_by from the bounding stage's terms and
// step_seconds. bound_by is the largest term in words, where all exposed communication counts as one term. For
// communication it names the fewest exposed terms, largest first, that together exceed every other term ("exposed
// gradient reduction + parameter gathering"). REQUIRES: report.stages and bounding_stage are filled.
void summarise_bounding_stage(Report& report);

}  // namespace orrery
