// orrery calibrate import: measured collectives from logs of nccl-tests.
#pragma once

#include "cli/command.h"

namespace orrery {

void add_calibrate_import(Command calibrate);

}  // namespace orrery
