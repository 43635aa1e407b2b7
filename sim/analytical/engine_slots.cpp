// What slots of a stage do to each other beyond their order: what they leave on asynchronous streams, and what is done
// while a stage waits.
#include <algorithm>

#include "sim/analytical/engine_rep.h"

namespace orrery {
namespace {

constexpr double kSame = 1e-6;  // relative: of a slot's seconds from round to round
constexpr std::int64_t kRounds = 4;

void add(LineResult& to, const LineResult& from, double times) {
  to.seconds += times * from.seconds;
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

}  // namespace

// The first forward's gathering of parameters needs no input: a stage gathers while the pipeline fills. With many
// micro-batches only what the first one adds matters: what outlasts the wait for the first input stays in the slot.
void AnalyticalEngine::Rep::gather_while_waiting(const Program& program) {
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  const std::size_t positions = program.schedule.position.size();
  constexpr std::size_t kForward = index(SlotKind::forward);
  const bool only = program.schedule.micro_batches == 1;
  if (only && positions == 1) return;
  const auto issues_ahead = [&](const Chunk& chunk) {
    return std::any_of(chunk.runs.begin(), chunk.runs.end(), [&](const Run& run) {
      const BlockCode& code = pieces[run.piece].block(BlockKind::forward);
      return std::any_of(code.prefetched.begin(), code.prefetched.end(), [&](std::uint16_t k) {
        return only || code.nodes[k].when == kUsual;
      });
    });
  };
  bool any = false;
  for (std::size_t at = 0; at < lines.size() && !any; ++at)
    any = lines[at][kForward].first.seconds > lines[at][kForward].usual.seconds ||
          issues_ahead(program.stages[static_cast<std::size_t>(classes[at / chunks].first_stage)][at % chunks]);
  if (!any) return;
  at_position.resize(positions);
  for (std::size_t i = 0; i < positions; ++i)
    at_position[static_cast<std::size_t>(program.schedule.position[i])] = static_cast<std::uint32_t>(i);
  double wait = 0;  // until the first input can have come through the positions before
  for (std::size_t q = 0; q < positions; ++q) {
    const std::size_t at = at_position[q], stage = at / chunks, c = static_cast<std::size_t>(stage_class[stage]);
    SlotLines& l = lines[c * chunks + at % chunks][kForward];
    const bool receives = q > 0 && at_position[q - 1] / chunks != stage;
    if (receives && classes[c].first_stage == static_cast<std::int32_t>(stage)) {
      const Chunk& chunk = program.stages[stage][at % chunks];
      if (issues_ahead(chunk)) {
        clock_line(program, chunk, BlockKind::forward, only ? kOnly : kFirst, l.first, {.waits_seconds = wait});
        if (only) l.usual = l.last = l.first;
      } else if (wait >= l.first.seconds - l.usual.seconds) {
        l.first = l.usual;
      }
    }
    wait += l.first.seconds;
  }
}

// Where streams meet on a level of the fabric, what a slot leaves on asynchronous ones slows the next slot. Slots of
// the usual micro-batches are clocked again behind what is left by the slot before them, until nothing changes; the
// first have nothing before them.
void AnalyticalEngine::Rep::carry_backlogs(const Program& program, std::size_t stage_class_of) {
  const Schedule& schedule = program.schedule;
  const std::int64_t n = schedule.micro_batches;
  if (n == 1 || !clock.shares_levels()) return;
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  const auto stage = static_cast<std::size_t>(classes[stage_class_of].first_stage);
  auto* own = &lines[stage_class_of * chunks];
  // A slot k is of a chunk and a kind.
  const auto slots = chunks * kSlotKinds;
  const auto chunk_of = [&](std::size_t k) -> const Chunk& { return program.stages[stage][k / kSlotKinds]; };
  const auto lines_of = [&](std::size_t k) -> SlotLines& { return own[k / kSlotKinds][k % kSlotKinds]; };
  const auto clock_behind = [&](FabricBacklog& backlog, std::size_t k, WhenSet when, LineResult& result) {
    clock_line(program, chunk_of(k), static_cast<BlockKind>(k % kSlotKinds), when, result, {.backlog = &backlog});
  };
  StreamsByLevel on_level{};
  bool leaves = false;
  for (std::size_t k = 0; k < slots; ++k) {
    leaves |= leaves_behind(lines_of(k).usual);
    for (const Run& run : chunk_of(k).runs)
      for (std::size_t l = 0; l < kFabricLevels; ++l)
        on_level[l] |= pieces[run.piece].blocks[k % kSlotKinds].on_level[0][l];
  }
  if (!leaves || !any_meet(on_level)) return;

  constexpr std::int32_t kNone = -1;
  slot_before.assign(slots, kNone);
  std::int32_t before = kNone;
  schedule.order(stage).for_each([&](const Slot& slot) {
    const auto k = static_cast<std::int32_t>(slot.chunk * kSlotKinds + index(slot.kind));
    if (slot.micro_batch == n / 2) slot_before[static_cast<std::size_t>(k)] = before;
    before = k;
  });
  backlogs.assign(slots, {});
  LineResult first;
  for (std::size_t k = 0; k < slots; ++k)
    if (slot_before[k] != kNone && leaves_behind(lines_of(k).usual)) clock_behind(backlogs[k], k, kUsual, first);
  // As many rounds as there are usual micro-batches, each behind the one before; the last of few stands for the rest.
  const std::int64_t usual_ones = std::max<std::int64_t>(n - 2, 1);
  std::vector<LineResult> sums(slots);
  for (std::int64_t round = 0, rounds = std::min<std::int64_t>(usual_ones, kRounds); round < rounds; ++round) {
    bool same = true;
    for (std::size_t k = 0; k < slots; ++k) {
      if (slot_before[k] == kNone) continue;
      LineResult& usual = lines_of(k).usual;
      const double was = usual.seconds;
      backlogs[k] = backlogs[static_cast<std::size_t>(slot_before[k])];
      clock_behind(backlogs[k], k, kUsual, usual);
      same &= std::abs(usual.seconds - was) <= kSame * was;
    }
    const bool last = round + 1 == rounds || (same && round > 0);
    const auto times = static_cast<double>(last ? usual_ones - round : 1);
    for (std::size_t k = 0; k < slots; ++k)
      add(sums[k], lines_of(k).usual, times / static_cast<double>(usual_ones));
    if (last) break;
  }
  for (std::size_t k = 0; k < slots; ++k) {
    if (slot_before[k] == kNone) continue;
    SlotLines& l = lines_of(k);
    l.usual = sums[k];
    WhenSet conditions = 0;
    for (const Run& run : chunk_of(k).runs) conditions |= pieces[run.piece].blocks[k % kSlotKinds].conditions;
    if ((conditions & bit(When::last_micro_batch)) == 0) {
      l.last = l.usual;
      continue;
    }
    FabricBacklog backlog = backlogs[static_cast<std::size_t>(slot_before[k])];
    clock_behind(backlog, k, kLast, l.last);
  }
}

}  // namespace orrery
