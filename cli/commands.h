// The subcommands of `orrery`. Each function adds one, with its options. A subcommand throws InputError for wrong
// input; run_command_line() turns it into one line and an exit code.
#pragma once

#include "cli/command.h"

namespace orrery {

class SweepHelpers;

void add_simulate(Command app);
void add_compare(Command app);
void add_search(Command app);
// `helpers`: other processes that share the work; may be null.
void add_sweep(Command app, SweepHelpers* helpers = nullptr);
void add_list(Command app);
void add_show(Command app);
void add_collective(Command app);
void add_plan(Command app);
void add_pack(Command app);
void add_galvatron(Command app);
void add_validate(Command app);
void add_run(Command app);
void add_rank(Command app);  // orrery-gpu's
void add_calibrate(Command app);
void add_bench(Command app);
void add_schema(Command app);
void add_completion(Command app);  // for `app`, the program, as it is when the command runs
void add_manual(Command app);      // likewise

// Runs a program's command line for every main of this folder: parses, runs, and turns an exception into one line and
// an exit code (0 done, 2 the input cannot be used, 1 anything else). `parse` calls CommandLine::parse, which runs the
// subcommand. `program` begins error lines.
int run_command_line(const char* program, const std::function<void()>& parse);

}  // namespace orrery
