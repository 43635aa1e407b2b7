// A training's steps differ by how tokens are routed.
#include <memory>

#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/expert_parallel/routing_loads.h"

namespace orrery::expert_parallel {
namespace {

class RoutingController final : public TrainingController {
 public:
  std::uint64_t state(const Scenario& scenario) const override {
    return static_cast<std::uint64_t>(routing_state(scenario));
  }
};

}  // namespace

std::unique_ptr<TrainingController> control(const Scenario& scenario) {
  return scenario.workload.routes_unequally() ? std::make_unique<RoutingController>() : nullptr;
}

}  // namespace orrery::expert_parallel
