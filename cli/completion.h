// Completion of a command line in shells: the shells' scripts ask the program itself what it offers.
#pragma once

#include <span>
#include <string>

#include "cli/command.h"

namespace orrery {

// Returns the completions of the last of `words`, one per line. `words` are the words of a command line after the
// program's name; the user is typing the last one, which may still be empty. The lines are:
//   WORD TAB TEXT     a word that begins with the last one; TEXT says what it is for
//   :files TAB HEAD   names of files may follow HEAD, the part of the last word before the file's name ("--json=")
//   :folders TAB HEAD the same for folders
//   :nospace          the shell must not add a space, since the user goes on in the same word (KEY=VALUE)
std::string completions(const CommandDescription& program, std::span<const std::string> words);

}  // namespace orrery
