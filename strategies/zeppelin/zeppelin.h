// Documents of a batch on as many ranks as each needs (Zeppelin, arXiv 2509.21841): the batch of all data-parallel
// ranks is one sequence over context_parallel, and attention is done zone by zone (partition.h), each a ring of its own
// size (strategies/context_parallel), over positions that the zone's ranks have:
//
//   remap      redistribute over cp       queries, keys, values of a rank's tokens to where its documents attend
//   attention  rings, the largest first; the next zone's keys travel meanwhile
//   remap      redistribute over cp       contexts back
//
// and the same of gradients. Outside attention every rank has as many tokens.
#pragma once

#include <array>
#include <string_view>

#include "sim/program/program.h"
#include "strategies/strategy.h"
#include "strategies/zeppelin/partition.h"

namespace orrery::zeppelin {

inline constexpr std::array<std::string_view, 1> kTypes{"zeppelin"};

// Of the scenario's batch. REQUIRES: check() has passed, and the plan has layers of this type.
Partition partition_of(const Scenario& scenario);

void check_runnable(const Scenario& scenario);

// `--explain zones`.
std::span<const Topic> topics();

}  // namespace orrery::zeppelin
