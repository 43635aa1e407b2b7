#include <algorithm>
#include <limits>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

namespace {

class StagePeakSearch {
 public:
  StagePeakSearch(const Schedule& schedule, const ChunkBytes* bytes, StagePeak& peak)
      : split_(schedule.split_backward), bytes_(bytes), peak_(peak) {}

  void run(const StageOrder& order) {
    section(order.prologue);
    if (order.repeats > 0) {
      // What is held at the start of a repeat changes by the same counts each time, so bytes are linear in the repeat:
      // the peak is in the first or the last.
      const double held_before = held_;
      const std::size_t at_before = at_;
      section(order.body);
      if (order.repeats > 1) {
        held_ += (held_ - held_before) * (order.repeats - 2.0);
        at_ += (at_ - at_before) * (order.repeats - 2);
        section(order.body);
      }
    }
    section(order.epilogue);
  }

 private:
  void section(std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      if (segment.repeats == 0) continue;
      double change = 0, fullest = -std::numeric_limits<double>::infinity();  // beyond what is held at its start
      std::uint32_t where = 0;
      for (std::uint32_t i = 0; i < segment.size; ++i) {
        const Slot& slot = segment.slots[i];
        const ChunkBytes& b = bytes_[slot.chunk];
        const bool forward = slot.kind == SlotKind::forward;
        if (forward) change += b.saved;
        const double bytes = change + b.transient[static_cast<std::size_t>(slot.kind)];
        if (bytes > fullest) fullest = bytes, where = i;
        if (!forward) change += left_behind(slot.kind, b);
      }
      // The same argument, one level down: in the last repeat if each leaves more behind, else in the first.
      const std::uint32_t before = change > 0 ? segment.repeats - 1 : 0;
      const double bytes = held_ + before * change + fullest;
      if (bytes > peak_.bytes)
        peak_ = {.bytes = bytes,
                 .slot = segment.slots[where].kind,
                 .chunk = segment.slots[where].chunk,
                 .at = at_ + std::size_t{before} * segment.size + where};
      held_ += segment.repeats * change;
      at_ += std::size_t{segment.repeats} * segment.size;
    }
  }

  // By a backward or a weight gradient.
  double left_behind(SlotKind kind, const ChunkBytes& b) const {
    if (!split_) return -b.saved;
    return kind == SlotKind::backward ? b.kept - b.saved : -b.kept;
  }

  bool split_;
  const ChunkBytes* bytes_;
  StagePeak& peak_;
  double held_ = 0;
  std::size_t at_ = 0;  // slots before
};

}  // namespace

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::vector<StagePeak>& out) {
  const std::size_t p = schedule.stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  out.assign(p, {});
  for (std::size_t s = 0; s < p; ++s)
    StagePeakSearch(schedule, &bytes[static_cast<std::size_t>(stage_class[s]) * chunks], out[s]).run(schedule.order(s));
}

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::span<const std::uint8_t> micro_batch_class, std::size_t micro_batch_classes,
                std::vector<StagePeak>& out) {
  const std::size_t chunks = static_cast<std::size_t>(schedule.chunks);
  out.assign(schedule.stages.size(), {});
  for (std::size_t s = 0; s < out.size(); ++s) {
    const ChunkBytes* const of_stage = &bytes[static_cast<std::size_t>(stage_class[s]) * micro_batch_classes * chunks];
    double held = 0;
    std::size_t at = 0;
    schedule.order(s).for_each([&](const Slot& slot) {
      const std::uint8_t of_class = micro_batch_class[slot.micro_batch];
      const ChunkBytes& b = of_stage[of_class * chunks + slot.chunk];
      if (slot.kind == SlotKind::forward) held += b.saved;
      const double fullest = held + b.transient[static_cast<std::size_t>(slot.kind)];
      if (fullest > out[s].bytes)
        out[s] = {.bytes = fullest, .slot = slot.kind, .chunk = slot.chunk, .micro_batch_class = of_class, .at = at};
      if (slot.kind == SlotKind::backward) held += schedule.split_backward ? b.kept - b.saved : -b.saved;
      if (slot.kind == SlotKind::weight_gradient) held -= b.kept;
      ++at;
    });
  }
}

void count_held(const Schedule& schedule, std::size_t stage, std::size_t at,
                std::span<const std::uint8_t> micro_batch_class, std::span<HeldMicroBatches> held) {
  std::size_t next = 0;
  schedule.order(stage).for_each([&](const Slot& slot) {
    const std::size_t place = next++;
    if (place > at) return;
    const auto of_class = static_cast<std::size_t>(micro_batch_class[slot.micro_batch]);
    HeldMicroBatches& of = held[of_class * static_cast<std::size_t>(schedule.chunks) + slot.chunk];
    if (slot.kind == SlotKind::forward) {
      ++of.in_flight;
    } else if (place < at && slot.kind == SlotKind::backward) {
      --of.in_flight;
      if (schedule.split_backward) ++of.awaiting_weight_gradient;
    } else if (place < at) {
      --of.awaiting_weight_gradient;
    }
  });
}

void count_held(const Schedule& schedule, std::size_t stage, std::size_t at, std::span<HeldMicroBatches> held) {
  std::size_t left = at;  // slots before it
  const auto count = [&](const Slot& slot, std::int64_t times) {
    HeldMicroBatches& of = held[slot.chunk];
    if (slot.kind == SlotKind::forward) {
      of.in_flight += times;
    } else if (slot.kind == SlotKind::backward) {
      of.in_flight -= times;
      if (schedule.split_backward) of.awaiting_weight_gradient += times;
    } else {
      of.awaiting_weight_gradient -= times;
    }
  };
  // `times` over, if as many slots are left; else as far as they go.
  const auto section = [&](std::span<const Segment> segments, std::size_t times) {
    for (const Segment& segment : segments) {
      const std::size_t all = segment.repeats * times, whole = std::min(all, left / segment.size);
      for (const Slot& slot : segment.pattern()) count(slot, static_cast<std::int64_t>(whole));
      left -= whole * segment.size;
      if (whole == all) continue;
      for (std::size_t i = 0; i < left; ++i) count(segment.slots[i], 1);
      if (segment.slots[left].kind == SlotKind::forward) count(segment.slots[left], 1);
      return false;
    }
    return true;
  };
  const StageOrder order = schedule.order(stage);
  if (!section(order.prologue, 1)) return;
  std::size_t body = 0;
  for (const Segment& segment : order.body) body += std::size_t{segment.repeats} * segment.size;
  if (order.repeats > 0) {
    const std::size_t whole = std::min<std::size_t>(order.repeats, left / body);
    section(order.body, whole);
    if (whole < order.repeats && !section(order.body, 1)) return;
  }
  section(order.epilogue, 1);
}

}  // namespace orrery
