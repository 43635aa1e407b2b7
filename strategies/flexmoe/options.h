#pragma once

#include <array>
#include <vector>

#include "sim/base/fields.h"

namespace orrery::flexmoe {

// How unequal routing is balanced: by moving experts between steps, or by moving their weights or tokens within a step.
enum class Balancer : std::uint8_t { none, flexmoe, eplb, symi, given, fastermoe, swipe };
inline constexpr std::array<std::string_view, 7> kBalancerNames{"none",  "flexmoe",   "eplb", "symi",
                                                                "given", "fastermoe", "swipe"};

struct Options {
  static constexpr double kThreshold = 1.2;

  Balancer balancer = Balancer::none;
  std::int64_t slots_per_rank = 0;
  double threshold = kThreshold;
  std::int64_t interval = 1;
  std::vector<std::int64_t> placement;  // for `given`: the expert of each slot, one placement after another
  bool also_busiest_rank = false;

  void visit_fields(FieldVisitor& v) {
    v.field(
        "moe_balancer", balancer, kBalancerNames,
        "between steps experts get copies on more ranks where many tokens go to them: step by step where a cost "
        "model says that it pays (flexmoe), all anew every so many steps (eplb), every step (symi), or as "
        "moe_expert_placement says (given); or popular experts are on all ranks within a step (fastermoe), or tokens "
        "go to other experts (swipe)");
    v.field("moe_slots_per_rank", slots_per_rank, IntegerRange{.least = 0, .most = 65536},
            "experts that a rank has room for, copies included; 0: experts / expert_parallel");
    v.field("moe_balance_threshold", threshold, NumberRange{.least = 1, .most = 1e6},
            "flexmoe: rows of the busiest rank over the mean from which on placements are adjusted");
    v.field("moe_balance_interval", interval, IntegerRange{.least = 1, .most = std::int64_t{1} << 24},
            "eplb, given: steps from one placement to the next");
    v.field(
        "moe_expert_placement", placement, IntegerRange{.least = 0, .most = 65535},
        "given: the expert in each slot, rank by rank of expert_parallel; several placements one after the other are "
        "taken in turn, the last is kept");
    v.field("moe_balance_busiest_rank", also_busiest_rank,
            "flexmoe: copies are tried of the busiest rank's most loaded expert, too, where the paper tries the expert "
            "with the most tokens a copy alone");
  }
};

}  // namespace orrery::flexmoe
