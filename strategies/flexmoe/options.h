#pragma once

#include <array>

#include "sim/base/fields.h"

namespace orrery::flexmoe {

// What moves experts between steps, or their weights or tokens within one, where routing is unequal.
enum class Balancer : std::uint8_t { none, flexmoe, eplb, symi, fastermoe, swipe };
inline constexpr std::array<std::string_view, 6> kBalancerNames{"none", "flexmoe",   "eplb",
                                                                "symi", "fastermoe", "swipe"};

struct Options {
  static constexpr double kThreshold = 1.2;

  Balancer balancer = Balancer::none;
  std::int64_t slots_per_rank = 0;
  double threshold = kThreshold;
  std::int64_t interval = 1;
  bool also_busiest_rank = false;

  void visit_fields(FieldVisitor& v) {
    v.field("moe_balancer", balancer, kBalancerNames,
            "between steps experts get copies on more ranks where many tokens go to them: step by step where a cost "
            "model says that it pays (flexmoe), all anew every so many steps (eplb), or every step (symi); or popular "
            "experts are on all ranks within a step (fastermoe), or tokens go to other experts (swipe)");
    v.field("moe_slots_per_rank", slots_per_rank, IntegerRange{.least = 0, .most = 65536},
            "experts that a rank has room for, copies included; 0: experts / expert_parallel");
    v.field("moe_balance_threshold", threshold, NumberRange{.least = 1, .most = 1e6},
            "flexmoe: rows of the busiest rank over the mean from which on placements are adjusted");
    v.field("moe_balance_interval", interval, IntegerRange{.least = 1, .most = std::int64_t{1} << 24},
            "eplb: steps from one placement to the next");
    v.field("moe_balance_busiest_rank", also_busiest_rank,
            "flexmoe: copies are tried of the busiest rank's most loaded expert, too, where the paper tries the expert "
            "with the most tokens a copy alone");
  }
};

}  // namespace orrery::flexmoe
