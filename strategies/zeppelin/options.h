#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/base/fields.h"

namespace orrery::zeppelin {

// How documents are assigned to ranks: see partition.h.
enum class PartitionRule : std::uint8_t { zones, hybrid, even, flexsp };
inline constexpr std::array<std::string_view, 4> kPartitionRuleNames{"zones", "hybrid", "even", "flexsp"};

struct Options {
  PartitionRule partition = PartitionRule::zones;
  double capacity = 0;
  bool routing = true;
  bool remapping = true;

  void visit_fields(FieldVisitor& v) {
    v.field(
        "zeppelin_partition", partition, kPartitionRuleNames,
        "zeppelin: which ranks share a document's attention: zones (one rank, ranks of a node, nodes, by length and "
        "room), hybrid (as many as its length needs, a power of two: Megatron-Core's hybrid context parallelism), "
        "even (all: Transformer Engine), flexsp (groups that exchange heads, of sizes that even out their time: "
        "FlexSP, with zeppelin_remapping false)",
        Scope::mesh);
    v.field("zeppelin_capacity", capacity, or_none({.least = 1}),
            "zeppelin: attention tokens a rank may have, over the mean; 0: the fastest of 1, 1.125 .. 2 by an estimate "
            "(hybrid: 1, flexsp: 2)",
            Scope::mesh);
    v.field("zeppelin_routing", routing,
            "zeppelin: a ring's messages between nodes use all NICs of the node; false: those of one rank",
            Scope::mesh);
    v.field("zeppelin_remapping", remapping,
            "zeppelin: outside attention every rank has equally many tokens, moved before and after; false: each rank "
            "computes its attention's tokens and waits for the fullest",
            Scope::mesh);
  }
};

}  // namespace orrery::zeppelin
