// Which parameters of a layer are gathered together, and when, where a layer is too large to be gathered whole: as
// DeepSpeed's ZeRO-3 fetches, prefetches and releases those of one module after the other
// (deepspeed/runtime/zero/partitioned_param_coordinator.py).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/program/piece.h"
#include "strategies/framework/framework.h"

namespace orrery::data_parallel {

// Whether a layer and the next exceed what may be gathered: then each of its parameter sets is gathered in its turn.
bool exceeds(const framework::GatherLimits& limits, const Piece& piece);

// Numbers the sets of a layer (ParameterGradient::set): its modules in the order in which the forward uses them, each
// set of the first ones that are limits.prefetch elements; what is left over goes with the last set. A module are the
// parameters of a matrix product or of a normalisation, with the bias that another kernel adds.
void divide_into_sets(const framework::GatherLimits& limits, Piece& piece);

// A gathered copy of a set's parameters in a block, for the ops [first, end).
struct GatheredCopy {
  std::size_t set = 0;
  std::size_t first = 0, end = 0;
  std::size_t issued = 0;  // the op before which it is gathered: `first`, or where the use before it begins
  bool ahead = false;      // gathered in the layer before this one
};
struct GatherOrder {
  std::vector<GatheredCopy> copies;  // in the order of `issued`
  std::size_t last_use = 0;          // the op where it begins
};
// Of one block. `whole`: the flat buffers of the sets, of which the block's ops read views.
//  - A copy ends with its last use, or, if less than limits.reuse elements are used in between, with a later one. What
//    recomputation uses and what the backward itself uses are uses of their own.
//  - It is gathered when the set before it comes into use, unless limits.live elements or more are gathered then; else,
//    or with `prefetch` false, when it comes into use itself. Before the first set comes the last one of the layer
//    before.
GatherOrder order_in_turn(const framework::GatherLimits& limits, bool prefetch, const Piece& piece, const Block& block,
                          std::span<const TensorId> whole);

}  // namespace orrery::data_parallel
