// How unequally tokens are routed to experts, by the loads of a Program.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "sim/report/format.h"
#include "strategies/expert_parallel/expert_parallel.h"

namespace orrery::expert_parallel {
namespace {

std::string routing_text(const Evaluated& here, const Evaluate&) {
  if (here.report().figure("routing") == nullptr) return "routing: balanced, all experts have equally many rows\n";
  const Scenario& scenario = here.scenario();
  const Workload& w = scenario.workload;
  const std::string source = w.recorded_routing ? "recorded in " + w.routing_file
                                                : std::string(kExpertRoutingNames[static_cast<std::size_t>(w.routing)]);
  std::string text = fmt::format(
      "routing: {}, step {}; expert groups of {} ranks, {} expert{} each\nrows relative to balanced routing, for each "
      "load and the number of layers that have it:\n",
      source, w.step, scenario.plan.expert.degree, scenario.model.placed_experts() / scenario.plan.expert.degree,
      scenario.model.placed_experts() == scenario.plan.expert.degree ? "" : "s");
  constexpr std::array<Column, 4> kColumns{{{"layers"}, {"busiest rank"}, {"busiest expert"}, {"dropped"}}};
  std::vector<std::vector<std::string>> rows;
  for (const Load& load : here.program().loads)
    if (load.of == RowsOf::tokens)
      rows.push_back({std::to_string(load.layers), fmt::format("{:.3f}x", load.busiest_rank),
                      fmt::format("{:.3f}x", load.busiest_expert),
                      load.dropped > 0 ? percent_text(load.dropped) : "-"});
  return text + grid(kColumns, rows) +
         "the report shows the maximum over loads and the mean over layers; experts are assigned to ranks in blocks, "
         "and every kernel on rows takes as long as on the busiest rank\n";
}

}  // namespace

std::span<const Topic> topics() {
  static constexpr std::string_view kNames[]{"routing", "routing, busiest rank", "routing, busiest expert",
                                             "busiest_rank", "dropped_share"};
  static constexpr Topic kTopics[]{
      {.names = kNames, .summary = "rows of experts where tokens are routed unequally", .text = routing_text}};
  return kTopics;
}

}  // namespace orrery::expert_parallel
