// Measures where the time of a step goes: marks around ops and messages, and the report's terms that follow from them.
#pragma once

#include <cstdint>
#include <vector>

#include "realrun/rank/tensor_memory.h"

namespace orrery::realrun {

// A timed op or message.
struct Issue {
  const Op* op = nullptr;  // null: a message to or, if it `receives`, from the neighbouring stage
  bool receives = false;
  std::uint16_t piece = 0;  // of an op
  std::uint8_t block = 0;
  std::uint16_t number = 0;
  Stream stream = Stream::compute;
  std::int64_t micro_batch = -1;
  std::uint64_t waited_for = 0;  // set of streams that it waited for
  Backend::Mark begin = 0, end = 0;
};

class StepClock : RankShared {
 public:
  explicit StepClock(const RankShared& rank) : RankShared(rank) {}

  // Turns marks around all following work on or off. Marks slow a step.
  void set_marking(bool marking) { marking_ = marking; }
  // Between these two there are no marks.
  void pause() { paused_ = true; }
  void go_on() { paused_ = false; }
  void begin(Issue& issue) {
    if (marking_ && !paused_) issue.begin = backend_.mark(issue.stream);
  }
  void end(Issue& issue) {
    if (!marking_ || paused_) return;
    issue.end = backend_.mark(issue.stream);
    issues_.push_back(issue);
  }
  // Adds a step between two marks on the compute stream to `result`. REQUIRES: the backend has been synchronized.
  void add_step(Backend::Mark begin, Backend::Mark end, RankResult& result);

 private:
  TimeBreakdown terms_of_step(Backend::Mark begin, double seconds) const;
  TimelineSpan interval_of(const Issue& issue, Backend::Mark begin) const;
  void add_ops(std::vector<MeasuredOp>& ops) const;

  std::vector<Issue> issues_;  // of this step
  bool marking_ = false, paused_ = false;
};

}  // namespace orrery::realrun
