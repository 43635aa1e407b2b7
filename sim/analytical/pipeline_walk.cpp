#include "sim/analytical/pipeline_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "sim/analytical/pipeline_rows.h"

namespace orrery {

namespace {

constexpr double kNotYet = -1;

// A place in a stage's order that moves on slot by slot.
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(const StageOrder& order) : order_(order) { enter(order_.prologue, 0); }

  bool done() const { return segment_ == end_; }
  Slot slot() const {
    Slot slot = segment_->slots[index_];
    slot.micro_batch += repeat_ + shift_;
    return slot;
  }
  void next() {
    ++count_;
    if (++index_ < segment_->size) return;
    index_ = 0;
    if (++repeat_ < segment_->repeats) return;
    repeat_ = 0;
    ++segment_;
    settle();
  }
  std::size_t count() const { return count_; }

 private:
  void enter(std::span<const Segment> segments, std::uint32_t shift) {
    segment_ = segments.data();
    end_ = segment_ + segments.size();
    shift_ = shift;
    settle();
  }
  // Skips empty segments, then goes on to the next section.
  void settle() {
    while (segment_ != end_ && (segment_->size == 0 || segment_->repeats == 0)) ++segment_;
    if (segment_ != end_ || in_epilogue_) return;
    if (round_ < order_.repeats) {
      const std::uint32_t shift = round_++ * order_.advance;
      enter(order_.body, shift);
    } else {
      in_epilogue_ = true;
      enter(order_.epilogue, 0);
    }
  }

  StageOrder order_;
  const Segment *segment_ = nullptr, *end_ = nullptr;
  std::uint32_t index_ = 0, repeat_ = 0, shift_ = 0, round_ = 0;
  bool in_epilogue_ = false;
  std::size_t count_ = 0;
};

std::string describe(std::size_t stage, std::size_t index, const Slot& slot) {
  return fmt::format("stage {}, slot {} ({} of micro-batch {}, chunk {})", stage, index, name_of(slot.kind),
                     slot.micro_batch, slot.chunk);
}

// Who sits where, and how far apart.
struct Geometry {
  std::vector<std::int32_t> stage_at;  // [position]
  std::vector<double> hop_before;      // [position]: from position - 1; 0 on the same stage

  void build(const Schedule& schedule, std::span<const double> hop_seconds) {
    const std::size_t p = schedule.stages.size(), positions = schedule.position.size();
    stage_at.assign(positions, -1);
    hop_before.assign(positions + 1, 0.0);
    for (std::size_t i = 0; i < positions; ++i) {
      const std::int64_t q = schedule.position[i];
      if (q < 0 || q >= static_cast<std::int64_t>(positions) || stage_at[q] >= 0)
        throw std::logic_error(fmt::format("schedule: position {} of a chunk on stage {}", q, i / schedule.chunks));
      stage_at[q] = static_cast<std::int32_t>(i / schedule.chunks);
    }
    for (std::size_t q = 1; q < positions; ++q) {
      const std::int32_t from = stage_at[q - 1], to = stage_at[q], last = static_cast<std::int32_t>(p) - 1;
      if (from == to) continue;
      if (to == from + 1 || from == to + 1)
        hop_before[q] = hop_seconds[std::min(from, to)];
      else if (from == last && to == 0)
        hop_before[q] = hop_seconds[last];
      else
        throw std::logic_error(
            fmt::format("schedule: positions {} and {} lie on stages {} and {}, no neighbours", q - 1, q, from, to));
    }
  }
};

struct NoRecord {
  void slot(std::size_t, const Slot&, double, double) {}
  void transfer(std::int32_t, std::size_t, double, double) {}
};

struct Recorder {
  std::vector<std::vector<SlotRecord>> slots;
  std::vector<TransferRecord>& transfers;

  void slot(std::size_t stage, const Slot& slot, double begin, double end) {
    slots[stage].push_back({static_cast<std::int32_t>(stage), slot, begin, end});
  }
  void transfer(std::int32_t from, std::size_t to, double from_seconds, double to_seconds) {
    transfers.push_back({from, static_cast<std::int32_t>(to), from_seconds, to_seconds});
  }
};

class PlainWalk {
 public:
  template <class Record>
  void run(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out, Record& record) {
    const std::size_t p = schedule.stages.size();
    schedule_ = &schedule;
    costs_ = &costs;
    geometry_.build(schedule, costs.hop_seconds);
    micro_batches_ = static_cast<std::size_t>(schedule.micro_batches);
    for (auto& ends : end_) ends.clear();
    for (int kind = 0; kind < (schedule.split_backward ? 3 : 2); ++kind)
      end_[kind].assign(schedule.position.size() * micro_batches_, kNotYet);
    out.stages.assign(p, {});
    cursors_.clear();
    for (std::size_t s = 0; s < p; ++s) cursors_.emplace_back(schedule.order(s));
    now_.assign(p, 0.0);
    waiting_.assign(p, 0);
    ready_.clear();
    for (std::size_t s = p; s-- > 0;) ready_.push_back(static_cast<std::int32_t>(s));

    while (!ready_.empty()) {
      const std::size_t stage = ready_.back();
      ready_.pop_back();
      waiting_[stage] = 0;
      advance(stage, out.stages[stage], record);
    }
    for (std::size_t s = 0; s < p; ++s) {
      if (!cursors_[s].done())
        throw std::logic_error("the schedule deadlocks: " + describe(s, cursors_[s].count(), cursors_[s].slot()) +
                               " waits for a slot that never runs");
      out.stages[s].finish = now_[s];
    }
  }

 private:
  // What a slot needs from elsewhere, and whom it feeds; -1: none.
  struct Links {
    std::size_t position = 0;
    std::int32_t from = -1, to = -1;
    double from_hop = 0, to_hop = 0;
    const double* input = nullptr;  // end of the slot it depends on
  };

  std::size_t cell(std::size_t position, const Slot& slot) const {
    return position * micro_batches_ + slot.micro_batch;
  }

  Links links(std::size_t stage, const Slot& slot) const {
    const std::size_t positions = schedule_->position.size();
    Links l;
    l.position = static_cast<std::size_t>(schedule_->position_of(stage, slot.chunk));
    const std::size_t q = l.position;
    const bool below = q > 0, above = q + 1 < positions;
    if (slot.kind == SlotKind::forward) {
      if (below)
        l.from = geometry_.stage_at[q - 1], l.from_hop = geometry_.hop_before[q], l.input = &end_[0][cell(q - 1, slot)];
      if (above) l.to = geometry_.stage_at[q + 1], l.to_hop = geometry_.hop_before[q + 1];
    } else if (slot.kind == SlotKind::backward) {
      if (above)
        l.from = geometry_.stage_at[q + 1], l.from_hop = geometry_.hop_before[q + 1],
        l.input = &end_[1][cell(q + 1, slot)];
      if (below) l.to = geometry_.stage_at[q - 1], l.to_hop = geometry_.hop_before[q];
    }
    return l;
  }

  void check(std::size_t stage, const Slot& slot, const Cursor& cursor) const {
    const auto fail = [&](const char* why) {
      throw std::logic_error("schedule: " + describe(stage, cursor.count(), slot) + why);
    };
    if (slot.micro_batch >= micro_batches_ || slot.chunk >= schedule_->chunks) fail(" does not exist");
    if (slot.kind == SlotKind::weight_gradient && !schedule_->split_backward)
      fail(" in a schedule whose backwards are whole");
    const std::size_t at = cell(static_cast<std::size_t>(schedule_->position_of(stage, slot.chunk)), slot);
    const int kind = static_cast<int>(slot.kind);
    if (end_[kind][at] != kNotYet) fail(" runs twice");
    // What it needs of its own stage comes earlier in the order, or never.
    if (kind > 0 && end_[kind - 1][at] == kNotYet)
      fail(kind == 1 ? " comes before its forward" : " comes before its backward");
  }

  template <class Record>
  void advance(std::size_t stage, StageClock& clock, Record& record) {
    Cursor& cursor = cursors_[stage];
    const bool blocking = schedule_->blocking_transfers;
    double now = now_[stage];
    while (!cursor.done()) {
      const Slot slot = cursor.slot();
      check(stage, slot, cursor);
      const Links l = links(stage, slot);
      const bool remote = l.input != nullptr && l.from != static_cast<std::int32_t>(stage);
      double begin = now;
      if (l.input != nullptr) {
        if (*l.input == kNotYet) {
          waiting_[stage] = 1;
          break;
        }
        if (!remote) {
          begin = std::max(now, *l.input);
        } else if (blocking) {
          begin = std::max(now, *l.input) + l.from_hop;
          clock.transfer_seconds += l.from_hop;
        } else {
          begin = std::max(now, *l.input + l.from_hop);
        }
        if (remote) record.transfer(l.from, stage, *l.input, begin);
      }
      const std::size_t row = static_cast<std::size_t>(costs_->stage_class[stage]) * schedule_->chunks + slot.chunk;
      const int kind = static_cast<int>(slot.kind);
      const double seconds = seconds_of(costs_->seconds[row][kind], slot.micro_batch, schedule_->micro_batches);
      const double end = begin + seconds;
      record.slot(stage, slot, begin, end);
      if (cursor.count() == 0) clock.first_forward_begin = begin;  // nothing can precede a forward
      if (slot.kind == SlotKind::backward) clock.last_backward_end = end;
      clock.busy_seconds += seconds;
      end_[kind][cell(l.position, slot)] = end;
      now = end;
      cursor.next();
      if (l.to >= 0 && l.to != static_cast<std::int32_t>(stage)) {
        if (blocking && !receives_from(stage, cursor, l.to)) {
          now += l.to_hop;
          clock.transfer_seconds += l.to_hop;
        }
        if (waiting_[l.to]) {
          waiting_[l.to] = 0;
          ready_.push_back(l.to);
        }
      }
    }
    now_[stage] = now;
  }

  bool receives_from(std::size_t stage, const Cursor& next, std::int32_t other) const {
    if (next.done()) return false;
    const Slot slot = next.slot();
    if (slot.chunk >= schedule_->chunks) return false;
    return links(stage, slot).from == other;
  }

  const Schedule* schedule_ = nullptr;
  const PipelineCosts* costs_ = nullptr;
  Geometry geometry_;
  std::size_t micro_batches_ = 0;
  std::array<std::vector<double>, kSlotKinds> end_;  // [position * micro_batches + micro_batch]
  std::vector<Cursor> cursors_;
  std::vector<double> now_;
  std::vector<char> waiting_;
  std::vector<std::int32_t> ready_;
};

void finish(PipelineClock& out) {
  out.makespan = 0;
  for (const StageClock& stage : out.stages) out.makespan = std::max(out.makespan, stage.finish);
}

}  // namespace

struct PipelineWalker::Rep {
  PlainWalk plain;
  RowStorage rows;
};

PipelineWalker::PipelineWalker() : rep_(std::make_unique<Rep>()) {}
PipelineWalker::~PipelineWalker() = default;
PipelineWalker::PipelineWalker(PipelineWalker&&) noexcept = default;
PipelineWalker& PipelineWalker::operator=(PipelineWalker&&) noexcept = default;

void PipelineWalker::walk(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out) {
  if (!walk_rows(schedule, costs, rep_->rows, out)) {
    walk_plain(schedule, costs, out);
    return;
  }
  const int kinds = schedule.split_backward ? 3 : 2;
  for (std::size_t s = 0; s < out.stages.size(); ++s) {
    const ChunkSeconds* seconds = &costs.seconds[static_cast<std::size_t>(costs.stage_class[s]) * schedule.chunks];
    double busy = 0;
    for (std::int64_t c = 0; c < schedule.chunks; ++c)
      for (int kind = 0; kind < kinds; ++kind) busy += total_seconds(seconds[c][kind], schedule.micro_batches);
    out.stages[s].busy_seconds = busy;
  }
  finish(out);
}

void PipelineWalker::walk_plain(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out) {
  NoRecord none;
  rep_->plain.run(schedule, costs, out, none);
  finish(out);
}

void walk_timeline(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& clock, PipelineTimeline& out) {
  out.slots.clear();
  out.transfers.clear();
  Recorder recorder{std::vector<std::vector<SlotRecord>>(schedule.stages.size()), out.transfers};
  PlainWalk().run(schedule, costs, clock, recorder);
  finish(clock);
  for (const auto& slots : recorder.slots) out.slots.insert(out.slots.end(), slots.begin(), slots.end());
}

}  // namespace orrery
