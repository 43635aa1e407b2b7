// Files that a command reads. Each is remembered, so that no output takes the place of an input (cli/output.h).
#pragma once

#include <string>
#include <string_view>

#include "sim/base/error.h"

namespace orrery {

// All of a file, at most 256 MiB; "-" is standard input. `expected` completes the InputError when it cannot be read:
// "a readable JSON file".
std::string read_file(const std::string& path, std::string_view expected);
// Of a file that a document names at `where`.
std::string read_file(const std::string& path, std::string_view expected, const InputError::Where& where);

// For files that are read bit by bit, or by a library. One that is missing is none.
void remember_input(const std::string& path);
// Whether this process has read the file that `path` leads to, by whatever name.
bool is_input(const std::string& path);

}  // namespace orrery
