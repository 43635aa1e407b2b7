// Gives a Schedule a clock: when each slot of each stage begins and ends, from the seconds of slots and of transfers
// between stages. A stage's memory follows from its order alone and has functions of its own (peak_bytes).
//
// Rules. A stage runs its slots in order, one at a time, from time 0.
// - Overlapped transfers (schedule.blocking_transfers false): a slot starts when the stage is free and its input has
//   arrived: the hop between the two stages after it was sent. It is sent when the slot that it comes from ends, and
//   when the stage's earlier messages have been sent: they share the way out of the stage, and a hop occupies it.
// - Pairs (Schedule::pairs, PipelineCosts::pair_saves) start together, when both inputs have arrived, and end together.
//   Transfers are overlapped.
// - Blocking transfers: receiving occupies the stage's stream for the hop, from when both the stage is free and the
//   input is ready, until the slot starts; sending occupies it for the hop after the slot. A send is hidden when the
//   stage's next slot receives from the stage it sends to: both directions are one exchange (Megatron-LM's
//   send_forward_recv_backward and send_backward_recv_forward).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "sim/program/schedule.h"

namespace orrery {

// Seconds of one slot of a chunk. The first and last micro-batch of a step may carry more: gathering parameters,
// reducing gradients. A step of one micro-batch carries both: first + last - usual.
struct SlotSeconds {
  double first = 0, usual = 0, last = 0;
};
using ChunkSeconds = std::array<SlotSeconds, kSlotKinds>;  // by SlotKind

// Flat inputs; spans must outlive the call.
struct PipelineCosts {
  std::span<const std::int32_t> stage_class;  // [stage]: row of `seconds`
  std::span<const ChunkSeconds> seconds;      // [class * chunks + chunk]; see micro_batch_class
  std::span<const double> hop_seconds;        // by position: to the next chunk and back; empty on one stage
  // [class * chunks + chunk], for Schedule::pairs: the time by which a forward and a backward of the chunk are shorter
  // when they run at the same time. If the two are of different chunks, each contributes half. Empty: slots do not
  // pair.
  std::span<const double> pair_saves = {};
  // If micro-batches differ: the class of each, and the number of classes. `seconds` and `pair_saves` are then [(class
  // of stages * micro_batch_classes + class of micro-batches) * chunks + chunk]. Empty: all are alike.
  std::span<const std::uint8_t> micro_batch_class = {};
  std::size_t micro_batch_classes = 1;
  // [(class * chunks + chunk) * slots_behind + i]: seconds that the stage's i-th slot after the chunk's last backward
  // takes in addition, because of work that the chunk has left on other streams. If backwards are split, it is the i-th
  // slot after the chunk's last weight gradient. From another chunk's last backward on, that chunk's row counts
  // instead. Empty: none. Must be empty with Schedule::pairs.
  std::span<const double> behind_last = {};
  std::size_t slots_behind = 0;  // entries in each row of behind_last

  std::size_t row(std::size_t stage, std::size_t of_micro_batches = 0) const {
    return static_cast<std::size_t>(stage_class[stage]) * micro_batch_classes + of_micro_batches;
  }
};

struct StageClock {
  double first_forward_begin = 0;
  double last_backward_end = 0;  // of any chunk; weight gradients may follow
  double finish = 0;             // when the stream is free: after the last slot and, if blocking, its send
  double busy_seconds = 0;       // seconds of slots
  double transfer_seconds = 0;   // seconds for which transfers occupy the stream; 0 unless blocking
};

struct PipelineClock {
  double makespan = 0;  // latest finish
  std::vector<StageClock> stages;

  double idle_seconds(std::size_t stage) const {  // the stage's bubble
    return makespan - stages[stage].busy_seconds - stages[stage].transfer_seconds;
  }
};

// Throws std::logic_error, naming stage and slot, if the schedule cannot run: a slot waits for one that comes after it
// or does not exist; a slot runs twice; or consecutive positions are on stages that are not neighbours.
//
// Exact: equal to walking every slot, up to rounding (tests: 1e-9). Cost: the orders of gpipe, 1f1b, zb-h1 and the
// interleaved schedule form rows of slots that do not depend on each other; a row is one vector operation, and rows
// that repeat are skipped, except in gpipe. 1F1B with p=64, m=512: 10 us; GPipe: 20 us. Slot by slot, at 15 ns each, go
// other orders (zb-v), blocking transfers in orders other than 1F1B, micro-batches that differ, and hops that are longer
// than a slot; orders with a body (the interleaved one) only until their rounds repeat.
// Keeps its storage between calls. Not thread-safe.
class PipelineWalker {
 public:
  PipelineWalker();
  ~PipelineWalker();
  PipelineWalker(PipelineWalker&&) noexcept;
  PipelineWalker& operator=(PipelineWalker&&) noexcept;

  void walk(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out);

  // The same, slot by slot: the reference for walk().
  void walk_plain(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out);

  // Number of slots that the last walk went through one by one, for tests.
  std::size_t slots_walked() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

struct SlotRecord {
  std::int32_t stage = 0;
  Slot slot;
  double begin_seconds = 0, end_seconds = 0;
};
// A message, from the end of the slot that produces it to the start of the slot that uses it.
struct TransferRecord {
  std::int32_t from_stage = 0, to_stage = 0;
  double from_seconds = 0, to_seconds = 0;
};
struct PipelineTimeline {
  std::vector<SlotRecord> slots;          // by stage, then in order
  std::vector<TransferRecord> transfers;  // in the order of the receiving slots
};
void walk_timeline(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& clock, PipelineTimeline& out);

// Bytes that a micro-batch holds on a stage. During a slot the stage holds everything in flight, its own micro-batch
// included, and in addition the slot's transient bytes.
struct ChunkBytes {
  double saved = 0;  // from the start of its forward to the end of its backward
  double kept = 0;   // from then to the end of its weight_gradient, if that is a slot of its own
  std::array<double, kSlotKinds> transient{};  // by SlotKind
};

struct StagePeak {
  double bytes = 0;
  SlotKind slot = SlotKind::forward;  // the slot at the peak, its chunk, its class of micro-batches
  std::uint16_t chunk = 0;
  std::uint8_t micro_batch_class = 0;
  std::size_t at = 0;  // number of that slot in the stage's order, from 0
  // If that slot is the backward of a pair: [class of micro-batches * chunks + chunk] of the forward that runs with it.
  // -1: it is not in a pair.
  std::int64_t beside = -1;
  double gradient_bytes = 0;  // the part of `bytes` from PeakOptions::gradients
};

struct PeakOptions {
  // For Schedule::pairs: the most bytes that a forward and the backward of its pair hold beyond what both micro-batches
  // save. Arguments: their indices into `bytes`. Null: the backward of a pair begins when its forward has ended.
  std::function<double(std::size_t forward, std::size_t backward)> pair;
  // Bytes held from a chunk's first backward to its last one (to its last weight gradient if backwards are split), in
  // the order of `bytes`. If micro-batches differ, only the rows of the first class count. Unless it is empty, the cost
  // is linear in slots.
  std::span<const double> gradients = {};
  // If micro-batches differ: the class of each, and the number of classes, as PipelineCosts has them. Unless it is
  // empty, the cost is linear in slots.
  std::span<const std::uint8_t> micro_batch_class = {};
  std::size_t micro_batch_classes = 1;
};

// The fullest instant of each stage. `bytes`: [(class * micro_batch_classes + class of micro-batches) * chunks +
// chunk]. It does not depend on durations, because the bytes of a stage change with its own slots only. Cost: linear in
// segments, not in micro-batches.
void peak_bytes(const Schedule& schedule, std::span<const std::int32_t> stage_class, std::span<const ChunkBytes> bytes,
                std::vector<StagePeak>& out, const PeakOptions& options = {});

// Counts of a chunk's micro-batches.
struct HeldMicroBatches {
  std::int64_t in_flight = 0;                 // between the start of the forward and the end of the backward
  std::int64_t awaiting_weight_gradient = 0;  // waiting for, or in, their weight_gradient
};
// While slot `at` of the stage runs. Adds to `held`: [class of micro-batches * chunks + chunk]. `micro_batch_class`:
// empty if all are alike. Cost: by segments if they are, else by slots.
void count_held(const Schedule& schedule, std::size_t stage, std::size_t at,
                std::span<const std::uint8_t> micro_batch_class, std::span<HeldMicroBatches> held);

}  // namespace orrery
