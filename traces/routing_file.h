// Files of routing counts: CSV and lines of JSON (docs/traces.md has the format).
#pragma once

#include <string>
#include <string_view>

#include "traces/routing.h"

namespace orrery {

// Parses either format, told by the first character ('{': JSON). Throws InputError with file and line: missing,
// repeated or misplaced rows, counts that are no routing (RoutingCounts::append), a last line that is cut.
RoutingCounts parse_routing(std::string_view text, const std::string& file);
// "-" is standard input.
RoutingCounts read_routing(const std::string& path);

// Returns text that parse_routing reads as the same counts. REQUIRES: the counts are complete.
std::string routing_csv(const RoutingCounts& counts);

}  // namespace orrery
