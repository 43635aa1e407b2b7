// The subcommands of `orrery`. Each function adds one, with its options and what it does; what a subcommand finds wrong
// it throws (InputError), and main turns it into one line and an exit code.
#pragma once

#include "cli/command.h"

namespace orrery {

class SweepHelpers;

void add_simulate(Command app);
void add_compare(Command app);
void add_search(Command app);
// `helpers`: other processes that share its work, where there are any.
void add_sweep(Command app, SweepHelpers* helpers = nullptr);
void add_list(Command app);
void add_show(Command app);
void add_collective(Command app);
void add_plan(Command app);
void add_pack(Command app);
void add_validate(Command app);
void add_run(Command app);
void add_rank(Command app);  // orrery-gpu's
void add_calibrate(Command app);
void add_bench(Command app);
void add_schema(Command app);
void add_completion(Command app);  // of `app`, the program, as it is when asked
void add_manual(Command app);      // the same

}  // namespace orrery
