// The subcommands of orrery calibrate.
#pragma once

#include "cli/command.h"

namespace orrery {

void add_calibrate_import(Command calibrate);     // from logs of nccl-tests
void add_calibrate_published(Command calibrate);  // from published measurements

}  // namespace orrery
