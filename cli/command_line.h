// Runs a program's command line for every main of this folder: parses, runs, and turns an exception into one line and
// an exit code (0 done, 2 the input cannot be used, 1 anything else).
#pragma once

#include <functional>

namespace orrery {

// `parse` calls CommandLine::parse, which runs the subcommand. `program` begins error lines.
int run_command_line(const char* program, const std::function<void()>& parse);

}  // namespace orrery
