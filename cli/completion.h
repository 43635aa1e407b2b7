// Scripts by which shells complete a command line: its subcommands and options, values that are words, files, or names
// that `PROGRAM list KIND --names` prints when they are asked for.
#pragma once

#include <string>
#include <vector>

#include "cli/command_description.h"

namespace orrery {

std::string bash_completion(const std::string& program, const CommandDescription& command);
std::string zsh_completion(const std::string& program, const CommandDescription& command);
std::string fish_completion(const std::string& program, const CommandDescription& command);

// ---- Shared by them

// In single quotes, as bash and zsh read it.
std::string shell_quoted(const std::string& text);
// A word of a function's name: "bench compare" is "bench_compare".
std::string as_identifier(std::string text);
// `text` with each "@NAME@" replaced by `program`, as a word of a function's name.
std::string with_program(std::string text, const std::string& program);

}  // namespace orrery
