// Does the clock of a run keep the order of time, and does a region run ahead only while nothing outside can reach it?
#include "sim/des/simgrid/clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace orrery {
namespace {

using ::testing::ElementsAre;

struct ClockWorld {
  Clock clock;
  std::vector<std::pair<std::string, double>> log;

  void note(std::string what) { log.emplace_back(std::move(what), clock.now()); }
  void run() {
    for (;;) {
      clock.run_ready();
      double due = 0;
      if (!clock.next_due(due)) return;
      clock.move_to(due);
    }
  }
};
using Entry = std::pair<std::string, double>;

Process ticks(ClockWorld& w, std::string name, double every, int times) {
  for (int i = 0; i < times; ++i) {
    co_await w.clock.sleep(every);
    w.note(name);
  }
}

TEST(Clock, ProcessesTakeTurnsByTime) {
  ClockWorld w;
  w.clock.start(ticks(w, "a", 2, 2));
  w.clock.start(ticks(w, "b", 3, 2));
  w.run();
  EXPECT_THAT(w.log, ElementsAre(Entry{"a", 2}, Entry{"b", 3}, Entry{"a", 4}, Entry{"b", 6}));
  EXPECT_EQ(w.clock.sleeps(), 4);
}

Process waits_for(ClockWorld& w, Self& self, double most) {
  co_await w.clock.block_for(self, most);
  w.note("woken");
  co_await w.clock.block_for(self, most);
  w.note("again");
}
Process wakes(ClockWorld& w, Self& self, double after) {
  co_await w.clock.sleep(after);
  w.clock.wake(self);
}

TEST(Clock, WhoeverIsWokenDoesNotWaitForTheDateToo) {
  ClockWorld w;
  Self self;
  w.clock.start(waits_for(w, self, 10));
  w.clock.start(wakes(w, self, 1));
  w.run();
  EXPECT_THAT(w.log, ElementsAre(Entry{"woken", 1}, Entry{"again", 11}))
      << "the date of the first wait has passed at 10";
}

Routine wait_half(ClockWorld& w, double seconds, double& waited) {
  co_await w.clock.sleep(seconds / 2);
  waited += seconds / 2;
}
Process calls_half(ClockWorld& w) {
  double sum = 0;
  for (int i = 0; i < 100000; ++i) co_await wait_half(w, 2, sum);
  w.note("sum " + std::to_string(static_cast<int>(sum)));
}

TEST(Clock, CallsLeaveNoStackBehind) {
  ClockWorld w;
  w.clock.start(calls_half(w));
  w.run();
  EXPECT_THAT(w.log, ElementsAre(Entry{"sum 100000", 100000}));
}

Process runs_ahead(ClockWorld& w) {
  co_await w.clock.sleep(1);
  w.note("ahead");
  co_await w.clock.sleep(4);
  w.note("ahead");
  co_await w.clock.enter_outside();
  w.note("in order");
  w.clock.leave_outside();
  co_await w.clock.sleep(3);
  w.note("ahead");
}

TEST(Clock, ARegionRunsAheadUntilItWaitsForSomethingOutside) {
  ClockWorld w;
  Region region;
  w.clock.start(ticks(w, "outside", 2, 4));
  w.clock.start(runs_ahead(w), region);
  w.run();
  EXPECT_THAT(w.log, ElementsAre(Entry{"ahead", 1}, Entry{"ahead", 5}, Entry{"outside", 2}, Entry{"outside", 4},
                                 Entry{"in order", 5}, Entry{"ahead", 8}, Entry{"outside", 6}, Entry{"outside", 8}));
}

struct Letter {
  bool there = false;
  Self reader;
};
Process reads_letter(ClockWorld& w, Letter& letter) {
  w.clock.wait_outside();
  while (!letter.there) co_await w.clock.block(letter.reader);
  w.clock.leave_outside();
  w.note("read");
}
Process sends_letter(ClockWorld& w, Letter& letter, double after) {
  co_await w.clock.sleep(after);
  letter.there = true;
  w.clock.wake(letter.reader);
}

TEST(Clock, ARegionKeepsToTheCommonOrderWhileOneOfItWaits) {
  ClockWorld w;
  Region region;
  Letter letter;
  w.clock.start(sends_letter(w, letter, 5));
  w.clock.start(reads_letter(w, letter), region);
  w.clock.start(ticks(w, "beside", 2, 4), region);
  w.run();
  EXPECT_THAT(w.log, ElementsAre(Entry{"beside", 2}, Entry{"beside", 4}, Entry{"read", 5}, Entry{"beside", 6},
                                 Entry{"beside", 8}));
}

}  // namespace
}  // namespace orrery
