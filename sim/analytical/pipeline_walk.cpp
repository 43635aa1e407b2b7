#include "sim/analytical/pipeline_walk.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>

#include "sim/analytical/pipeline_rows.h"

namespace orrery {

namespace {

constexpr double kNotYet = -1;

// A position in a stage's order that advances slot by slot.
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
  // Repeats of the body that have begun; one more in the epilogue.
  std::uint32_t rounds_begun() const { return in_epilogue_ ? round_ + 1 : round_; }
  // Skips repeats of the body that have not begun.
  void skip_rounds(std::uint32_t rounds) {
    order_.repeats -= rounds;
    epilogue_shift_ -= rounds * order_.advance;
  }
  // Whether the next slot belongs to the same pattern.
  bool goes_on() const { return index_ + 1 < segment_->size; }

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
      enter(order_.epilogue, epilogue_shift_);
    }
  }

  StageOrder order_;
  const Segment *segment_ = nullptr, *end_ = nullptr;
  std::uint32_t index_ = 0, repeat_ = 0, shift_ = 0, round_ = 0;
  std::uint32_t epilogue_shift_ = 0;  // counts downwards
  bool in_epilogue_ = false;
  std::size_t count_ = 0;
};

std::string describe(std::size_t stage, std::size_t index, const Slot& slot) {
  return fmt::format("stage {}, slot {} ({} of micro-batch {}, chunk {})", stage, index, name_of(slot.kind),
                     slot.micro_batch, slot.chunk);
}

// The stages of the positions, and the hops between them.
struct Geometry {
  std::vector<std::int32_t> stage_at;  // by position
  std::vector<double> hop_before;      // by position: from position - 1; 0 on the same stage

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
      hop_before[q] = hop_seconds[q - 1];
      if (to != from + 1 && from != to + 1 && !(from == last && to == 0))
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

// Returns true if a stage can finish a slot while its previous message is still being sent. With blocking transfers it
// cannot: it waits for its sends.
bool may_queue(const Schedule& schedule, const PipelineCosts& costs) {
  if (schedule.blocking_transfers || costs.hop_seconds.empty()) return false;
  double shortest = std::numeric_limits<double>::infinity();
  for (const ChunkSeconds& chunk : costs.seconds)
    for (const SlotKind kind : {SlotKind::forward, SlotKind::backward}) {
      const SlotSeconds& slot = chunk[static_cast<std::size_t>(kind)];
      shortest = std::min({shortest, slot.first, slot.usual, slot.last});
    }
  return std::ranges::max(costs.hop_seconds) > shortest;
}

class PlainWalk {
 public:
  // `skips`: skips repeats of the orders' bodies that would take as long as those before.
  template <class Record>
  void run(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out, Record& record,
           bool skips = false) {
    const std::size_t p = schedule.stages.size();
    micro_batches_ = static_cast<std::size_t>(schedule.micro_batches);
    chunks_ = static_cast<std::size_t>(schedule.chunks);
    split_ = schedule.split_backward;
    blocking_ = schedule.blocking_transfers;
    costs_ = costs;
    link_free_.assign(may_queue(schedule, costs) ? p : 0, 0.0);
    build_sites(schedule);
    behind_.assign(costs.behind_last.empty() ? 0 : p, {});
    out.stages.assign(p, {});
    cursors_.clear();
    for (std::size_t s = 0; s < p; ++s) cursors_.emplace_back(schedule.order(s));
    now_.assign(p, 0.0);
    waiting_.assign(p, 0);
    ready_.clear();
    const Skipped skipped = skips && link_free_.empty() ? skip_rounds(schedule, out, record) : Skipped{};
    last_round_ = std::numeric_limits<std::uint32_t>::max();
    advance_all(out, record);
    for (std::size_t s = 0; s < p; ++s) {
      if (!cursors_[s].done())
        throw std::logic_error("the schedule deadlocks: " + describe(s, cursors_[s].count(), cursors_[s].slot()) +
                               " waits for a slot that never runs");
      StageClock& clock = out.stages[s];
      clock.finish = now_[s] + skipped.seconds;
      clock.last_backward_end += skipped.seconds;
      if (skipped.times == 0) continue;
      clock.busy_seconds += skipped.times * skipped.of_stages[s].busy_seconds;
      clock.transfer_seconds += skipped.times * skipped.of_stages[s].transfer_seconds;
    }
  }

  std::size_t slots_walked() const {
    std::size_t slots = 0;
    for (const Cursor& cursor : cursors_) slots += cursor.count();
    return slots;
  }

 private:
  template <class Record>
  void advance_all(PipelineClock& out, Record& record) {
    for (std::size_t s = cursors_.size(); s-- > 0;) ready_.push_back(static_cast<std::int32_t>(s));
    while (!ready_.empty()) {
      const std::size_t stage = static_cast<std::size_t>(ready_.back());
      ready_.pop_back();
      waiting_[stage] = 0;
      if (costs_.pair_saves.empty())
        advance<false>(stage, out.stages[stage], record);
      else
        advance<true>(stage, out.stages[stage], record);
    }
  }

  struct Skipped {
    double seconds = 0, times = 0;
    std::vector<StageClock> of_stages;  // the busy and transfer seconds that are to be added `times` times
  };
  // Walks round by round until the state of all stages equals an earlier one up to a constant (PeriodFinder), and
  // removes as many rounds from the orders as must continue in this way. The state consists of the times at which
  // stages are free, and of the ends of the slots in flight.
  template <class Record>
  Skipped skip_rounds(const Schedule& schedule, PipelineClock& out, Record& record) {
    const std::size_t p = cursors_.size();
    std::uint32_t rounds = schedule.stages.front().repeats;
    const std::uint32_t advance_by = schedule.stages.front().advance;
    for (const Schedule::StageSegments& stage : schedule.stages) {
      rounds = std::min(rounds, stage.repeats);
      if (stage.advance != advance_by) return {};
    }
    constexpr std::uint32_t kInFlight = 6;  // most rounds in the state; fewer are left before the end
    if (rounds < 2 * kInFlight) return {};
    std::optional<PeriodFinder> finder;
    std::vector<std::vector<StageClock>> after;  // by round since the finder began
    std::vector<double> in_flight;
    std::vector<char> known, known_before;
    const std::size_t sites = ends_.size() / micro_batches_;
    for (last_round_ = 0; last_round_ + 1 < rounds; ++last_round_) {
      advance_all(out, record);
      if (last_round_ < kInFlight / 2) continue;
      const std::size_t begin = (last_round_ - kInFlight / 2) * advance_by, end = begin + kInFlight * advance_by;
      if (end > micro_batches_) return {};
      in_flight.clear();
      known.clear();
      for (std::size_t site = 0; site < sites; ++site) {
        const double* ends = ends_.data() + site * micro_batches_;
        for (std::size_t i = begin; i < end; ++i) {
          known.push_back(ends[i] != kNotYet);
          if (ends[i] != kNotYet) in_flight.push_back(ends[i]);
        }
      }
      std::size_t done = 0;
      for (const Cursor& cursor : cursors_) done += cursor.count();
      if (done != sites * begin + in_flight.size()) return {};  // more slots are in flight
      if (!finder || known != known_before) {
        finder.emplace(snapshot_, far_snapshot_, static_cast<std::int64_t>(p));
        after.clear();
        known_before = known;
      }
      after.push_back(out.stages);
      if (!finder->look(now_.data(), static_cast<std::int64_t>(p), in_flight.data(),
                        static_cast<std::int64_t>(in_flight.size())))
        continue;
      const auto looks = static_cast<std::uint32_t>(finder->looks());
      const std::uint32_t times = (rounds - 1 - last_round_) / looks;
      for (Cursor& cursor : cursors_) cursor.skip_rounds(times * looks);
      micro_batches_ -= std::size_t{times} * looks * advance_by;
      Skipped skipped{times * finder->lambda(), static_cast<double>(times), out.stages};
      const std::vector<StageClock>& before = after[after.size() - 1 - looks];
      for (std::size_t s = 0; s < p; ++s) {
        skipped.of_stages[s].busy_seconds -= before[s].busy_seconds;
        skipped.of_stages[s].transfer_seconds -= before[s].transfer_seconds;
      }
      return skipped;
    }
    return {};
  }

  // One kind of slot of one chunk: the slots that it depends on, and the stages that it receives from and sends to; -1:
  // none.
  struct Site {
    double* end = nullptr;           // [micro-batch]: end of the slot, or kNotYet
    const double* before = nullptr;  // ends of the kind that comes before it on its stage; null for forwards
    const double* input = nullptr;   // ends of the slot that it depends on
    double from_hop = 0, to_hop = 0;
    std::int32_t from = -1, to = -1;  // other stages only
  };

  void build_sites(const Schedule& schedule) {
    const std::size_t p = schedule.stages.size(), positions = schedule.position.size(), m = micro_batches_;
    Geometry geometry;
    geometry.build(schedule, costs_.hop_seconds);
    const std::size_t kinds = split_ ? 3 : 2;
    ends_.assign(kinds * positions * m, kNotYet);
    const auto ends = [&](std::size_t kind, std::size_t q) { return ends_.data() + (kind * positions + q) * m; };
    sites_.assign(p * chunks_ * kSlotKinds, {});
    for (std::size_t s = 0; s < p; ++s)
      for (std::size_t c = 0; c < chunks_; ++c) {
        const std::size_t q = static_cast<std::size_t>(schedule.position_of(s, c));
        for (std::size_t kind = 0; kind < kinds; ++kind) {
          Site& site = sites_[(s * chunks_ + c) * kSlotKinds + kind];
          site.end = ends(kind, q);
          if (kind > 0) site.before = ends(kind - 1, q);
          // A forward comes from the position below and goes to the one above; a backward does the reverse.
          if (kind == 2) continue;
          const auto link = [&](bool exists, std::size_t other, std::size_t boundary, std::int32_t& stage,
                                double& hop) {
            if (!exists || geometry.stage_at[other] == static_cast<std::int32_t>(s)) return;
            stage = geometry.stage_at[other];
            hop = geometry.hop_before[boundary];
          };
          const bool up = kind == 0, below = q > 0, above = q + 1 < positions;
          if (up ? below : above) site.input = ends(kind, up ? q - 1 : q + 1);
          link(below, q - 1, q, up ? site.from : site.to, up ? site.from_hop : site.to_hop);
          link(above, q + 1, q + 1, up ? site.to : site.from, up ? site.to_hop : site.from_hop);
        }
      }
  }

  const Site& site(std::size_t stage, const Slot& slot) const {
    return sites_[(stage * chunks_ + slot.chunk) * kSlotKinds + static_cast<std::size_t>(slot.kind)];
  }

  // The reason why the slot cannot run at this place of the order; null if it can.
  const char* fault(std::size_t stage, const Slot& slot) const {
    if (slot.micro_batch >= micro_batches_ || slot.chunk >= chunks_) return " does not exist";
    const Site& at = site(stage, slot);
    if (at.end == nullptr) return " in a schedule whose backwards are whole";
    if (at.end[slot.micro_batch] != kNotYet) return " runs twice";
    // A slot that it needs on its own stage comes earlier in the order, or never.
    if (at.before != nullptr && at.before[slot.micro_batch] == kNotYet)
      return slot.kind == SlotKind::backward ? " comes before its forward" : " comes before its backward";
    return nullptr;
  }

  void check(std::size_t stage, std::size_t index, const Slot& slot) const {
    if (const char* why = fault(stage, slot)) throw std::logic_error("schedule: " + describe(stage, index, slot) + why);
  }

  // Runs the stage's slots until an input has not arrived yet. kPairs: those of a pair together.
  template <bool kPairs, class Record>
  void advance(std::size_t stage, StageClock& clock, Record& record) {
    Cursor& cursor = cursors_[stage];
    double now = now_[stage];
    const auto m = static_cast<std::int64_t>(micro_batches_);
    while (!cursor.done() && cursor.rounds_begun() <= last_round_) {
      std::array<Slot, 2> turn{cursor.slot()};
      check(stage, cursor.count(), turn[0]);
      bool pairs = false;
      if (kPairs && cursor.goes_on()) {
        Cursor behind = cursor;
        behind.next();
        turn[1] = behind.slot();
        pairs = StageOrder::is_pair(turn[0], turn[1]);
        if (pairs) check(stage, behind.count(), turn[1]);
      }
      const std::span<const Slot> slots(turn.data(), kPairs && pairs ? 2 : 1);
      double begin = now;
      for (const Slot& slot : slots) {
        const Site& at = site(stage, slot);
        if (at.input == nullptr) continue;
        const double input = at.input[slot.micro_batch];
        if (input == kNotYet) {
          waiting_[stage] = 1;
          now_[stage] = now;
          return;
        }
        const bool receives = blocking_ && at.from >= 0;
        begin = receives ? std::max(begin, input) + at.from_hop : std::max(begin, input + at.from_hop);
        if (receives) clock.transfer_seconds += at.from_hop;
      }
      if (cursor.count() == 0) clock.first_forward_begin = begin;  // nothing precedes a forward
      double alone = 0, seconds = 0, first = 0;
      for (const Slot& slot : slots) {
        const std::size_t of = row(stage, slot);
        const double own = seconds_of(costs_.seconds[of][static_cast<std::size_t>(slot.kind)], slot.micro_batch, m);
        if (pairs && &slot == &slots.front()) first = own;
        alone += own;
        seconds += pairs ? own - costs_.pair_saves[of] / 2 : own + longer_behind_last(stage, slot);
        cursor.next();
      }
      now = begin + seconds;
      clock.busy_seconds += seconds;
      if (slots.back().kind == SlotKind::backward) clock.last_backward_end = now;
      const double end = now;
      double from = begin;  // for pictures, the slots of a pair run one after the other
      for (const Slot& slot : slots) {
        const Site& at = site(stage, slot);
        const double to = &slot == &slots.back() ? end : from + first / alone * seconds;
        if (at.from >= 0) record.transfer(at.from, stage, at.input[slot.micro_batch], from);
        record.slot(stage, slot, from, to);
        from = to;
        at.end[slot.micro_batch] = end;
        if (at.to < 0) continue;
        if (!link_free_.empty()) {
          double& free = link_free_[stage];
          at.end[slot.micro_batch] = std::max(end, free);  // from then on its message is on its way
          free = at.end[slot.micro_batch] + at.to_hop;
        }
        if (blocking_ && !receives_from(stage, cursor, at.to)) {
          now += at.to_hop;
          clock.transfer_seconds += at.to_hop;
        }
        if (waiting_[at.to]) {
          waiting_[at.to] = 0;
          ready_.push_back(at.to);
        }
      }
    }
    now_[stage] = now;
  }

  // The slot's index into PipelineCosts::seconds.
  std::size_t row(std::size_t stage, const Slot& slot) const {
    const std::size_t of_class = costs_.micro_batch_class.empty() ? 0 : costs_.micro_batch_class[slot.micro_batch];
    return costs_.row(stage, of_class) * chunks_ + slot.chunk;
  }

  // Returns the seconds that the slot takes in addition because a chunk's last slot is behind it
  // (PipelineCosts::behind_last).
  double longer_behind_last(std::size_t stage, const Slot& slot) {
    if (behind_.empty()) return 0;
    std::span<const double>& left = behind_[stage];
    double longer = 0;
    if (!left.empty()) {
      longer = left.front();
      left = left.subspan(1);
    }
    const SlotKind last_kind = split_ ? SlotKind::weight_gradient : SlotKind::backward;
    if (slot.kind == last_kind && slot.micro_batch + 1 == micro_batches_) {
      const std::size_t of_chunk = static_cast<std::size_t>(costs_.stage_class[stage]) * chunks_ + slot.chunk;
      left = costs_.behind_last.subspan(of_chunk * costs_.slots_behind, costs_.slots_behind);
    }
    return longer;
  }

  bool receives_from(std::size_t stage, const Cursor& next, std::int32_t other) const {
    if (next.done()) return false;
    const Slot slot = next.slot();
    return slot.chunk < chunks_ && site(stage, slot).from == other;
  }

  std::size_t micro_batches_ = 0, chunks_ = 0;
  bool split_ = false, blocking_ = false;
  PipelineCosts costs_;
  std::vector<std::span<const double>> behind_;  // by stage: for the slots to come
  std::vector<Site> sites_;                      // [(stage * chunks + chunk) * kSlotKinds + kind]
  std::vector<double> ends_;                     // [(kind * positions + position) * micro_batches + micro_batch]
  std::vector<Cursor> cursors_;
  std::uint32_t last_round_ = 0;  // no stage goes beyond this round
  std::vector<double> snapshot_, far_snapshot_;
  std::vector<double> now_;
  std::vector<double> link_free_;  // by stage: when its latest message has left; empty: no message waits for another
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
  RowWalker rows;
};

PipelineWalker::PipelineWalker() : rep_(std::make_unique<Rep>()) {}
PipelineWalker::~PipelineWalker() = default;
PipelineWalker::PipelineWalker(PipelineWalker&&) noexcept = default;
PipelineWalker& PipelineWalker::operator=(PipelineWalker&&) noexcept = default;

void PipelineWalker::walk(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out) {
  const bool rows = costs.pair_saves.empty() && costs.micro_batch_class.empty() && !may_queue(schedule, costs);
  if (!rows || !rep_->rows.walk(schedule, costs, out)) {
    NoRecord none;
    rep_->plain.run(schedule, costs, out, none, rows);
  }
  finish(out);
}

std::size_t PipelineWalker::slots_walked() const { return rep_->plain.slots_walked(); }

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
