// Completion of a command line in shells: the shells' scripts ask the program itself what it offers.
#pragma once

#include <span>
#include <string>

#include "cli/command_description.h"

namespace orrery {

// Returns what the last of `words` may become, a line each. `words` are those of a command line behind the program's
// name; the last one may be empty or begun.
//   WORD TAB TEXT     a word that begins as the last one does, and what it is for
//   :files TAB HEAD   names of files may follow HEAD, the part of the last word that is no file's name ("--json=")
//   :folders TAB HEAD the same for folders
//   :nospace          more follows the words in the same word
std::string completions(const CommandDescription& program, std::span<const std::string> words);

}  // namespace orrery
