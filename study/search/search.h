// The best plans of a space, by the analytical engine: which have the least time a sequence among those that fit the
// memory, and which no other plan beats in both time and memory.
//
// Exact: a plan is left out without being evaluated only where it is proven that it cannot be among the answers.
//  - Time. A micro-batch takes its slots what it takes where nothing is recomputed and replicas meet once a step, or
//    longer: other plans of a group add work to the same streams, which run it in order. So a step takes at least what
//    the mean stage is busy; or what the last stage's products take, behind the pipeline's filling and before its
//    draining. A plan that recomputes or offloads activations takes at least as long as the one that does not. Of what
//    is left the pipeline is clocked without contention first: with it no slot takes less.
//  - Memory. Parameters, gradients and optimizer states lie on a device all step long, whatever the micro-batch, the
//    kernels, the schedule's order and recomputation: what one plan keeps there, all that divide them alike keep.
// Every evaluated plan is held against its bounds. Where one lies below, the search begins again with all bounds
// lowered (SearchResult::bound_slack), in the end without any.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "study/search/space.h"

namespace orrery {

struct SearchProgress {
  std::uint64_t considered = 0;
  std::size_t groups = 0, all_groups = 0;
};

struct SearchOptions {
  std::size_t top = 10;     // how many plans are wanted
  double front = 1.1;       // the front of time and memory: of plans that take at most so many times the best's time
  bool exhaustive = false;  // evaluates every plan
  bool leanest = true;      // finds SearchResult::leanest, which may take a search of its own
  double most_memory_bytes = 0;  // of a device; 0: its capacity
  double memory_margin = 1;      // a predicted peak times this must fit
  int threads = 1;
  std::function<void(const SearchProgress&)> progress{};
};

struct FoundPlan {
  std::vector<std::int64_t> values;  // of the space's axes
  double step_seconds = 0;           // 0, as the next, of one that does not fit
  double seconds_a_sequence = 0;
  double memory_peak_bytes = 0;
  bool fits = false;
  std::uint64_t place = 0;  // in the order of the search: what ties are decided by
};

struct SearchResult {
  std::uint64_t considered = 0;  // plans that were asked about: the sum of the next four
  std::uint64_t evaluated = 0;
  std::uint64_t too_slow = 0, too_large = 0;  // proven so by the bounds
  std::uint64_t refused = 0;                  // cannot be laid out
  std::uint64_t feasible = 0;                 // of the evaluated: fit
  double bound_slack = 0;                     // the part by which bounds were lowered so that all held; 1: none used
  bool bounds_held = true;                    // of the search that this is the result of
  std::vector<FoundPlan> best;                // at most SearchOptions::top, fastest first
  std::vector<FoundPlan> front;               // fastest first, each leaner than those before it
  std::optional<FoundPlan> leanest;           // where none fits: the one with the lowest peak
  std::map<std::string, std::uint64_t> refusals;  // why, and how many
};

// The same result for any number of threads. Throws InputError where a plan cannot be costed (the cluster lacks a
// rate).
SearchResult search(const Space& space, const SearchOptions& options, const UserCalibration& user = {});

}  // namespace orrery
