// Rings of rings (LoongTrain's Double-Ring-Attention: Gu et al. 2024, arXiv 2406.18485): keys and values go round the
// `inner_ring_degree` neighbours of an inner ring. While these compute, the keys and values also go on to the next
// inner ring. strategies/context_parallel has the steps; groups that exchange heads (strategies/usp) may be added.
#include <string>

#include "strategies/context_parallel/context_parallel.h"
#include "strategies/strategy.h"
#include "strategies/usp/exchange.h"

namespace orrery::loongtrain {
namespace {

constexpr FieldRule kIdle[]{
    keep({"inner_ring_degree"}, "with context_parallel 1, which has no rings",
         [](const AskedOf& a) { return a.plan.context.degree > 1; }),
    keep({"inner_ring_degree"}, "unless all layers have context_parallel_type \"ring\", or all \"usp\"",
         [](const AskedOf& a) {
           return context_parallel::is_all_of_type(a.scenario, context_parallel::kTypes) ||
                  context_parallel::is_all_of_type(a.scenario, usp::kTypes);
         })};

constexpr PlanWord kWords[]{{"double-ring", [](const Scenario& s) { return s.plan.loongtrain.inner_ring_degree > 1; }}};

constexpr SearchAxis kAxes[]{{.field = "inner_ring_degree",
                              .label = "inner ring",
                              .chosen_with = ChosenWith::mesh,
                              .set = [](Plan& plan, std::int64_t value) { plan.loongtrain.inner_ring_degree = value; },
                              .values = [](const Scenario& chosen) -> AxisValues {
                                AxisValues values = divisors_of(chosen.plan.context.degree);
                                if (values.size() > 1) values.pop_back();  // the whole ring
                                return values;
                              },
                              .acts = [](const Scenario& chosen) { return chosen.plan.context.degree > 1; }}};

std::int64_t inner_ring(const Scenario& scenario, std::int64_t ranks) {
  const std::int64_t inner = scenario.plan.loongtrain.inner_ring_degree;
  if (inner > 1 && (ranks % inner != 0 || ranks == inner))
    refuse(scenario.plan, "inner_ring_degree",
           ranks == 1 ? "1 where a ring has one rank"
                      : "1, or a proper divisor of the " + std::to_string(ranks) + " ranks of a ring");
  return inner;
}

}  // namespace

Strategy describe() {
  return {.name = "loongtrain",
          .summary = "rings of rings: keys pass round an inner ring while those of the next are in transfer",
          .paper = "Gu et al. 2024, arXiv 2406.18485",
          .idle = kIdle,
          .disable = reset<&Plan::loongtrain>,
          .inner_ring = inner_ring,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::loongtrain
