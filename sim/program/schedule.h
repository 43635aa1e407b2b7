// Which block runs for which micro-batch, in which order, on each pipeline stage. Run-length coded: the size of a
// schedule and the cost to build it do not grow with the number of micro-batches.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace orrery {

enum class SlotKind : std::uint8_t { forward, backward, weight_gradient };
inline constexpr int kSlotKinds = 3;
const char* name_of(SlotKind kind);

struct Slot {
  SlotKind kind = SlotKind::forward;
  std::uint16_t chunk = 0;  // which of the stage's model chunks (virtual pipeline)
  std::uint32_t micro_batch = 0;
  bool operator==(const Slot&) const = default;
};

// A pattern of `size` slots, run `repeats` times; each repeat advances every micro-batch by one.
struct Segment {
  static constexpr std::size_t kMaxSlots = 6;
  std::array<Slot, kMaxSlots> slots{};
  std::uint32_t size = 0;
  std::uint32_t repeats = 0;

  std::span<const Slot> pattern() const { return {slots.data(), size}; }
};

// The order of one stage, a view into its Schedule: `prologue`, then `body` `repeats` times, then `epilogue`. In the
// r-th repeat of the body (r = 0, 1, ...) every micro-batch number is advanced by r * advance.
struct StageOrder {
  std::span<const Segment> prologue, body, epilogue;
  std::uint32_t repeats = 0;
  std::uint32_t advance = 0;

  // REQUIRES: the order has more than `index` slots. Linear in segments: to iterate, use for_each.
  Slot at(std::size_t index) const;

  // visit(Slot), in order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for_each_turn(false, visit, [](const Slot&, const Slot&) {});
  }

  // Calls visit(slot) for each slot in order. Where `pairs`, it calls visit_pair(forward, backward) for the two slots
  // of a pair instead.
  template <class Visit, class VisitPair>
  void for_each_turn(bool pairs, Visit&& visit, VisitPair&& visit_pair) const {
    const auto run = [&](std::span<const Segment> segments, std::uint32_t shift) {
      for (const Segment& segment : segments)
        for (std::uint32_t r = 0; r < segment.repeats; ++r)
          for (std::uint32_t i = 0; i < segment.size; ++i) {
            Slot slot = segment.slots[i];
            slot.micro_batch += r + shift;
            if (!pairs || i + 1 == segment.size || !is_pair(slot, segment.slots[i + 1])) {
              visit(slot);
              continue;
            }
            Slot backward = segment.slots[++i];
            backward.micro_batch += r + shift;
            visit_pair(slot, backward);
          }
    };
    run(prologue, 0);
    for (std::uint32_t r = 0; r < repeats; ++r) run(body, r * advance);
    run(epilogue, 0);
  }
  static bool is_pair(const Slot& first, const Slot& second) {
    return first.kind == SlotKind::forward && second.kind == SlotKind::backward;
  }
};

// Dependencies are implied by the chunks' positions in the model, 0 .. stages*chunks-1: forward at position q needs the
// forward at q-1 of the same micro-batch; backward at q needs the forward at q and the backward at q+1;
// weight_gradient needs its backward.
struct Schedule {
  std::int64_t micro_batches = 1;
  std::int64_t chunks = 1;          // per stage
  bool split_backward = false;      // weight gradients are slots of their own
  bool blocking_transfers = false;  // the stage's compute stream waits for its own sends and receives (Megatron's
                                    // non-interleaved 1F1B); otherwise only the receiver's data dependency waits
  bool pairs = false;  // a forward and the backward that follows it in a segment's pattern run at the same time
                       // (sim/program/pair.h)
  // Tensors that tensor-parallel ranks hold alike cross stages in parts, one part per rank, and are gathered behind the
  // border (Narayanan et al. 2021, section 4.1).
  bool scattered_transfers = false;

  // The place of a stage's order in `segments`.
  struct StageSegments {
    std::uint32_t begin = 0, body = 0, epilogue = 0, end = 0;
    std::uint32_t repeats = 0, advance = 0;
  };
  std::vector<StageSegments> stages;
  std::vector<Segment> segments;
  std::vector<std::int64_t> position;  // [stage * chunks + chunk]

  StageOrder order(std::size_t stage) const {
    const StageSegments& at = stages[stage];
    const Segment* first = segments.data();
    return {.prologue = {first + at.begin, first + at.body},
            .body = {first + at.body, first + at.epilogue},
            .epilogue = {first + at.epilogue, first + at.end},
            .repeats = at.repeats,
            .advance = at.advance};
  }
  std::int64_t position_of(std::size_t stage, std::size_t chunk) const { return position[stage * chunks + chunk]; }

  // Empties the schedule but keeps its storage.
  void clear();
};

}  // namespace orrery
