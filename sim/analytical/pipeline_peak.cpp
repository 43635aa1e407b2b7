#include <algorithm>

#include "sim/analytical/pipeline_walk.h"

namespace orrery {

namespace {

class StagePeakSearch {
 public:
  StagePeakSearch(const Schedule& schedule, const ChunkBytes* bytes, StagePeak& peak, std::int64_t* peak_in_flight,
                  std::int64_t* peak_awaiting, std::vector<std::int64_t>& counts)
      : chunks_(static_cast<std::size_t>(schedule.chunks)),
        split_(schedule.split_backward),
        bytes_(bytes),
        peak_(peak),
        peak_counts_{peak_in_flight, peak_awaiting},
        in_flight_(counts.data()),
        awaiting_(counts.data() + chunks_),
        before_(counts.data() + 2 * chunks_) {}

  void run(const StageOrder& order) {
    section(order.prologue);
    if (order.repeats > 0) {
      // What is held at the start of a repeat changes by the same counts each time, so bytes are linear in the repeat:
      // the peak is in the first or the last.
      std::copy_n(in_flight_, 2 * chunks_, before_);
      const double held_before = held_;
      section(order.body);
      if (order.repeats > 1) {
        const std::int64_t more = static_cast<std::int64_t>(order.repeats) - 2;
        for (std::size_t i = 0; i < 2 * chunks_; ++i) in_flight_[i] += (in_flight_[i] - before_[i]) * more;
        held_ += (held_ - held_before) * static_cast<double>(more);
        section(order.body);
      }
    }
    section(order.epilogue);
  }

 private:
  void section(std::span<const Segment> segments) {
    for (const Segment& segment : segments) {
      if (segment.repeats == 0) continue;
      // The same argument, one level down: in the last repeat if each leaves more behind, else in the first.
      const double held_before = held_;
      pass(segment);
      if (segment.repeats == 1) continue;
      const bool grows = held_ > held_before;
      const std::int64_t skipped = static_cast<std::int64_t>(segment.repeats) - (grows ? 2 : 1);
      for (const Slot& slot : segment.pattern()) skip(slot, skipped);
      if (grows) pass(segment);
    }
  }

  // What the slot changes once it is done (a forward: once it starts), `times` over.
  void skip(const Slot& slot, std::int64_t times) {
    const ChunkBytes& b = bytes_[slot.chunk];
    if (slot.kind == SlotKind::forward) {
      in_flight_[slot.chunk] += times;
      held_ += static_cast<double>(times) * b.saved;
    } else if (!split_) {
      in_flight_[slot.chunk] -= times;
      held_ -= static_cast<double>(times) * b.saved;
    } else if (slot.kind == SlotKind::backward) {
      in_flight_[slot.chunk] -= times;
      awaiting_[slot.chunk] += times;
      held_ += static_cast<double>(times) * (b.kept - b.saved);
    } else {
      awaiting_[slot.chunk] -= times;
      held_ -= static_cast<double>(times) * b.kept;
    }
  }

  void pass(const Segment& segment) {
    for (const Slot& slot : segment.pattern()) {
      if (slot.kind == SlotKind::forward) skip(slot, 1);
      const double bytes = held_ + bytes_[slot.chunk].transient[static_cast<std::size_t>(slot.kind)];
      if (bytes > peak_.bytes) {
        peak_ = {.bytes = bytes, .slot = slot.kind, .chunk = slot.chunk};
        for (std::size_t c = 0; c < chunks_; ++c) peak_counts_[0][c] = in_flight_[c], peak_counts_[1][c] = awaiting_[c];
      }
      if (slot.kind != SlotKind::forward) skip(slot, 1);
    }
  }

  std::size_t chunks_;
  bool split_;
  const ChunkBytes* bytes_;
  StagePeak& peak_;
  std::int64_t* peak_counts_[2];
  std::int64_t *in_flight_, *awaiting_, *before_;  // awaiting_ lies behind in_flight_
  double held_ = 0;
};

}  // namespace

void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                PipelinePeaks& out) {
  const std::size_t p = schedule.stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  out.stages.assign(p, {});
  out.in_flight.assign(p * chunks, 0);
  out.awaiting_weight_gradient.assign(p * chunks, 0);
  for (std::size_t s = 0; s < p; ++s) {
    out.scratch.assign(4 * chunks, 0);
    StagePeakSearch(schedule, &bytes[static_cast<std::size_t>(stage_class[s]) * chunks], out.stages[s],
                    &out.in_flight[s * chunks], &out.awaiting_weight_gradient[s * chunks], out.scratch)
        .run(schedule.order(s));
  }
}

}  // namespace orrery
