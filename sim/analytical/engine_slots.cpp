// What slots of a stage do to each other beyond their order: what they leave on asynchronous streams, and what is done
// while a stage waits.
#include <algorithm>

#include "sim/analytical/engine_rep.h"

namespace orrery {
namespace {

constexpr double kSame = 1e-6;  // relative: of a slot's seconds from round to round
constexpr std::int64_t kRounds = 4;
constexpr std::int64_t kFollowed = 64;     // micro-batches
constexpr std::size_t kMostWalked = 4096;  // slots of all stages

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
  for (std::size_t s = 0; s < kStreams; ++s)
    if (kStreamRows[s].occupies == Occupies::fabric && l.stream_end[s] > l.seconds) return true;
  return false;
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

}  // namespace

// The first forward's gathering of parameters needs no input if it is issued ahead: a stage gathers while the pipeline
// fills. With many micro-batches only what the first one adds matters: what outlasts the wait for the first input stays
// in the slot. So does all that is not issued ahead: the host waits for the input first.
void AnalyticalEngine::Rep::gather_while_waiting(const Program& program) {
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  const std::size_t positions = program.schedule.position.size(), of_first = program.class_of(0);
  constexpr std::size_t kForward = index(SlotKind::forward);
  const bool only = program.schedule.micro_batches == 1;
  if (only && positions == 1) return;
  const auto issues_ahead = [&](const Chunk& chunk) {
    return std::any_of(chunk.runs.begin(), chunk.runs.end(), [&](const Run& run) {
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
    for (const Run& run : chunk.runs) {
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
    const Row of = row(program, i);
    if (of.of_class != of_first) continue;
    any = lines[i][kForward].first.seconds > lines[i][kForward].usual.seconds || issues_ahead(of.chunk);
  }
  if (!any) return;
  at_position.resize(positions);
  for (std::size_t i = 0; i < positions; ++i)
    at_position[static_cast<std::size_t>(program.schedule.position[i])] = static_cast<std::uint32_t>(i);
  double wait = 0;  // until the first input can have come through the positions before
  for (std::size_t q = 0; q < positions; ++q) {
    const std::size_t place = at_position[q], stage = place / chunks, c = static_cast<std::size_t>(stage_class[stage]);
    SlotLines& l = lines[at(program, c, of_first, place % chunks)][kForward];
    const bool receives = q > 0 && at_position[q - 1] / chunks != stage;
    if (receives && classes[c].first_stage == static_cast<std::int32_t>(stage)) {
      const Chunk& chunk = program.stages_of(of_first)[stage][place % chunks];
      const Added adds = added(chunk);
      if (issues_ahead(chunk) || (adds.ahead && adds.behind_input)) {
        clock_line(program, chunk, classes[c].layout, BlockKind::forward, only ? kOnly : kFirst, l.first,
                   {.waits_seconds = wait});
        if (only) l.usual = l.last = l.first;
      } else if (!adds.behind_input && wait >= l.first.seconds - l.usual.seconds) {
        l.first = l.usual;
      }
    }
    wait += l.first.seconds;
  }
}

// Stages wait between their slots, and what those have left on asynchronous streams goes on meanwhile. How long, a walk
// of all slots tells, as long as there are few of them; in it none is slowed yet by what others leave. The first stage
// of a class speaks for it, which ends last: later ones wait less, and have more left, but are done earlier.
void AnalyticalEngine::Rep::find_waits(const Program& program) {
  waits.clear();
  const Schedule& schedule = program.schedule;
  const std::size_t stages = program.stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  const std::size_t slots_of_stage =
      chunks * static_cast<std::size_t>(schedule.micro_batches * (schedule.split_backward ? 3 : 2));
  if (stages == 1 || schedule.micro_batches == 1 || stages * slots_of_stage > kMostWalked) return;
  if (std::none_of(lines.begin(), lines.end(), [](const std::array<SlotLines, kSlotKinds>& kinds) {
        return std::any_of(kinds.begin(), kinds.end(), [](const SlotLines& l) { return leaves_behind(l.usual); });
      }))
    return;
  for (std::size_t at = 0; at < lines.size(); ++at)
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) seconds[at][kind] = seconds_of(lines[at][kind]);
  walk_timeline(schedule, unpaired_costs(program), pipeline, walked);
  for (const StageClass& c : classes) {
    double end = 0;
    for (std::size_t i = 0; i < slots_of_stage; ++i) {
      const SlotRecord& slot = walked.slots[static_cast<std::size_t>(c.first_stage) * slots_of_stage + i];
      waits.push_back(slot.begin_seconds - end);
      end = slot.end_seconds;
    }
  }
}

// Whether what the class's slots leave meets other streams of the next ones.
bool AnalyticalEngine::Rep::slows_itself(const Program& program, std::size_t stage_class_of) const {
  if (program.schedule.micro_batches == 1 || !clock.shares_levels()) return false;
  StreamsByLevel on_level{};
  bool leaves = false;
  for (std::size_t i = at(program, stage_class_of, 0); i < at(program, stage_class_of + 1, 0); ++i)
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
      leaves |= leaves_behind(lines[i][kind].usual);
      for (const Run& run : row(program, i).chunk.runs)
        for (std::size_t l = 0; l < kFabricLevels; ++l)
          on_level[l] |= pieces[run.piece].blocks[classes[stage_class_of].layout][kind].on_level[0][l];
    }
  return leaves && any_meet(on_level);
}

// Few micro-batches are clocked one by one, each behind what those before have left; what recurs is clocked once.
void AnalyticalEngine::Rep::follow_backlogs(const Program& program, std::size_t stage_class_of) {
  const Schedule& schedule = program.schedule;
  const std::int64_t n = schedule.micro_batches;
  StageClass& c = classes[stage_class_of];
  const std::size_t begin = at(program, stage_class_of, 0), rows_of_stage = at(program, 1, 0);
  // The last that was clocked in a usual micro-batch.
  struct Clocked {
    bool known = false;
    FabricBacklog before, behind;
    LineResult result;
  };
  std::vector<Clocked> clocked(rows_of_stage * kSlotKinds);
  std::vector<LineResult> sums(clocked.size());
  std::vector<double> usual_ones(program.micro_batch_classes(), 0);
  for (std::int64_t m = 1; m + 1 < n; ++m) ++usual_ones[program.class_of(m)];
  FabricBacklog backlog, before;
  std::size_t slots = 0;
  schedule.order(static_cast<std::size_t>(c.first_stage)).for_each([&](const Slot& slot) {
    fabric.work_off(wait(stage_class_of, slots++), backlog);
    const std::size_t of_row = at(program, stage_class_of, slot);
    const std::size_t k = (of_row - begin) * kSlotKinds + index(slot.kind);
    SlotLines& l = lines[of_row][index(slot.kind)];
    const bool first = slot.micro_batch == 0, last = slot.micro_batch + 1 == n;
    LineResult result = first ? l.first : last ? l.last : l.usual;
    Clocked& like = clocked[k];
    if (!first && !last && like.known && same(like.before, backlog)) {
      result = like.result;
      backlog = like.behind;
    } else if (!is_empty(backlog) || leaves_behind(result)) {
      before = backlog;
      LineResult behind;
      clock_line(program, row(program, of_row).chunk, c.layout, static_cast<BlockKind>(slot.kind),
                 conditions_of(slot.micro_batch, n), behind, {.backlog = &backlog});
      if (!first || slot.kind != SlotKind::forward) result = behind;  // that was clocked with its input to come
      if (!first && !last) like = {true, before, backlog, result};
    }
    if (first)
      l.first = result;
    else if (last)
      l.last = result;
    else
      add(sums[k], result, 1.0 / usual_ones[program.class_of(slot.micro_batch)]);
  });
  for (std::size_t k = 0; k < sums.size(); ++k) {
    const std::size_t of_row = begin + k / kSlotKinds;
    if (usual_ones[row(program, of_row).of_class] > 0) lines[of_row][k % kSlotKinds].usual = sums[k];
  }
  c.left = fabric.work_off(backlog);
  c.followed = true;
}

// Where streams meet on a level of the fabric, what a slot leaves on asynchronous ones slows the next slot. Slots of
// the usual micro-batches are clocked again behind what is left by the slot before them, until nothing changes; the
// first have nothing before them. Where micro-batches differ, each class is taken as if all were of it.
void AnalyticalEngine::Rep::carry_backlogs(const Program& program, std::size_t stage_class_of) {
  if (!slows_itself(program, stage_class_of)) return;
  if (!waits.empty() && program.schedule.micro_batches <= kFollowed) return follow_backlogs(program, stage_class_of);
  for (std::size_t k = 0; k < program.micro_batch_classes(); ++k) settle_backlogs(program, stage_class_of, k);
}

void AnalyticalEngine::Rep::settle_backlogs(const Program& program, std::size_t stage_class_of, std::size_t of_class) {
  const Schedule& schedule = program.schedule;
  const std::int64_t n = schedule.micro_batches;
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  const auto stage = static_cast<std::size_t>(classes[stage_class_of].first_stage);
  auto* own = &lines[at(program, stage_class_of, of_class)];
  // A slot k is of a chunk and a kind.
  const auto slots = chunks * kSlotKinds;
  const auto& stages = program.stages_of(of_class);
  const auto chunk_of = [&](std::size_t k) -> const Chunk& { return stages[stage][k / kSlotKinds]; };
  const auto lines_of = [&](std::size_t k) -> SlotLines& { return own[k / kSlotKinds][k % kSlotKinds]; };
  const auto clock_behind = [&](FabricBacklog& backlog, std::size_t k, WhenSet when, LineResult& result) {
    clock_line(program, chunk_of(k), classes[stage_class_of].layout, static_cast<BlockKind>(k % kSlotKinds), when,
               result, {.backlog = &backlog});
  };

  constexpr std::int32_t kNone = -1;
  slot_before.assign(slots, kNone);
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
  backlogs.assign(slots, {});
  LineResult first;
  for (std::size_t k = 0; k < slots; ++k)
    if (slot_before[k] != kNone && leaves_behind(lines_of(k).usual)) clock_behind(backlogs[k], k, kUsual, first);
  // As many rounds as there are usual micro-batches, each behind the one before; the last of few stands for the rest.
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
      clock_behind(backlogs[k], k, kUsual, usual);
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
    for (const Run& run : chunk_of(k).runs)
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
