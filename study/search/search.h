// Finds the best plans of a space with the analytical engine: those with the least time per sequence that fit the
// memory, and those that no other plan beats in both time and memory.
//
// The search is exact: it skips a plan only if it is proven not to be among the answers.
//  - Time. The slots of a micro-batch take at least as long as in the plan of its group that recomputes nothing and
//    whose replicas communicate once a step: other plans of the group add work to the same streams, which run it in
//    order. A step therefore takes at least as long as the mean stage is busy, and at least the products of the last
//    stage plus the filling of the pipeline before it and the draining behind it. A plan that recomputes or offloads
//    activations takes at least as long as the same plan without. For the remaining plans the pipeline is first clocked
//    without contention, which never makes a slot shorter.
//  - Memory. Parameters, gradients and optimizer states lie on a device for the whole step, whatever the micro-batch,
//    the kernels, the schedule's order and recomputation. All plans that divide them alike hold the same bytes.
// Every evaluated plan is compared with its bounds. If one is below its bound, the search starts again with all bounds
// lowered (SearchResult::bound_slack), and finally without bounds.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/cost/user_calibration.h"
#include "sim/report/report.h"
#include "study/search/space.h"

namespace orrery {

struct SearchProgress {
  std::uint64_t considered = 0;            // SearchResult::considered so far
  std::size_t groups = 0, all_groups = 0;  // groups of plans (Space::group_axes): searched so far, and in all
};

// The largest value of a figure that a plan may have. Plans without the figure have FigureKind::otherwise.
struct FigureLimit {
  const FigureKind* kind = nullptr;
  double most = 0;
};

struct SearchOptions {
  std::size_t top = 10;               // number of plans wanted
  double front = 1.1;                 // plans on the front take at most this many times the best plan's time
  bool exhaustive = false;            // evaluate every plan
  bool leanest = true;                // find SearchResult::leanest, which may need a search of its own
  double most_memory_bytes = 0;       // of a device; 0: its capacity
  double memory_margin = 1;           // a predicted peak times this must fit
  std::vector<FigureLimit> limits{};  // plans beyond a limit count as refused
  int threads = 1;
  std::function<void(const SearchProgress&)> progress{};
};

struct FoundPlan {
  std::vector<std::int64_t> values;  // by axis of the space
  double step_seconds = 0;           // 0 if the plan does not fit; so is the next field
  double seconds_a_sequence = 0;
  double memory_peak_bytes = 0;
  bool fits = false;
  std::uint64_t place = 0;  // place in the order of the search, which decides ties
};

struct SearchResult {
  std::uint64_t considered = 0;  // plans looked at: the sum of the next four counts
  std::uint64_t evaluated = 0;
  std::uint64_t too_slow = 0, too_large = 0;      // skipped because of the bounds
  std::uint64_t refused = 0;                      // plans that cannot be laid out
  std::uint64_t feasible = 0;                     // evaluated plans that fit
  double bound_slack = 0;                         // share by which bounds were lowered until all held; 1: none used
  bool bounds_held = true;                        // in the search that gave this result
  std::vector<FoundPlan> best;                    // at most SearchOptions::top, fastest first
  std::vector<FoundPlan> front;                   // fastest first; each needs less memory than those before it
  std::optional<FoundPlan> leanest;               // if none fits: the plan with the lowest peak
  std::map<std::string, std::uint64_t> refusals;  // reason -> number of plans
};

// Gives the same result for any number of threads. Throws InputError if a plan has no cost (the cluster lacks a rate).
SearchResult search(const Space& space, const SearchOptions& options, const UserCalibration& user = {});

}  // namespace orrery
