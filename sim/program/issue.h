// The order in which a rank issues its ops, and what may start early: read by both engines and by the executor.
//
// A slot of the schedule runs a *line*: the instances of a chunk's runs, in order, or reversed on the way back. Of an
// instance, ops are issued as they stand in its block, but for those that are issued ahead (IssueAhead).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/liveness.h"
#include "sim/program/program.h"

namespace orrery {

// In which micro-batches ops run: a set of When.
using WhenSet = std::uint8_t;
constexpr WhenSet bit(When when) { return static_cast<WhenSet>(1u << static_cast<unsigned>(when)); }
inline constexpr WhenSet kUsual = bit(When::every_micro_batch);
inline constexpr WhenSet kFirst = kUsual | bit(When::first_micro_batch);
inline constexpr WhenSet kLast = kUsual | bit(When::last_micro_batch);
inline constexpr WhenSet kOnly = kFirst | kLast;  // a step of one micro-batch
// Of the ops that run in it.
constexpr WhenSet conditions_of(std::int64_t micro_batch, std::int64_t micro_batches) {
  WhenSet set = kUsual;
  if (micro_batch == 0) set |= kFirst;
  if (micro_batch + 1 == micro_batches) set |= kLast;
  return set;
}

// Whether the op waits for the kernels that have been issued before it, as torch.distributed does.
constexpr bool waits_for_compute(const Op& op) {
  return op.stream != Stream::compute && !op.free_running && op.prefetch == 0;
}

// Where instances stand in the stretch of runs over which buckets (Op::every) are filled.
struct PlaceInStretch {
  std::int64_t before = 0;  // instances of the stretch that come first
  std::int64_t count = 0;   // all of them
};
// Instances that an op with this `every` covers at the place; 0: it does not run there.
constexpr std::int64_t instances_covered(std::uint16_t every, PlaceInStretch place) {
  if ((place.before + 1) % every == 0) return every;
  return place.before + 1 == place.count ? place.count % every : 0;
}

constexpr std::int64_t instances_covered(std::uint16_t every, Covers covers, PlaceInStretch place) {
  switch (covers) {
    case Covers::before:
      return place.before > 0 ? 1 : 0;
    case Covers::last:
      return place.before + 1 == place.count ? 1 : 0;
    case Covers::own:
      break;
  }
  return every == 1 ? 1 : instances_covered(every, place);
}

// visit(run, place of its first instance), in the order of a line of `runs`.
template <class Visit>
void for_each_in_line(const std::vector<Piece>& pieces, std::span<const Run> runs, bool reversed, Visit&& visit) {
  if (!reversed)
    return for_each_stretch(pieces, runs, [&](std::span<const Run> stretch, std::int64_t instances) {
      std::int64_t before = 0;
      for (const Run& run : stretch) {
        visit(run, PlaceInStretch{before, instances});
        before += run.count;
      }
    });
  while (!runs.empty()) {
    std::size_t first = runs.size() - 1;
    std::int64_t instances = runs[first].count, before = 0;
    for (; first > 0 && share_buckets(pieces[runs[first - 1].piece], pieces[runs[first].piece]); --first)
      instances += runs[first - 1].count;
    for (std::size_t i = runs.size(); i-- > first; before += runs[i].count)
      visit(runs[i], PlaceInStretch{before, instances});
    runs = runs.first(first);
  }
}

// Which ops of a line are issued ahead of their instance: of distance d (Op::prefetch), when the instance d places
// earlier starts its first kernel, or the one that says so (issues_ahead_from); of the first d instances, at the
// beginning of the line.
struct IssueAhead {
  static constexpr int kAny = 0xffff;
  std::int64_t length = 0;   // instances of the line
  std::int64_t longest = 0;  // distance of its ops

  // issue(instance, least, most): its ops of such distances.
  template <class Issue>
  void at_beginning(Issue&& issue) const {
    for (std::int64_t i = 0; i < std::min(longest, length); ++i) issue(i, static_cast<int>(i) + 1, kAny);
  }
  template <class Issue>
  void when_starts(std::int64_t instance, Issue&& issue) const {
    const std::int64_t last = std::min(instance + longest, length - 1);
    for (std::int64_t i = instance + 1; i <= last; ++i)
      issue(i, static_cast<int>(i - instance), static_cast<int>(i - instance));
  }
};

// Of a block: the op from which on its first kernel lets later instances issue ahead.
inline std::size_t issues_ahead_from(std::span<const Op> ops) {
  const auto at = std::ranges::find_if(ops, &Op::issues_ahead);
  return at == ops.end() ? 0 : static_cast<std::size_t>(at - ops.begin());
}

// The ops of a block that may be issued ahead: those with a distance that need nothing of their own instance but other
// such ops. `storage`: of each tensor (Liveness); `input`: what the block takes from the instance before.
class FindAhead {
 public:
  // True if there are any; `ahead`, by op, is filled then.
  bool operator()(std::span<const Op> ops, std::span<const TensorId> storage, TensorId input,
                  std::vector<std::uint8_t>& ahead);

 private:
  std::vector<std::uint8_t> made_here_;  // by storage: by an op that is not issued ahead
};

// The input of a block from the instance before it, and its output to the one behind; kNoTensor where there is none.
struct Boundary {
  TensorId input = kNoTensor, output = kNoTensor;
};
Boundary boundary_of(const Piece& piece, std::size_t block);

}  // namespace orrery
