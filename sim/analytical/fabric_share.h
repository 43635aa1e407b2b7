// Collectives of a rank's streams that run at the same time share the levels of the fabric that they use.
//
// Each level serves the collectives that have bytes left on it in equal parts (max-min fairness between collectives
// that each can fill the level alone). A collective of s seconds beside n - 1 equally long ones thus takes n s; one
// that ends early leaves its part to the others. A collective first waits for its latency, during which it uses no
// level. Then its bytes go over all its levels at once, or over one level after the other. The collectives of one
// stream run in order.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/program/stream.h"

namespace orrery {

// The links that a rank's collectives share: within the node, out of the node, and links within the node that only
// groups of neighbouring ranks use (CollectiveCost::between_neighbours).
enum class FabricLevel : std::uint8_t { scale_up, network, neighbours };
inline constexpr std::size_t kFabricLevels = 3;

// The demands of a collective on the fabric: on one level within the node, and on the network.
inline constexpr std::size_t kFabricParts = 2;
struct FabricWork {
  double latency_seconds = 0;
  std::array<double, kFabricParts> seconds{};  // within the node, over the network; when alone
  bool in_sequence = false;                    // one part after the other
  FabricLevel in_node = FabricLevel::scale_up;

  double alone() const {
    return latency_seconds + (in_sequence || seconds[0] < seconds[1] ? seconds[1] : 0) +
           (in_sequence || seconds[0] >= seconds[1] ? seconds[0] : 0);
  }
};
FabricWork fabric_work(const CollectiveCost& cost);

// A collective whose bytes take less than this share of its latency (a gradient norm's scalar) takes its time but uses
// no level: it does not slow down others.
inline constexpr double kUnfelt = 1e-3;
constexpr bool is_felt(const CollectiveCost& cost) {
  return (cost.intra_seconds > cost.inter_seconds ? cost.intra_seconds : cost.inter_seconds) >=
         kUnfelt * cost.latency_seconds;
}

// A flow that never ends: by level, the share of the level that it uses when alone, 1 on the level that bounds it.
// Beside others it uses no more than its part of a level. All 0: there is no such flow.
using EndlessFlow = std::array<double, kFabricLevels>;
constexpr bool any(const EndlessFlow& flow) {
  for (const double share : flow)
    if (share > 0) return true;
  return false;
}

// By level: the set of streams with collectives on it, one bit per stream.
using StreamsByLevel = std::array<std::uint16_t, kFabricLevels>;
// Whether two streams use the same level.
constexpr bool any_meet(const StreamsByLevel& streams) {
  for (const std::uint16_t on_level : streams)
    if (std::popcount(on_level) > 1) return true;
  return false;
}

// By stream: the collectives that it has not finished.
using FabricBacklog = std::array<std::vector<FabricWork>, kStreams>;

class SharedFabric {
 public:
  using Ticket = std::int64_t;  // counts 0, 1, ... on each stream

  void clear();
  // A flow that runs beside all later work.
  void run_beside(const EndlessFlow& flow) {
    beside_ = flow;
    has_endless_ = any(flow);
  }
  // Starts with a backlog, all of which is released.
  void begin_with(const FabricBacklog& backlog);
  // Appends work to the stream's queue; it starts no earlier than `release`. Everything that ended before min(release,
  // settled) is final. A later call with an earlier release counts as released then.
  Ticket issue(std::size_t stream, double release, const FabricWork& work, double settled);
  // When the work ends if nothing else is issued.
  double end(std::size_t stream, Ticket ticket);
  // When the work began. REQUIRES: it has ended, or end() was called after the last issue().
  double begin(std::size_t stream, Ticket ticket) const;
  // When all work of the stream has ended; 0: it had none.
  double end(std::size_t stream);
  // The first interval at or after `from` in which anything runs, cut off at `until`.
  struct Stretch {
    double from, until;
  };
  Stretch busy(double from, double until);
  // Advances to `at` and stores the work that asynchronous streams have left then.
  void leave(double at, FabricBacklog& backlog);
  // begin_with(backlog), then `seconds` without other work; stores what is left.
  void work_off(double seconds, FabricBacklog& backlog);
  // The same until nothing is left; returns when each stream has ended.
  std::array<double, kStreams> work_off(const FabricBacklog& backlog);

  // For lines that repeat. Describes the state at an instant in two parts: times (and tickets), which may advance by
  // the same amount in each period, and values that must be equal for the next period to be like the last.
  void snapshot(std::vector<double>& times, std::vector<double>& same) const;
  std::size_t times() const { return 1 + used_.size(); }
  // Shifts everything that is under way to the times of a later state.
  void move_to(const double* times);
  // The place of a ticket among those still under way, from 1; 0: it has ended.
  double place(std::size_t stream, Ticket ticket) const;

 private:
  struct Item {
    double release = 0;
    FabricWork work;
    double begin = 0, end = 0;
  };
  struct Queue {
    std::vector<Item> items;
    Ticket first = 0;  // ticket of items.front()
  };
  // The oldest item of a queue that has not ended.
  struct Head {
    std::size_t at = 0;  // index into Queue::items
    bool begun = false, in_sequence = false;
    FabricLevel in_node = FabricLevel::scale_up;
    double latency = 0;
    std::array<double, kFabricParts> left{};
  };
  static std::size_t level_of(const Head& head, std::size_t part);
  static constexpr std::size_t kMost = kStreams;
  struct State {
    double time = 0;
    std::array<Head, kMost> heads{};  // as used_
  };

  static constexpr std::uint8_t kUnused = 0xff;
  // Runs to the time `until`, or to the end of the given item if that is earlier.
  void run(State& state, double until, std::size_t use = kMost, std::size_t item = 0);
  void copy(State& to, const State& from) const;

  std::array<Queue, kMost> queues_;  // in the order of used_
  std::vector<std::size_t> used_;    // streams that have queues, in the order of their first op
  std::array<std::uint8_t, kStreams> place_ = [] {
    std::array<std::uint8_t, kStreams> all{};
    all.fill(kUnused);
    return all;
  }();
  EndlessFlow beside_{};
  // any(beside_): the loop over events tests only this.
  bool has_endless_ = false;
  State state_;  // the final part
  State ahead_;  // the state after it, if nothing else is issued
};

}  // namespace orrery
