// Effects between the slots of a stage beyond their order: work that slots leave on asynchronous streams, and work that
// is done while a stage waits.
#include <algorithm>

#include "sim/analytical/engine_rep.h"

namespace orrery {
namespace {

constexpr double kSame = 1e-6;  // relative difference of a slot's seconds between rounds
constexpr std::int64_t kRounds = 4;
constexpr std::int64_t kFollowed = 64;      // number of micro-batches
constexpr std::size_t kMostWalked = 16384;  // number of slots of all stages
constexpr double kFelt = 0.05;  // a longer wait, as a share of a slot's gathering, is worth clocking it again

void add(LineResult& to, const LineResult& from, double times) {
  to.seconds += times * from.seconds;
  to.origin = from.origin;
  for (std::size_t a = 0; a < to.accounts.size(); ++a) to.accounts[a] += times * from.accounts[a];
  for (std::size_t s = 0; s < kStreams; ++s) {
    to.stream_end[s] += times * from.stream_end[s];
    to.stream_work[s] += times * from.stream_work[s];
    to.carried[s] += times * from.carried[s];
  }
}

bool leaves_behind(const LineResult& l) {
  return std::ranges::any_of(kFabricStreams, [&](std::size_t s) { return l.stream_end[s] > l.seconds; });
}

// Seconds of the additional work of the first micro-batch's forward, on the fabric stream with the most of it.
double gathered_in(const SlotLines& l) {
  double most = 0;
  for (const std::size_t s : kFabricStreams) most = std::max(most, l.first.stream_work[s] - l.usual.stream_work[s]);
  return most;
}

bool is_empty(const FabricBacklog& backlog) {
  return std::all_of(backlog.begin(), backlog.end(), [](const auto& works) { return works.empty(); });
}

bool same(double a, double b) { return std::abs(a - b) <= kSame * std::max(a, b); }
bool same(const FabricBacklog& a, const FabricBacklog& b) {
  const auto same_work = [](const FabricWork& x, const FabricWork& y) {
    return same(x.latency_seconds, y.latency_seconds) && same(x.seconds[0], y.seconds[0]) &&
           same(x.seconds[1], y.seconds[1]) && x.in_sequence == y.in_sequence && x.in_node == y.in_node;
  };
  for (std::size_t s = 0; s < a.size(); ++s)
    if (!std::equal(a[s].begin(), a[s].end(), b[s].begin(), b[s].end(), same_work)) return false;
  return true;
}

// How a slot was clocked last behind others' work. An equal situation is not clocked again.
struct Clocked {
  bool known = false;
  FabricBacklog before, behind;
  LineResult result;

  // Replaces the backlog by the one that the slot leaves. `clock(backlog, result)` clocks it.
  template <class Clock>
  void clock_behind(FabricBacklog& backlog, LineResult& of_slot, const Clock& clock) {
    if (known && same(before, backlog)) {
      of_slot = result;
    } else if (is_empty(backlog) && !leaves_behind(of_slot)) {
      return;
    } else {
      before = backlog;
      clock(backlog, of_slot);
      behind = backlog;
      result = of_slot;
      known = true;
    }
    backlog = behind;
  }
};

}  // namespace

// Counts the forwards that a stage runs from the first one of a chunk to the first one of its next chunk.
std::vector<std::int64_t> AnalyticalEngine::Rep::count_turns() const {
  const auto chunks = static_cast<std::size_t>(program->schedule.chunks);
  std::vector<std::int64_t> turns(program->stages.size() * chunks, 1);
  if (chunks == 1) return turns;
  for (std::size_t stage = 0; stage < program->stages.size(); ++stage) {
    const StageOrder order = program->schedule.order(stage);
    std::size_t found = 0, before = stage * chunks;
    std::int64_t slots = 0;
    for (const std::span<const Segment> section : {order.prologue, order.body, order.epilogue})
      for (const Segment& segment : section) {
        if (found == chunks) break;
        for (std::uint32_t i = 0; i < segment.size; ++i) {
          const Slot& slot = segment.slots[i];
          if (slot.kind != SlotKind::forward || slot.micro_batch != 0) continue;
          if (found++ > 0) turns[before] = slots + i;
          before = stage * chunks + slot.chunk;
          slots = -static_cast<std::int64_t>(i);
        }
        slots += static_cast<std::int64_t>(segment.size) * segment.repeats;
      }
  }
  return turns;
}

// If the first forward's gathering of parameters is issued ahead, it needs no input: a stage gathers while it waits for
// that input. The gathers of a stage's first chunk begin when the turn of the slot has come. Those of a later chunk
// begin with the first forward of the chunk before it, beside the forwards of other micro-batches
// (gathers_a_chunk_ahead). With many micro-batches only the additional work of the first one matters. The part that
// takes longer than the wait remains in the slot. So does all work that is not issued ahead, because the host waits for
// the input first.
void AnalyticalEngine::Rep::gather_while_waiting() {
  const auto chunks = static_cast<std::size_t>(program->schedule.chunks);
  const std::size_t positions = program->schedule.position.size(), of_first = program->class_of(0);
  constexpr std::size_t kForward = index(SlotKind::forward);
  const bool only = program->schedule.micro_batches == 1;
  if (only && positions == 1) return;
  const auto issues_ahead = [&](const Chunk& chunk) {
    return std::any_of(chunk.runs.begin(), chunk.runs.end(), [&](const PieceRun& run) {
      const BlockCode& code = pieces[run.piece].block(BlockKind::forward);
      return std::any_of(code.prefetched.begin(), code.prefetched.end(),
                         [&](std::uint16_t k) { return only || code.nodes[k].when == kUsual; });
    });
  };
  constexpr WhenSet kAdded = bit(When::first_micro_batch);
  struct Added {
    bool ahead = false, behind_input = false;
  };
  const auto added = [&](const Chunk& chunk) {
    Added result;
    for (const PieceRun& run : chunk.runs) {
      const BlockCode& code = pieces[run.piece].block(BlockKind::forward);
      if ((code.conditions & kAdded) == 0) continue;
      for (const ClockNode& node : code.nodes) {
        if (node.when != kAdded) continue;
        (node.prefetch > 0 ? result.ahead : result.behind_input) = true;
      }
    }
    return result;
  };
  bool any = false;
  for (std::size_t i = 0; i < lines.size() && !any; ++i) {
    const Row of = row(i);
    if (of.of_class != of_first) continue;
    any = lines[i][kForward].first.seconds > lines[i][kForward].usual.seconds || issues_ahead(of.chunk);
  }
  if (!any) return;
  std::vector<std::size_t> at_position(positions);
  for (std::size_t i = 0; i < positions; ++i) at_position[static_cast<std::size_t>(program->schedule.position[i])] = i;
  const std::vector<std::int64_t> turns = count_turns();
  // By position: the ends of forwards that decide how long gathers for a stage's next chunk may take.
  struct FirstEnds {
    double issued = 0, gathered = 0;  // first micro-batch's gathers that are issued ahead: issue, end
    double first = 0, last = 0;       // end of its forward; end of the last forward before the stage's next chunk
  };
  std::vector<FirstEnds> first_ends(positions);
  std::vector<char> gathers_alone(lines.size());     // whether only the first micro-batch gathers ahead
  std::vector<double> gather_seconds(lines.size());  // seconds of a first forward's gathers
  std::vector<double> first_waits(lines.size());     // the wait with which a first forward was clocked; 0: none
  const double slowdown = kernels.overlap_slowdown;
  double slowest = 0;  // the longest usual forward so far
  for (std::size_t q = 0; q < positions; ++q) {
    const std::size_t place = at_position[q], stage = place / chunks, c = static_cast<std::size_t>(stage_class[stage]);
    const std::size_t own = at(c, of_first, place % chunks);
    SlotLines& l = lines[own][kForward];
    const bool receives = q > 0 && at_position[q - 1] / chunks != stage;
    const double hop = receives ? hops[q - 1] : 0, arrives = q > 0 ? first_ends[q - 1].first + hop : 0;
    const FirstEnds* const before =
        place % chunks > 0 ? &first_ends[static_cast<std::size_t>(program->schedule.position[place - 1])] : nullptr;
    FirstEnds& here = first_ends[q];
    const double free = before != nullptr ? before->last : 0, turn = std::max(free, arrives);
    const bool speaks = classes[c].first_stage == static_cast<std::int32_t>(stage);
    const Chunk& chunk = program->stages_of(of_first)[stage][place % chunks];
    const Added adds = speaks ? added(chunk) : Added{};
    const bool always = speaks && issues_ahead(chunk);
    if (speaks) gathers_alone[own] = adds.ahead && !always && !program->schedule.pairs;
    // A chunk issues the gathers that only its first forward has with the first forward of the chunk before it.
    const bool with_before = before != nullptr && gathers_alone[own] != 0;
    here.issued = receives ? free : turn;
    const double begin = with_before ? std::max(before->issued, before->gathered) : here.issued;
    const double wait = turn - begin;
    if (speaks) gather_seconds[own] = gathered_in(l);
    const double gathered = gather_seconds[own];
    here.gathered = receives || with_before ? begin + gathered : 0;
    if ((receives || with_before) && speaks) {
      const double more = std::max(l.first.seconds - l.usual.seconds, gathered);
      if (always || (adds.ahead && (adds.behind_input || (wait > kFelt * more && wait < more)))) {
        // Most chunks of a stage are equal, and wait equally long.
        const LineResult* like = nullptr;
        for (std::size_t k = at(c, of_first); like == nullptr && k < own; ++k)
          if (first_waits[k] > 0 && std::abs(first_waits[k] - wait) <= kFelt * more && row(k).chunk == chunk)
            like = &lines[k][kForward].first;
        if (like != nullptr)
          l.first = *like;
        else
          clock_line(chunk, classes[c].layout, BlockKind::forward, only ? kOnly : kFirst, l.first,
                     {.waits_seconds = wait});
        first_waits[own] = wait;
        if (only) l.usual = l.last = l.first;
      } else if (!adds.behind_input && wait >= more) {
        l.first = l.usual;
      }
    }
    here.first = turn + l.first.seconds;
    if (!receives && !with_before) here.gathered = here.first;
    // The gathers of the next chunk run at the same time and slow down the kernels.
    if (speaks && !only && place % chunks + 1 < chunks && gathers_alone[own] != 0) {
      const double from = std::max(here.issued, here.gathered), next = gathered_in(lines[own + 1][kForward]);
      const double beside = std::min(from + next, here.first) - std::max(from, turn);
      double kernel = 0;
      for (std::size_t a = 0; a < kHostIssue; ++a) kernel += l.usual.accounts[a];
      if (beside > 0 && kernel > 0) {
        const double longer = slowdown * kernel * std::min(1.0, beside / (l.usual.seconds + slowdown * kernel));
        l.first.seconds += longer;
        for (std::size_t a = 0; a < kHostIssue; ++a) l.first.accounts[a] += longer * l.usual.accounts[a] / kernel;
        here.first += longer;
      }
    }
    // The stage's last forward before its next chunk ends when the stage itself, or a slower stage before it, allows
    // it.
    const double usual = l.usual.seconds, behind = static_cast<double>(turns[place] - 1);
    slowest = std::max(slowest, usual);
    here.last = here.first + behind * usual;
    if (q > 0 && turns[place] > 1)
      here.last = std::max(here.last, first_ends[q - 1].last + hop + usual +
                                          (behind - static_cast<double>(turns[at_position[q - 1]] - 1)) * slowest);
  }
}

// Stages wait between their slots, and work that these slots have left on asynchronous streams continues meanwhile. If
// there are few slots, a walk of all of them gives the waits; in this walk no slot is slowed by others' work yet. A
// class is represented by its first stage, which ends last: later stages wait less and have more work left, but finish
// earlier.
void AnalyticalEngine::Rep::find_waits() {
  waits.clear();
  const Schedule& schedule = program->schedule;
  const std::size_t stages = program->stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  const std::size_t slots_of_stage =
      chunks * static_cast<std::size_t>(schedule.micro_batches * (schedule.split_backward ? 3 : 2));
  if (stages == 1 || schedule.micro_batches == 1 || stages * slots_of_stage > kMostWalked) return;
  if (std::none_of(lines.begin(), lines.end(), [](const std::array<SlotLines, kSlotKinds>& kinds) {
        return std::any_of(kinds.begin(), kinds.end(), [](const SlotLines& l) { return leaves_behind(l.usual); });
      }))
    return;
  take_seconds();
  walk_timeline(schedule, unpaired_costs(), pipeline, walked);
  for (const StageClass& c : classes) {
    double end = 0;
    for (std::size_t i = 0; i < slots_of_stage; ++i) {
      const SlotRecord& slot = walked.slots[static_cast<std::size_t>(c.first_stage) * slots_of_stage + i];
      waits.push_back(slot.begin_seconds - end);
      end = slot.end_seconds;
    }
  }
}

// Returns whether the work that the class's slots leave slows later slots: their kernels, or other streams on the same
// level of the fabric.
bool AnalyticalEngine::Rep::slows_itself(std::size_t stage_class_of) const {
  if (program->schedule.micro_batches == 1 || !clock.shares_levels()) return false;
  StreamsByLevel on_level{};
  bool leaves = false;
  for (std::size_t i = at(stage_class_of, 0); i < at(stage_class_of + 1, 0); ++i)
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
      leaves |= leaves_behind(lines[i][kind].usual);
      for (const PieceRun& run : row(i).chunk.runs)
        for (std::size_t l = 0; l < kFabricLevels; ++l)
          on_level[l] |= pieces[run.piece].blocks[classes[stage_class_of].layout][kind].on_level[0][l];
    }
  return leaves && (kernels.overlap_slowdown > 0 || any_meet(on_level));
}

// With few micro-batches, slots are clocked one by one, each with the work that the slots before have left; equal
// situations are clocked once.
void AnalyticalEngine::Rep::follow_backlogs(std::size_t stage_class_of) {
  const Schedule& schedule = program->schedule;
  const std::int64_t n = schedule.micro_batches;
  StageClass& c = classes[stage_class_of];
  const std::size_t begin = at(stage_class_of, 0), rows_of_stage = at(1, 0);
  // By slot of a usual micro-batch.
  std::vector<Clocked> clocked(rows_of_stage * kSlotKinds);
  std::vector<LineResult> sums(clocked.size());
  std::vector<double> usual_ones(program->micro_batch_classes(), 0);
  for (std::int64_t m = 1; m + 1 < n; ++m) ++usual_ones[program->class_of(m)];
  FabricBacklog backlog;
  std::size_t slots = 0;
  schedule.order(static_cast<std::size_t>(c.first_stage)).for_each([&](const Slot& slot) {
    fabric.work_off(wait(stage_class_of, slots++), backlog);
    const std::size_t of_row = at(stage_class_of, slot);
    const std::size_t k = (of_row - begin) * kSlotKinds + index(slot.kind);
    SlotLines& l = lines[of_row][index(slot.kind)];
    const bool first = slot.micro_batch == 0, last = slot.micro_batch + 1 == n;
    LineResult result = l.of(slot.micro_batch, n);
    const auto clock_again = [&](FabricBacklog& before, LineResult& behind) {
      clock_line(row(of_row).chunk, c.layout, static_cast<BlockKind>(slot.kind), conditions_of(slot.micro_batch, n),
                 behind, {.backlog = &before});
    };
    if (!first && !last) {
      clocked[k].clock_behind(backlog, result, clock_again);
    } else if (!is_empty(backlog) || leaves_behind(result)) {
      LineResult behind;
      clock_again(backlog, behind);
      // A first forward keeps the result that was clocked with a wait for its input.
      if (!first || slot.kind != SlotKind::forward) result = behind;
    }
    if (first)
      l.first = result;
    else if (last)
      l.last = result;
    else
      add(sums[k], result, 1.0 / usual_ones[program->class_of(slot.micro_batch)]);
  });
  for (std::size_t k = 0; k < sums.size(); ++k) {
    const std::size_t of_row = begin + k / kSlotKinds;
    if (usual_ones[row(of_row).of_class] > 0) lines[of_row][k % kSlotKinds].usual = sums[k];
  }
  c.left = fabric.work_off(backlog);
  c.followed = true;
}

// If streams share a level of the fabric, work that a slot leaves on asynchronous streams slows the next slot. Slots of
// the usual micro-batches are clocked again with the work that the slot before them leaves, until nothing changes; the
// first slots have nothing before them. If micro-batches differ, each class is treated as if all were of it.
void AnalyticalEngine::Rep::carry_backlogs(std::size_t stage_class_of) {
  if (!slows_itself(stage_class_of)) return;
  classes[stage_class_of].carries = true;
  if (!waits.empty() && program->schedule.micro_batches <= kFollowed) return follow_backlogs(stage_class_of);
  for (std::size_t k = 0; k < program->micro_batch_classes(); ++k) settle_backlogs(stage_class_of, k);
}

// Transfers between stages on different nodes share the NICs with reductions that run in every micro-batch, and with a
// flow beside the step. A hop is slowed for the share of the time in which such a reduction runs.
void AnalyticalEngine::Rep::slow_hops() {
  hops_alone = hops;
  constexpr auto kNetwork = static_cast<std::size_t>(FabricLevel::network);
  const double flow = beside_on_network();
  const bool reduces = program->schedule.micro_batches > 1;
  if (hops.size() < 2 || !(reduces || flow > 0) || !clock.shares_levels()) return;
  std::vector<double> busy(classes.size(), 0);
  for (std::size_t i = 0; reduces && i < lines.size(); ++i) {
    const Row of = row(i);
    double work = 0, all = 0;
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
      const LineResult& usual = lines[i][kind].usual;
      all += usual.seconds;
      std::uint32_t on_network = 0;
      for (const PieceRun& run : of.chunk.runs)
        on_network |=
            pieces[run.piece].block(static_cast<BlockKind>(kind), classes[of.stage_class].layout).on_level[0][kNetwork];
      for (const std::size_t s : kFabricStreams)
        if (kStreamRows[s].asynchronous && (on_network >> s & 1) != 0) work += usual.stream_work[s];
    }
    if (work > 0) busy[of.stage_class] = std::max(busy[of.stage_class], std::min(1.0, work / all));
  }
  for (std::size_t q = 0; q + 1 < hops.size(); ++q) {
    if (borders.stage_at(q) == borders.stage_at(q + 1)) continue;
    if (!leaves_node[static_cast<std::size_t>(borders.behind_stage(q))]) continue;
    const auto busy_of = [&](std::size_t at) {
      return busy[static_cast<std::size_t>(stage_class[static_cast<std::size_t>(borders.stage_at(at))])];
    };
    hops[q] *= 1 + std::max(busy_of(q), busy_of(q + 1)) + flow;
  }
}

// The last micro-batch of a chunk leaves the reduction of the chunk's gradients on the fabric's asynchronous streams.
// This slows the kernels of the slots that follow. In orders that continue with the chunk below, these are the
// backwards of that chunk's last micro-batches, one for each stage.
void AnalyticalEngine::Rep::slow_behind_last() {
  behind_last.clear();
  const Schedule& schedule = program->schedule;
  const std::size_t chunks = static_cast<std::size_t>(schedule.chunks), stages = program->stages.size(),
                    of_last = program->class_of(schedule.micro_batches - 1);
  if (chunks == 1 || stages == 1 || schedule.micro_batches == 1 || schedule.split_backward || schedule.pairs) return;
  const double slowdown = kernels.overlap_slowdown;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    if (classes[i].carries) continue;
    double left = 0;  // seconds of work left on the stream when the chunk's last backward ends
    for (std::size_t chunk = chunks; --chunk > 0;) {
      const auto of_chunk = [&](std::size_t of) -> const SlotLines& {
        return lines[at(i, of_last, of)][index(SlotKind::backward)];
      };
      const LineResult &last = of_chunk(chunk).last, &usual = of_chunk(chunk - 1).usual;
      double behind = 0;
      for (const std::size_t s : kFabricStreams)
        if (last.stream_end[s] > 0)
          behind = std::max({behind, last.stream_end[s] - last.seconds, left + last.stream_work[s] - last.seconds});
      left = behind;
      double kernel = 0;
      for (std::size_t a = 0; a < kHostIssue; ++a) kernel += usual.accounts[a];
      if (left <= 0 || kernel <= 0) continue;
      if (behind_last.empty()) behind_last.assign(classes.size() * chunks * stages, 0);
      const double slowed = usual.seconds + slowdown * kernel;
      double sum = 0;
      for (std::size_t k = 0; k < stages; ++k) {
        double& longer = behind_last[((i * chunks) + chunk) * stages + k];
        longer = slowdown * kernel * std::min(1.0, left / slowed);
        // The chunk's own last backward reduces, too. Its line already contains that slow-down, which must count once
        // only.
        if (k + 1 == stages)
          longer = std::max(0.0, std::min(longer, slowed - of_chunk(chunk - 1).last.seconds));
        else
          left = std::max(0.0, left - usual.seconds - longer);
        sum += longer;
      }
      for (std::size_t a = 0; a < kHostIssue; ++a) classes[i].slots[a] += sum * usual.accounts[a] / kernel;
    }
  }
}

void AnalyticalEngine::Rep::settle_backlogs(std::size_t stage_class_of, std::size_t of_class) {
  const Schedule& schedule = program->schedule;
  const std::int64_t n = schedule.micro_batches;
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  const auto stage = static_cast<std::size_t>(classes[stage_class_of].first_stage);
  auto* own = &lines[at(stage_class_of, of_class)];
  // Slot k stands for a chunk and a kind.
  const auto slots = chunks * kSlotKinds;
  const auto& stages = program->stages_of(of_class);
  const auto chunk_of = [&](std::size_t k) -> const Chunk& { return stages[stage][k / kSlotKinds]; };
  const auto lines_of = [&](std::size_t k) -> SlotLines& { return own[k / kSlotKinds][k % kSlotKinds]; };
  const auto clock_behind = [&](FabricBacklog& backlog, std::size_t k, WhenSet when, LineResult& result) {
    clock_line(chunk_of(k), classes[stage_class_of].layout, static_cast<BlockKind>(k % kSlotKinds), when, result,
               {.backlog = &backlog});
  };

  constexpr std::int32_t kNone = -1;
  std::vector<std::int32_t> slot_before(slots, kNone);
  std::vector<double> wait_before(slots), last_wait_before(slots);
  std::int32_t before = kNone;
  std::size_t place = 0;
  schedule.order(stage).for_each([&](const Slot& slot) {
    const std::size_t k = slot.chunk * kSlotKinds + index(slot.kind);
    const double waited = wait(stage_class_of, place++);
    if (slot.micro_batch == n / 2) {
      slot_before[k] = before;
      wait_before[k] = waited;
    }
    if (slot.micro_batch + 1 == n) last_wait_before[k] = waited;
    before = static_cast<std::int32_t>(k);
  });
  std::vector<FabricBacklog> backlogs(slots);
  std::vector<Clocked> clocked(slots);
  const auto clock_usual = [&](std::size_t k, FabricBacklog& backlog, LineResult& result) {
    clocked[k].clock_behind(backlog, result,
                            [&](FabricBacklog& found, LineResult& behind) { clock_behind(found, k, kUsual, behind); });
  };
  for (std::size_t k = 0; k < slots; ++k)
    if (slot_before[k] != kNone && leaves_behind(lines_of(k).usual)) clock_usual(k, backlogs[k], lines_of(k).usual);
  // As many rounds as there are usual micro-batches, each with the work of the one before; the last of a few represents
  // the rest.
  const std::int64_t usual_ones = std::max<std::int64_t>(n - 2, 1);
  std::vector<LineResult> sums(slots);
  for (std::int64_t round = 0, rounds = std::min<std::int64_t>(usual_ones, kRounds); round < rounds; ++round) {
    bool settled = true;
    for (std::size_t k = 0; k < slots; ++k) {
      if (slot_before[k] == kNone) continue;
      LineResult& usual = lines_of(k).usual;
      const double was = usual.seconds;
      backlogs[k] = backlogs[static_cast<std::size_t>(slot_before[k])];
      if (wait_before[k] > 0) fabric.work_off(wait_before[k], backlogs[k]);
      clock_usual(k, backlogs[k], usual);
      settled &= same(usual.seconds, was);
    }
    const bool last = round + 1 == rounds || (settled && round > 0);
    const auto times = static_cast<double>(last ? usual_ones - round : 1);
    for (std::size_t k = 0; k < slots; ++k) add(sums[k], lines_of(k).usual, times / static_cast<double>(usual_ones));
    if (last) break;
  }
  for (std::size_t k = 0; k < slots; ++k) {
    if (slot_before[k] == kNone) continue;
    SlotLines& l = lines_of(k);
    l.usual = sums[k];
    WhenSet conditions = 0;
    for (const PieceRun& run : chunk_of(k).runs)
      conditions |= pieces[run.piece].block(static_cast<BlockKind>(k % kSlotKinds)).conditions;
    if ((conditions & bit(When::last_micro_batch)) == 0) {
      l.last = l.usual;
      continue;
    }
    FabricBacklog backlog = backlogs[static_cast<std::size_t>(slot_before[k])];
    if (last_wait_before[k] > 0) fabric.work_off(last_wait_before[k], backlog);
    clock_behind(backlog, k, kLast, l.last);
  }
}

}  // namespace orrery
