#include "tests/fuzz/targets.h"
#include "tests/traces/routing_csv.h"
#include "traces/routing.h"

void orrery::fuzz::routing_trace(std::string_view input) {
  const RoutingCounts counts = parse_routing(input, "trace");
  require(counts.complete(), "a trace that is read is whole");
  if (counts.shape().steps.size() + counts.shape().layers.size() > 10000) return;  // slow
  require(parse_routing(routing_csv(counts), "csv") == counts, "what is written as CSV reads as the same");
}
