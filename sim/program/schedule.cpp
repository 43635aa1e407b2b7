#include "sim/program/schedule.h"

namespace orrery {

namespace {

std::size_t slots_of(std::span<const Segment> segments) {
  std::size_t n = 0;
  for (const Segment& segment : segments) n += std::size_t{segment.size} * segment.repeats;
  return n;
}

Slot slot_in(std::span<const Segment> segments, std::size_t index, std::uint32_t shift) {
  for (const Segment& segment : segments) {
    const std::size_t n = std::size_t{segment.size} * segment.repeats;
    if (index < n) {
      Slot slot = segment.slots[index % segment.size];
      slot.micro_batch += static_cast<std::uint32_t>(index / segment.size) + shift;
      return slot;
    }
    index -= n;
  }
  return {};
}

}  // namespace

Slot StageOrder::at(std::size_t index) const {
  const std::size_t before = slots_of(prologue), once = slots_of(body);
  if (index < before) return slot_in(prologue, index, 0);
  index -= before;
  if (index < once * repeats) return slot_in(body, index % once, static_cast<std::uint32_t>(index / once) * advance);
  return slot_in(epilogue, index - once * repeats, 0);
}

void Schedule::clear() {
  micro_batches = 1;
  chunks = 1;
  split_backward = blocking_transfers = pairs = scattered_transfers = false;
  stages.clear();
  segments.clear();
  position.clear();
}

}  // namespace orrery
