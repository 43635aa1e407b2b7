// The subcommands of `orrery`. Each function adds one, with its options and what it does; what a subcommand finds wrong
// it throws (InputError), and main turns it into one line and an exit code.
#pragma once

namespace CLI {
class App;
}

namespace orrery {

void add_simulate(CLI::App& app);
void add_compare(CLI::App& app);
void add_list(CLI::App& app);
void add_show(CLI::App& app);
void add_collective(CLI::App& app);
void add_validate(CLI::App& app);
void add_run(CLI::App& app);
void add_rank(CLI::App& app);  // orrery-gpu's
void add_calibrate(CLI::App& app);
void add_bench(CLI::App& app);
void add_schema(CLI::App& app);

}  // namespace orrery
