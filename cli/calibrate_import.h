// orrery calibrate import: measured collectives from logs of nccl-tests.
#pragma once

namespace CLI {
class App;
}

namespace orrery {

void add_calibrate_import(CLI::App& calibrate);

}  // namespace orrery
