// Zeppelin places each document of a batch on as many ranks as it needs (arXiv 2509.21841). The batch of all
// data-parallel ranks is one sequence over context_parallel. Attention runs zone by zone (partition.h): each zone is a
// set of rings of one size (strategies/context_parallel) over the positions of the zone's ranks:
//
//   remap      redistribute over cp       moves queries, keys and values of tokens to where their documents attend
//   attention  rings, the largest first; the next zone's keys are sent meanwhile
//   remap      redistribute over cp       moves contexts back
//
// The same is done for gradients. Outside attention every rank has equally many tokens.
#pragma once

#include <array>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/strategy.h"
#include "strategies/zeppelin/partition.h"

namespace orrery::zeppelin {

inline constexpr std::array<std::string_view, 1> kTypes{"zeppelin"};

// Returns the partition of the scenario's batch. REQUIRES: check() has passed, and the plan has layers of this type.
Partition partition_of(const Scenario& scenario);

}  // namespace orrery::zeppelin
