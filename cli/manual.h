// A command line as a manual page of section 1.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/command_description.h"

namespace orrery {

struct ManualFacts {
  std::string program, version;
  std::string date;                                        // YYYY-MM-DD; empty: not said
  std::string description;                                 // paragraphs of DESCRIPTION
  std::vector<std::pair<std::string, std::string>> files;  // FILES: each with what it is
  std::string see_also;                                    // SEE ALSO, as roff
};

// In roff's man macros. All that it says of commands and options is in `command`.
std::string manual_page(const CommandDescription& command, const ManualFacts& facts);

}  // namespace orrery
