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
    v.field("moe_balancer", balancer, kBalancerNames,
            "how unequal routing is balanced: copies of busy experts, placed when a cost model says it pays (flexmoe), "
            "every few steps (eplb), every step (symi), or as moe_expert_placement says (given); within a step by "
            "broadcasting popular experts (fastermoe) or rerouting tokens (swipe)");
    v.field("moe_slots_per_rank", slots_per_rank, IntegerRange{.least = 0, .most = 65536},
            "expert slots per rank, copies included; 0: experts / expert_parallel");
    v.field("moe_balance_threshold", threshold, NumberRange{.least = 1, .most = 1e6},
            "flexmoe: adjust placements when the busiest rank has this many times the mean rows");
    v.field("moe_balance_interval", interval, IntegerRange{.least = 1, .most = std::int64_t{1} << 24},
            "eplb, given: steps between placements");
    v.field("moe_expert_placement", placement, IntegerRange{.least = 0, .most = 65535},
            "given: the expert in each slot, rank by rank of expert_parallel; several placements in a row are taken in "
            "turn, and the last one is kept");
    v.field("moe_balance_busiest_rank", also_busiest_rank,
            "flexmoe: also try copies of the busiest rank's most loaded expert; the paper tries only the expert with "
            "the most tokens per copy");
  }
};

}  // namespace orrery::flexmoe
