// Files of routing counts: CSV and lines of JSON (docs/traces.md has the format).
#pragma once

#include <string>
#include <string_view>

#include "traces/routing.h"

namespace orrery {

// Of either form, which the first character tells ('{': JSON). Throws InputError with file and line: rows that lack,
// come twice or out of order, counts that are no routing (RoutingCounts::append), a last line that is cut, as in a
// trace of which half was written.
RoutingCounts parse_routing(std::string_view text, const std::string& file);
// "-" is standard input.
RoutingCounts read_routing(const std::string& path);

// What parse_routing reads as the same. REQUIRES: counts are complete.
std::string routing_csv(const RoutingCounts& counts);
std::string routing_json_lines(const RoutingCounts& counts);

}  // namespace orrery
