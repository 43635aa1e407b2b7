// What is said of routing: how unequally tokens are routed to experts, by the loads of a Program (figures, and the
// topic of --explain), and which steps of a training are routed alike.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "sim/report/format.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/expert_parallel/routing_loads.h"

namespace orrery::expert_parallel {
namespace {

constexpr std::array<FigureKind, 4> kKinds{
    {{"routing", "busiest_rank_over_mean", FigureUnit::times,
      "rows of the experts of the busiest rank over the mean of ranks, of the most unequal layer",
      "routing, busiest rank", "busiest_rank", "busiest rank", 1, true},
     {"routing", "mean_busiest_rank_over_mean", FigureUnit::times, "the same in the mean of all layers with experts"},
     {"routing", "busiest_expert_over_mean", FigureUnit::times,
      "rows of the busiest expert over the mean of experts, of the most unequal layer", "routing, busiest expert"},
     {"routing", "dropped_share", FigureUnit::share, "rows that find no slot, of all rows of layers with experts", "",
      "dropped_share", "dropped"}}};

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
  constexpr std::string_view kColumns = "layers|busiest rank|busiest expert|dropped";
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

class RoutingController final : public TrainingController {
 public:
  std::uint64_t state(const Scenario& scenario) const override {
    return static_cast<std::uint64_t>(routing_state(scenario));
  }
};

}  // namespace

std::span<const FigureKind> figure_kinds() { return kKinds; }

void append_figures(const RoutedWork& work, std::vector<Figure>& figures) {
  const std::string dropped = percent_text(work.dropped_share);
  const bool drops = work.dropped_share > 0;
  figures.push_back(
      {&kKinds[0], work.busiest_rank,
       fmt::format("rows of its experts over the mean; {:.2f}x on average over layers", work.mean_busiest_rank)});
  figures.push_back({&kKinds[1], work.mean_busiest_rank});
  figures.push_back(
      {&kKinds[2], work.busiest_expert, drops ? dropped + " of all rows are dropped" : "nothing is dropped"});
  figures.push_back({&kKinds[3], work.dropped_share});
  if (drops)
    figures.back().caution = dropped +
                             " of the rows that tokens have at experts find no slot and are not computed; model FLOPs, "
                             "and MFU with them, count them all the same";
}

void figures(const Scenario&, const Program& program, std::vector<Figure>& figures) {
  RoutedWork work;
  double layers = 0, busiest = 0, dropped = 0;
  for (const Load& load : program.loads) {
    if (load.of != RowsOf::tokens) continue;
    const auto times = static_cast<double>(load.layers);
    work.busiest_rank = std::max(work.busiest_rank, load.busiest_rank);
    work.busiest_expert = std::max(work.busiest_expert, load.busiest_expert);
    layers += times;
    busiest += times * load.busiest_rank;
    dropped += times * load.dropped;
  }
  if (layers == 0) return;
  work.mean_busiest_rank = busiest / layers;
  work.dropped_share = dropped / layers;
  append_figures(work, figures);
}

std::span<const Topic> topics() {
  static constexpr std::string_view kNames[]{"routing", "routing, busiest rank", "routing, busiest expert",
                                             "busiest_rank", "dropped_share"};
  static constexpr Topic kTopics[]{
      {.names = kNames, .summary = "rows of experts where tokens are routed unequally", .text = routing_text}};
  return kTopics;
}

std::unique_ptr<TrainingController> control(const Scenario& scenario) {
  return scenario.workload.routes_unequally() ? std::make_unique<RoutingController>() : nullptr;
}

}  // namespace orrery::expert_parallel
