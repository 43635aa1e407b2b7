// Gathers of a layer that is too large to be gathered whole: which parameters are gathered together, and when.
// DeepSpeed's ZeRO-3 fetches, prefetches and releases parameters module by module in the same way
// (deepspeed/runtime/zero/partitioned_param_coordinator.py).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/program/piece.h"
#include "strategies/framework/framework.h"

namespace orrery::data_parallel {

// Whether a layer and the next exceed what may be gathered at once: its parameter sets are then gathered one by one.
bool exceeds(const framework::GatherLimits& limits, const Piece& piece);

// Numbers the parameter sets of a layer (ParameterGradient::set). The layer's modules are taken in the order in which
// the forward uses them; a set is complete when it has limits.prefetch elements, and the remainder joins the last set.
// A module is the parameters of a matrix product or a normalisation, with a bias that a separate kernel adds.
void divide_into_sets(const framework::GatherLimits& limits, Piece& piece);

// A gathered copy of a set's parameters in a block, which exists for the ops [first, end).
struct GatheredCopy {
  std::size_t set = 0;
  std::size_t first = 0, end = 0;
  std::size_t issued = 0;  // the gather is issued before this op: `first`, or where the previous set comes into use
  bool ahead = false;      // gathered during the layer before this one
};
struct GatherOrder {
  std::vector<GatheredCopy> copies;  // in the order of `issued`
  std::size_t last_use = 0;          // op at which the last use begins
};
// Returns the gathers of one block. `whole`: the flat buffers of the sets, of which the block's ops read views.
//  - A copy ends with its last use. If less than limits.reuse elements are used until the next use, it stays until the
//    end of that one. Uses by recomputation and by the backward itself are separate uses.
//  - A set is gathered when the set before it comes into use, unless limits.live elements or more are gathered at that
//    time. In that case, and with `prefetch` false, it is gathered when it comes into use itself. The set before the
//    first one is the last set of the previous layer.
GatherOrder order_in_turn(const framework::GatherLimits& limits, bool prefetch, const Piece& piece, const Block& block,
                          std::span<const TensorId> whole);

}  // namespace orrery::data_parallel
