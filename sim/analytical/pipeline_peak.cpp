#include <algorithm>
#include <limits>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

namespace {

class StagePeakSearch {
 public:
  // `first`: the stage's first index in `bytes`.
  StagePeakSearch(const Schedule& schedule, std::span<const ChunkBytes> bytes, std::size_t first,
                  const PeakOptions& options, StagePeak& peak)
      : split_(schedule.split_backward), bytes_(&bytes[first]), first_(first), options_(options), peak_(peak) {}

  void run(const StageOrder& order) {
    section(order.prologue);
    if (order.repeats > 0) {
      // The bytes at the start of a repeat change by the same amount each time, so they are linear in the repeat: the
      // peak is in the first or the last one.
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
      double change = 0, fullest = -std::numeric_limits<double>::infinity();  // relative to its start
      std::uint32_t where = 0;
      std::int64_t beside = -1;
      for (std::uint32_t i = 0; i < segment.size; ++i) {
        const Slot& slot = segment.slots[i];
        const ChunkBytes& b = bytes_[slot.chunk];
        const bool forward = slot.kind == SlotKind::forward;
        if (forward) change += b.saved;
        if (!begins_pair(segment, i)) {
          const bool pair = i > 0 && begins_pair(segment, i - 1);
          const std::int64_t other = pair ? segment.slots[i - 1].chunk : -1;
          const double transient = pair ? options_.pair(first_ + segment.slots[i - 1].chunk, first_ + slot.chunk)
                                        : b.transient[static_cast<std::size_t>(slot.kind)];
          if (change + transient > fullest) fullest = change + transient, where = i, beside = other;
        }
        if (!forward) change += left_behind(slot.kind, b);
      }
      // The same argument one level down: the peak is in the last repeat if each leaves more behind, else in the first.
      const std::uint32_t before = change > 0 ? segment.repeats - 1 : 0;
      const double bytes = held_ + before * change + fullest;
      if (bytes > peak_.bytes)
        peak_ = {.bytes = bytes,
                 .slot = segment.slots[where].kind,
                 .chunk = segment.slots[where].chunk,
                 .at = at_ + std::size_t{before} * segment.size + where,
                 .beside = beside};
      held_ += segment.repeats * change;
      at_ += std::size_t{segment.repeats} * segment.size;
    }
  }

  bool begins_pair(const Segment& segment, std::uint32_t i) const {
    return options_.pair && i + 1 < segment.size && StageOrder::is_pair(segment.slots[i], segment.slots[i + 1]);
  }

  // Change in bytes after a backward or a weight gradient.
  double left_behind(SlotKind kind, const ChunkBytes& b) const {
    if (!split_) return -b.saved;
    return kind == SlotKind::backward ? b.kept - b.saved : -b.kept;
  }

  bool split_;
  const ChunkBytes* bytes_;
  std::size_t first_;
  const PeakOptions& options_;
  StagePeak& peak_;
  double held_ = 0;
  std::size_t at_ = 0;  // number of slots before
};

// Follows, slot by slot, the bytes of PeakOptions::gradients that a stage holds.
class HeldGradients {
 public:
  // `of_chunks`: bytes by chunk; empty if there are none.
  HeldGradients(const StageOrder& order, std::span<const double> of_chunks) : of_chunks_(of_chunks) {
    if (of_chunks_.empty()) return;
    left_.resize(of_chunks_.size());
    order.for_each([&](const Slot& slot) { left_[slot.chunk] += slot.kind == SlotKind::forward ? 0 : 1; });
    met_.resize(of_chunks_.size());
  }
  void begin(const Slot& slot) {
    if (left_.empty() || slot.kind == SlotKind::forward || met_[slot.chunk]) return;
    met_[slot.chunk] = true;
    bytes_ += of_chunks_[slot.chunk];
  }
  void end(const Slot& slot) {
    if (left_.empty() || slot.kind == SlotKind::forward) return;
    if (--left_[slot.chunk] == 0) bytes_ -= of_chunks_[slot.chunk];
  }
  double bytes() const { return bytes_; }

 private:
  std::span<const double> of_chunks_;
  std::vector<std::int64_t> left_;  // by chunk: slots still to come
  std::vector<bool> met_;
  double bytes_ = 0;
};

// Goes through every slot. `micro_batch_class` may be empty.
void peak_bytes_plain(const Schedule& schedule, std::span<const std::int32_t> stage_class,
                      std::span<const ChunkBytes> bytes, std::span<const std::uint8_t> micro_batch_class,
                      std::size_t micro_batch_classes, std::vector<StagePeak>& out, const PeakOptions& options) {
  const std::size_t chunks = static_cast<std::size_t>(schedule.chunks);
  out.assign(schedule.stages.size(), {});
  for (std::size_t s = 0; s < out.size(); ++s) {
    const std::size_t first = static_cast<std::size_t>(stage_class[s]) * micro_batch_classes * chunks;
    const StageOrder order = schedule.order(s);
    HeldGradients gradients(order, options.gradients.empty() ? options.gradients
                                                             : options.gradients.subspan(first, chunks));
    double held = 0;
    std::size_t at = 0;
    const auto class_of = [&](const Slot& slot) -> std::uint8_t {
      return micro_batch_class.empty() ? 0 : micro_batch_class[slot.micro_batch];
    };
    const auto row = [&](const Slot& slot) { return first + class_of(slot) * chunks + slot.chunk; };
    const auto begin = [&](const Slot& slot) {
      if (slot.kind == SlotKind::forward) held += bytes[row(slot)].saved;
      gradients.begin(slot);
    };
    const auto consider = [&](const Slot& slot, double transient, std::int64_t beside) {
      const double fullest = held + gradients.bytes() + transient;
      if (fullest <= out[s].bytes) return;
      out[s] = {.bytes = fullest, .slot = slot.kind, .chunk = slot.chunk, .micro_batch_class = class_of(slot), .at = at,
                .beside = beside, .gradient_bytes = gradients.bytes()};
    };
    const auto end = [&](const Slot& slot) {
      const ChunkBytes& b = bytes[row(slot)];
      if (slot.kind == SlotKind::backward) held += schedule.split_backward ? b.kept - b.saved : -b.saved;
      if (slot.kind == SlotKind::weight_gradient) held -= b.kept;
      gradients.end(slot);
      ++at;
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

}  // namespace

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::vector<StagePeak>& out, const PeakOptions& options) {
  if (!options.gradients.empty()) return peak_bytes_plain(schedule, stage_class, bytes, {}, 1, out, options);
  const std::size_t p = schedule.stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  out.assign(p, {});
  for (std::size_t s = 0; s < p; ++s)
    StagePeakSearch(schedule, bytes, static_cast<std::size_t>(stage_class[s]) * chunks, options, out[s])
        .run(schedule.order(s));
}

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::span<const std::uint8_t> micro_batch_class, std::size_t micro_batch_classes,
                std::vector<StagePeak>& out, const PeakOptions& options) {
  peak_bytes_plain(schedule, stage_class, bytes, micro_batch_class, micro_batch_classes, out, options);
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

}  // namespace orrery
