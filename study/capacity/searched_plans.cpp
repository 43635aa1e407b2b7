#include "study/capacity/searched_plans.h"

#include <utility>

#include "sim/report/memory_verdict.h"

namespace orrery {

ScenarioOn searched_plans(SpaceOptions fields, int threads, UserCalibration user,
                          std::function<void(const Scenario&)> started) {
  return [fields = std::move(fields), threads, user = std::move(user), started = std::move(started)](
             const Scenario& pattern, std::int64_t devices) {
    const Scenario sized = with_replicas(pattern, devices);
    if (started) started(sized);
    const Space space(sized, fields);
    SearchOptions options{.top = 1, .front = 1, .leanest = false, .memory_margin = kPeakHigh, .threads = threads};
    SearchResult found = search(space, options, user);
    if (found.best.empty()) {
      options.memory_margin = 1;
      found = search(space, options, user);
    }
    return found.best.empty() ? sized : space.scenario(found.best.front().values);
  };
}

}  // namespace orrery
