// Scripts for completion in shells: subcommands, options, words, files, or names by `PROGRAM list KIND --names`.
#pragma once

#include <string>
#include <vector>

#include "cli/command_description.h"

namespace orrery {

std::string bash_completion(const std::string& program, const CommandDescription& command);
std::string zsh_completion(const std::string& program, const CommandDescription& command);
std::string fish_completion(const std::string& program, const CommandDescription& command);

// ---- Shared by the three shells ----

// Returns the text in single quotes, as bash and zsh read it.
std::string shell_quoted(const std::string& text);
// Returns text usable in a function's name: "bench compare" becomes "bench_compare".
std::string as_identifier(std::string text);
// Replaces each "@NAME@" in `text` by `program` as used in a function's name.
std::string with_program(std::string text, const std::string& program);

}  // namespace orrery
