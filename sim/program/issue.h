// The order in which a rank issues its ops, and which ops may start early. Both engines and the executor use it.
//
// A slot of the schedule runs a *line*: the instances of a chunk's runs, in order, or in reverse order in the backward.
// The ops of an instance are issued in the order of its block, except those that are issued ahead (IssueAhead).
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/program/liveness.h"
#include "sim/program/program.h"

namespace orrery {

// A set of When: the conditions that hold in a micro-batch.
using WhenSet = std::uint8_t;
constexpr WhenSet bit(When when) { return static_cast<WhenSet>(1u << static_cast<unsigned>(when)); }
inline constexpr WhenSet kUsual = bit(When::every_micro_batch);
inline constexpr WhenSet kFirst = kUsual | bit(When::first_micro_batch);
inline constexpr WhenSet kLast = kUsual | bit(When::last_micro_batch);
inline constexpr WhenSet kOnly = kFirst | kLast;  // a step of one micro-batch
// The conditions that hold in micro-batch `micro_batch` of a step: an op runs if its `when` is among them.
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

// Returns true if ranks take turns at ops of the piece's update (Op::turns, rank_of_turn()).
inline bool takes_turns(const Piece& piece) {
  return std::ranges::any_of(piece.update.ops, [](const Op& op) { return !op.turns.empty(); });
}

// The place of instances in the stretch of runs over which buckets (Op::every) are filled.
struct PositionInStretch {
  std::int64_t before = 0;  // instances of the stretch that run before these
  std::int64_t count = 0;   // instances of the whole stretch
};
// The number of instances that an op with this `every` covers at the place; 0: it does not run there.
constexpr std::int64_t instances_covered(std::uint16_t every, PositionInStretch place, Covers covers = Covers::own) {
  const bool last = place.before + 1 == place.count;
  if (covers == Covers::before) return place.before > 0 ? 1 : 0;
  if (covers == Covers::last) return last ? 1 : 0;
  if ((place.before + 1) % every == 0) return every;
  return last ? place.count % every : 0;
}

// Calls visit(run, place of the run's first instance) in the order in which a line runs `runs`.
template <class Visit>
void for_each_in_line(const std::vector<Piece>& pieces, std::span<const PieceRun> runs, bool reversed, Visit&& visit) {
  if (!reversed)
    return for_each_stretch(pieces, runs, [&](std::span<const PieceRun> stretch, std::int64_t instances) {
      std::int64_t before = 0;
      for (const PieceRun& run : stretch) {
        visit(run, PositionInStretch{before, instances});
        before += run.count;
      }
    });
  while (!runs.empty()) {
    std::size_t first = runs.size() - 1;
    std::int64_t instances = runs[first].count, before = 0;
    for (; first > 0 && share_buckets(pieces[runs[first - 1].piece], pieces[runs[first].piece]); --first)
      instances += runs[first - 1].count;
    for (std::size_t i = runs.size(); i-- > first; before += runs[i].count)
      visit(runs[i], PositionInStretch{before, instances});
    runs = runs.first(first);
  }
}

// The ops of a line that are issued ahead of their instance. An op of distance d (Op::prefetch) is issued when the
// instance d places earlier starts its first kernel, or the kernel that issues_ahead_from() names. Ops of the first d
// instances are issued at the beginning of the line.
struct IssueAhead {
  static constexpr int kAny = 0xffff;
  std::int64_t length = 0;   // number of instances in the line
  std::int64_t longest = 0;  // largest distance of any of its ops

  // issue(instance, least, most) issues the instance's ops of distances least to most.
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

// The index of the op in a block from which on the first kernel lets later instances issue ahead.
inline std::size_t issues_ahead_from(std::span<const Op> ops) {
  const auto at = std::ranges::find_if(ops, &Op::issues_ahead);
  return at == ops.end() ? 0 : static_cast<std::size_t>(at - ops.begin());
}

// Returns, by op of a block, whether it may be issued ahead: its Op::prefetch is above 0, and its operands are produced
// in their own instance only by such ops, if at all. Returns nothing if no op has a prefetch. `storage`: the storage of
// each tensor (Liveness). `input`: the tensor that the block takes from the instance before.
std::vector<std::uint8_t> find_ahead(std::span<const Op> ops, std::span<const TensorId> storage, TensorId input);

// The input of a block from the instance before it, and its output to the instance after it; kNoTensor: none.
struct Boundary {
  TensorId input = kNoTensor, output = kNoTensor;
};
Boundary boundary_of(const Piece& piece, std::size_t block);

}  // namespace orrery
