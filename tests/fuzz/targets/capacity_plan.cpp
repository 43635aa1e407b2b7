#include "study/capacity/capacity_plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/base/json_reader.h"
#include "study/capacity/choice.h"
#include "tests/fuzz/targets.h"

void orrery::fuzz::capacity_plan(std::string_view input) {
  const CapacityPlan plan = read_capacity_plan(parse_json(input, "plan.json"), {"plan.json", {}});
  require(!plan.clusters.empty() && plan.deadline_seconds > 0, "there is something to choose, and time");
  std::vector<SizedCandidate> sized;
  for (std::size_t i = 0; i < plan.clusters.size(); ++i) {
    const CandidateCluster& cluster = plan.clusters[i];
    require(!cluster.devices.empty() && cluster.devices.front() > 0 &&
                std::is_sorted(cluster.devices.begin(), cluster.devices.end()),
            "a candidate has sizes, ascending");
    if (cluster.pattern) continue;  // the target `scenario` predicts
    SizedCandidate& one = sized.emplace_back();
    one.cluster = i;
    one.devices = cluster.devices.front();
    one.candidate = cluster.whole;
    one.forecast = forecast(one.candidate);
  }
  for (const HeldBy by : {HeldBy::expectation, HeldBy::worst}) {
    const Choice choice = choose(plan, sized, by);
    require(choice.cheapest.has_value() == choice.fastest.has_value(), "what meets all is cheapest and fastest");
    require(sized.empty() || choice.cheapest.has_value() == choice.relaxations.empty(),
            "where nothing meets all something says what would");
  }
}
