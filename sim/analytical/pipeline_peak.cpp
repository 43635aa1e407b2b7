#include <algorithm>
#include <limits>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

namespace {

// Change in bytes after a backward or a weight gradient.
double change_after(const Schedule& schedule, SlotKind kind, const ChunkBytes& b) {
  if (!schedule.split_backward) return -b.saved;
  return kind == SlotKind::backward ? b.kept - b.saved : -b.kept;
}

// The fullest instant of the stage whose first index in `bytes` is `first`.
StagePeak peak_of(const Schedule& schedule, const StageOrder& order, std::span<const ChunkBytes> bytes,
                  std::size_t first, const PeakOptions& options) {
  StagePeak peak;
  double held = 0;
  std::size_t at = 0;  // number of slots before
  const auto begins_pair = [&](const Segment& segment, std::uint32_t i) {
    return options.pair && i + 1 < segment.size && StageOrder::is_pair(segment.slots[i], segment.slots[i + 1]);
  };
  const auto section = [&](std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      if (segment.repeats == 0) continue;
      double change = 0, fullest = -std::numeric_limits<double>::infinity();  // relative to its start
      std::uint32_t where = 0;
      std::int64_t beside = -1;
      for (std::uint32_t i = 0; i < segment.size; ++i) {
        const Slot& slot = segment.slots[i];
        const ChunkBytes& b = bytes[first + slot.chunk];
        const bool forward = slot.kind == SlotKind::forward;
        if (forward) change += b.saved;
        if (!begins_pair(segment, i)) {
          const bool pair = i > 0 && begins_pair(segment, i - 1);
          const std::int64_t other = pair ? segment.slots[i - 1].chunk : -1;
          const double transient = pair ? options.pair(first + segment.slots[i - 1].chunk, first + slot.chunk)
                                        : b.transient[static_cast<std::size_t>(slot.kind)];
          if (change + transient > fullest) fullest = change + transient, where = i, beside = other;
        }
        if (!forward) change += change_after(schedule, slot.kind, b);
      }
      // The bytes at the start of a repeat change by the same amount each time: the peak is in the last repeat if each
      // leaves more behind, else in the first.
      const std::uint32_t before = change > 0 ? segment.repeats - 1 : 0;
      const double most = held + before * change + fullest;
      if (most > peak.bytes)
        peak = {.bytes = most,
                .slot = segment.slots[where].kind,
                .chunk = segment.slots[where].chunk,
                .at = at + std::size_t{before} * segment.size + where,
                .beside = beside};
      held += segment.repeats * change;
      at += std::size_t{segment.repeats} * segment.size;
    }
  };
  section(order.prologue);
  if (order.repeats > 0) {  // the same argument one level up
    const double held_before = held;
    const std::size_t at_before = at;
    section(order.body);
    if (order.repeats > 1) {
      held += (held - held_before) * (order.repeats - 2.0);
      at += (at - at_before) * (order.repeats - 2);
      section(order.body);
    }
  }
  section(order.epilogue);
  return peak;
}

// Goes through every slot.
void peak_bytes_plain(const Schedule& schedule, std::span<const std::int32_t> stage_class,
                      std::span<const ChunkBytes> bytes, std::vector<StagePeak>& out, const PeakOptions& options) {
  const std::size_t chunks = static_cast<std::size_t>(schedule.chunks);
  for (std::size_t s = 0; s < out.size(); ++s) {
    const std::size_t first = static_cast<std::size_t>(stage_class[s]) * options.micro_batch_classes * chunks;
    const StageOrder order = schedule.order(s);
    double held = 0, gradients = 0;               // bytes of PeakOptions::gradients
    std::vector<std::int64_t> all(chunks), left;  // by chunk: slots that add to gradients; those still to come
    order.for_each([&](const Slot& slot) { all[slot.chunk] += slot.kind == SlotKind::forward ? 0 : 1; });
    left = all;
    std::size_t at = 0;
    const auto gradients_of = [&](const Slot& slot) {
      return options.gradients.empty() ? 0 : options.gradients[first + slot.chunk];
    };
    const auto class_of = [&](const Slot& slot) -> std::uint8_t {
      return options.micro_batch_class.empty() ? 0 : options.micro_batch_class[slot.micro_batch];
    };
    const auto row = [&](const Slot& slot) { return first + class_of(slot) * chunks + slot.chunk; };
    const auto begin = [&](const Slot& slot) {
      if (slot.kind == SlotKind::forward) {
        held += bytes[row(slot)].saved;
      } else if (left[slot.chunk] == all[slot.chunk]) {
        gradients += gradients_of(slot);
      }
    };
    const auto consider = [&](const Slot& slot, double transient, std::int64_t beside) {
      const double fullest = held + gradients + transient;
      if (fullest <= out[s].bytes) return;
      out[s] = {.bytes = fullest,
                .slot = slot.kind,
                .chunk = slot.chunk,
                .micro_batch_class = class_of(slot),
                .at = at,
                .beside = beside,
                .gradient_bytes = gradients};
    };
    const auto end = [&](const Slot& slot) {
      ++at;
      if (slot.kind == SlotKind::forward) return;
      held += change_after(schedule, slot.kind, bytes[row(slot)]);
      if (--left[slot.chunk] == 0) gradients -= gradients_of(slot);
    };
    order.for_each_turn(
        static_cast<bool>(options.pair),
        [&](const Slot& slot) {
          begin(slot);
          consider(slot, bytes[row(slot)].transient[static_cast<std::size_t>(slot.kind)], -1);
          end(slot);
        },
        [&](const Slot& forward, const Slot& backward) {
          begin(forward);
          begin(backward);
          ++at;
          consider(backward, options.pair(row(forward), row(backward)),
                   static_cast<std::int64_t>(row(forward) - first));
          --at;
          end(forward);
          end(backward);
        });
  }
}

// For micro-batches that are all alike: whole segments are counted at once.
void count_held_alike(const Schedule& schedule, std::size_t stage, std::size_t at, std::span<HeldMicroBatches> held) {
  std::size_t left = at;  // number of slots before it
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
  // Runs the segments `times` times, or until `left` slots have passed.
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

}  // namespace

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::vector<StagePeak>& out, const PeakOptions& options) {
  out.assign(schedule.stages.size(), {});
  if (!options.gradients.empty() || !options.micro_batch_class.empty())
    return peak_bytes_plain(schedule, stage_class, bytes, out, options);
  const auto chunks = static_cast<std::size_t>(schedule.chunks);
  for (std::size_t s = 0; s < out.size(); ++s)
    out[s] = peak_of(schedule, schedule.order(s), bytes, static_cast<std::size_t>(stage_class[s]) * chunks, options);
}

void count_held(const Schedule& schedule, std::size_t stage, std::size_t at,
                std::span<const std::uint8_t> micro_batch_class, std::span<HeldMicroBatches> held) {
  if (micro_batch_class.empty()) return count_held_alike(schedule, stage, at, held);
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

}  // namespace orrery
