#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "sim/report/format.h"
#include "strategies/expert_parallel/expert_parallel.h"

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

}  // namespace orrery::expert_parallel
