// Writes a command line's manual page (section 1).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/command_description.h"

namespace orrery {

struct ManualFacts {
  std::string program, version;
  std::string date;                                        // YYYY-MM-DD; empty: none
  std::string description;                                 // paragraphs of DESCRIPTION
  std::vector<std::pair<std::string, std::string>> files;  // FILES: each with its description
  std::string see_also;                                    // SEE ALSO, in roff
};

// Returns the page in roff's man macros. All text about commands and options comes from `command`.
std::string manual_page(const CommandDescription& command, const ManualFacts& facts);

}  // namespace orrery
