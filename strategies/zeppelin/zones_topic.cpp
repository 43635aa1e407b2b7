// Where documents attend, and what that asks of each rank.
#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "sim/program/redistribute.h"
#include "sim/report/format.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/zeppelin/zeppelin.h"

namespace orrery::zeppelin {
namespace {

std::string zones_text(const Evaluated& here, const Evaluate&) {
  const Scenario& scenario = here.scenario();
  if (!context_parallel::has_layers_of_type(scenario, kTypes))
    return "zones: none, context_parallel_type is not \"zeppelin\"\n";
  const Partition partition = partition_of(scenario);
  const auto ranks = static_cast<std::size_t>(scenario.plan.context.degree);
  std::vector<double> pairs(ranks, 0);
  std::vector<RowsOfParts> zones;
  std::vector<std::vector<std::string>> documents;
  double mean = 0;
  for (const Zone& zone : partition.zones) {
    zones.push_back({&zone.of_rank});
    for (const PlacedDocument& d : zone.documents) {
      const std::int64_t length = d.end - d.begin;
      documents.push_back({std::to_string(length), std::to_string(zone.ring),
                           zone.ring == 1 ? std::to_string(d.first_rank)
                                          : fmt::format("{} to {}", d.first_rank, d.first_rank + zone.ring - 1)});
      const double all = static_cast<double>(length) * static_cast<double>(length) / 2;
      for (std::int64_t r = d.first_rank; r < d.first_rank + zone.ring; ++r)
        pairs[static_cast<std::size_t>(r)] += all / static_cast<double>(zone.ring);
      mean += all / static_cast<double>(ranks);
    }
  }
  const std::vector<double> moved = moved_rows(zones, {&partition.at_home});
  std::vector<std::vector<std::string>> rows;
  for (std::size_t r = 0; r < ranks; ++r) {
    std::int64_t attends = 0;
    for (const Zone& zone : partition.zones) attends += rows_of(zone.of_rank[r]);
    const auto kept = static_cast<std::int64_t>(moved[r * ranks + r]);
    const bool moves = scenario.plan.zeppelin.remapping;
    rows.push_back({std::to_string(r), std::to_string(attends), fmt::format("{:.3f}x", pairs[r] / mean),
                    std::to_string(moves ? attends - kept : 0),
                    std::to_string(moves ? rows_of(partition.at_home[r]) - kept : 0)});
  }
  constexpr std::array<Column, 3> kDocuments{{{"tokens"}, {"ranks"}, {"of context_parallel"}}};
  constexpr std::array<Column, 5> kRanks{
      {{"rank"}, {"tokens in attention"}, {"pairs, over the mean"}, {"from other ranks"}, {"at other ranks"}}};
  return fmt::format("zones: \"{}\", step {}; a rank has at most {:.3f} times the mean tokens in attention\n",
                     kPartitionRuleNames[static_cast<std::size_t>(scenario.plan.zeppelin.partition)],
                     scenario.workload.step, partition.capacity) +
         grid(kDocuments, documents) + "\n" + grid(kRanks, rows);
}

}  // namespace

std::span<const Topic> topics() {
  static constexpr std::string_view kNames[]{"zones"};
  static constexpr Topic kTopics[]{
      {.names = kNames, .summary = "the ranks on which Zeppelin lets each document attend", .text = zones_text}};
  return kTopics;
}

}  // namespace orrery::zeppelin
