#include "study/search/advice.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "sim/base/error.h"
#include "study/prediction/prediction.h"

namespace orrery {

std::vector<Remedy> remedies(const Scenario& base, const SpaceOptions& fields, const SearchOptions& options,
                             const UserCalibration& user, bool all_refused) {
  SearchOptions fastest = options;
  fastest.top = 1;
  fastest.front = 1;
  fastest.leanest = false;
  std::vector<Remedy> found;
  // Returns whether a plan fits then.
  const auto attempt = [&](const std::string& what, const Scenario& changed, const SpaceOptions& searched) {
    const Space space(changed, searched);
    SearchResult result = search(space, fastest, user);
    if (result.best.empty()) return false;
    found.push_back({what, space.scenario(result.best.front().values), std::move(result.best.front())});
    return true;
  };
  for (std::size_t i = 0; i < fields.fixed.size(); ++i) {
    SpaceOptions freed = fields;
    freed.fixed.erase(freed.fixed.begin() + static_cast<std::ptrdiff_t>(i));
    attempt(fmt::format("plan.{} searched", fields.fixed[i]), base, freed);
  }
  for (std::size_t i = 0; i < fields.over.size(); ++i) {
    if (fields.over[i].values.empty()) continue;
    SpaceOptions freed = fields;
    freed.over.erase(freed.over.begin() + static_cast<std::ptrdiff_t>(i));
    attempt(fmt::format("plan.{} with other values", fields.over[i].field), base, freed);
  }
  if (!fields.all && !all_refused) {
    SpaceOptions all = fields;
    all.all = true;
    attempt("fields that are not usually searched (--all)", base, all);
  }
  constexpr std::int64_t kMostTimes = 16;
  // What is said of single nodes does not go for more of them.
  const bool nodes_alike = base.cluster.placement.nodes.empty();
  for (std::int64_t times = 2; nodes_alike && times <= kMostTimes; times *= 2) {
    Scenario larger = base;
    larger.cluster.nodes *= times;
    if (attempt(fmt::format("{} nodes instead of {}", larger.cluster.nodes, base.cluster.nodes), larger, fields)) break;
  }
  for (std::int64_t parts = 2; parts <= kMostTimes && base.workload.sequence_length % parts == 0; parts *= 2) {
    Scenario shorter = base;
    shorter.workload.sequence_length /= parts;
    if (shorter.workload.sequence_length == 0) break;
    if (attempt(fmt::format("sequences of {} tokens instead of {}", shorter.workload.sequence_length,
                            base.workload.sequence_length),
                shorter, fields))
      break;
  }
  return found;
}

NetworkNeed network_need(const Scenario& scenario, double allowed, const UserCalibration& user) {
  Calibrator calibrator(user);
  const double rate = scenario.cluster.node.nic_bytes_per_second;
  const auto step_at = [&](double share) {
    Scenario slower = scenario;
    slower.cluster.node.nic_bytes_per_second = share * rate;
    return predict(calibrator.prepare(std::move(slower))).step_seconds;
  };
  NetworkNeed need{.nic_bytes_per_second = rate, .allowed = allowed};
  constexpr double kLeastShare = 1e-3, kPrecision = 0.01;
  const double most_seconds = step_at(1) * (1 + allowed);
  double low = kLeastShare, high = 1;
  if (!(rate > 0) || scenario.cluster.nodes < 2 || step_at(low) <= most_seconds) {
    need.any = false;
    return need;
  }
  while (high > low * (1 + kPrecision)) {
    const double middle = std::sqrt(low * high);
    (step_at(middle) <= most_seconds ? high : low) = middle;
  }
  need.bytes_per_second = high * rate;
  return need;
}

}  // namespace orrery
