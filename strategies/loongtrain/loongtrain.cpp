// Rings of rings (LoongTrain's Double-Ring-Attention: Gu et al. 2024, arXiv 2406.18485): keys and values go round the
// `inner_ring_degree` neighbours of an inner ring. While these compute, the keys and values also go on to the next
// inner ring. strategies/context_parallel has the steps; groups that exchange heads (strategies/usp) may be added.
#include <string>

#include "sim/base/error.h"
#include "strategies/context_parallel/context_parallel.h"
#include "strategies/strategy.h"
#include "strategies/usp/usp.h"

namespace orrery::loongtrain {
namespace {

[[noreturn]] void refuse(std::int64_t inner, const std::string& expected) {
  throw InputError({"", "/plan/inner_ring_degree"}, std::to_string(inner), expected);
}

void check(const Scenario& scenario) {
  const std::int64_t inner = scenario.plan.loongtrain.inner_ring_degree;
  if (inner == 1) return;
  if (scenario.plan.context.degree == 1) refuse(inner, "1 with context_parallel 1, which has no rings");
  if (!context_parallel::is_all_of_type(scenario, context_parallel::kTypes) &&
      !context_parallel::is_all_of_type(scenario, usp::kTypes))
    refuse(inner, "1 unless all layers have context_parallel_type \"ring\", or all \"usp\"");
}

void disable(Plan& plan) { plan.loongtrain = {}; }

constexpr PlanWord kWords[]{{"double-ring", [](const Scenario& s) { return s.plan.loongtrain.inner_ring_degree > 1; }}};

constexpr SearchAxis kAxes[]{
    {.field = "inner_ring_degree",
     .label = "inner ring",
     .turns = Turns::mesh,
     .usual = false,
     .set = [](Plan& plan, std::int64_t value) { plan.loongtrain.inner_ring_degree = value; },
     .values =
         [](const Scenario& chosen, std::vector<std::int64_t>& values) {
           append_divisors(chosen.plan.context.degree, values);
           std::erase_if(values, [&](std::int64_t w) { return w > 1 && w == chosen.plan.context.degree; });
         },
     .acts = [](const Scenario& chosen) { return chosen.plan.context.degree > 1; }}};

std::int64_t inner_ring(const Scenario& scenario, std::int64_t ranks) {
  const std::int64_t inner = scenario.plan.loongtrain.inner_ring_degree;
  if (inner > 1 && (ranks % inner != 0 || ranks == inner))
    refuse(inner, ranks == 1 ? "1 where a ring has one rank"
                             : "1, or a proper divisor of the " + std::to_string(ranks) + " ranks of a ring");
  return inner;
}

}  // namespace

Strategy describe() {
  return {.name = "loongtrain",
          .summary = "rings of rings: keys pass round an inner ring while those of the next are in transfer",
          .paper = "Gu et al. 2024, arXiv 2406.18485",
          .check = check,
          .disable = disable,
          .inner_ring = inner_ring,
          .words = kWords,
          .search_axes = kAxes};
}

}  // namespace orrery::loongtrain
