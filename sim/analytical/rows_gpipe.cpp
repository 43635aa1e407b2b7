// GPipe: all forwards, then all backwards. The ends e(i) of one stage's pass over its micro-batches i satisfy e(i) =
// max(e(i-1), a(i)) + d, where a(i) are the arrivals. If a is a maximum of lines over the usual micro-batches, so is e:
// the same lines moved by d, and one line of slope d through the first of them. (a is convex, so that only waiting for
// a(i), and having been busy since the first micro-batch, can determine e.)
#include "sim/analytical/rows.h"

namespace orrery::rows {
namespace {

class GpipePass {
 public:
  explicit GpipePass(Index m) : m_(m) {}

  // Adds the next stage of the pass, which is free at `free` and `hop` away.
  void stage(double hop, double free, const SlotSeconds& d) {
    const double first = std::max(free, first_ + hop) + seconds_of(d, 0, m_);
    double before_last = first;
    if (m_ > 2) {
      const double second = std::max(first, lines_.empty() ? kNever : lines_.back().value + moved_ + hop) + d.usual;
      moved_ += hop + d.usual;
      while (!lines_.empty() && lines_.back().slope <= d.usual) lines_.pop_back();
      lines_.push_back({d.usual, second - moved_});
      before_last = kNever;
      for (const Line& line : lines_)
        before_last = std::max(before_last, line.value + static_cast<double>(m_ - 3) * line.slope);
      before_last += moved_;
    }
    first_ = first;
    last_ = m_ == 1 ? first : std::max(before_last, last_ + hop) + d.last;
  }
  double first() const { return first_; }  // end of the first micro-batch
  double last() const { return last_; }

 private:
  struct Line {
    double slope, value;  // at the second micro-batch, relative to moved_
  };
  Index m_;
  double first_ = kNever, last_ = kNever, moved_ = 0;
  std::vector<Line> lines_;
};

}  // namespace

void walk_gpipe(const Schedule& schedule, const PipelineCosts& costs, PipelineClock& out) {
  const auto p = static_cast<Index>(schedule.stages.size()), m = schedule.micro_batches;
  const auto seconds = [&](Index s, SlotKind kind) -> const SlotSeconds& {
    return costs.seconds[costs.stage_class[s]][static_cast<std::size_t>(kind)];
  };
  GpipePass forward(m), backward(m);
  for (Index s = 0; s < p; ++s) {
    const SlotSeconds& d = seconds(s, SlotKind::forward);
    forward.stage(s > 0 ? costs.hop_seconds[s - 1] : 0, 0, d);
    out.stages[s].first_forward_begin = forward.first() - seconds_of(d, 0, m);
    out.stages[s].finish = forward.last();
  }
  for (Index s = p; s-- > 0;) {
    StageClock& clock = out.stages[s];
    backward.stage(s + 1 < p ? costs.hop_seconds[s] : 0, clock.finish, seconds(s, SlotKind::backward));
    clock.finish = clock.last_backward_end = backward.last();
  }
}

}  // namespace orrery::rows
