// Collectives of a rank's streams that are under way together share the levels of the fabric that they use.
//
// Each level serves what has bytes left on it in equal parts (max-min fairness between collectives that each fill the
// level alone), so a collective of s seconds beside n - 1 others that last as long takes n s, and one that ends early
// leaves its part to the rest. A collective first waits out its latency, when it takes no part of any level; then its
// bytes go over all its levels at once, or over one after the other. A stream's run in order.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "sim/cost/collective_cost.h"
#include "sim/program/stream.h"

namespace orrery {

// The links that a rank's collectives meet on: of its node, out of it, and links of its node that only groups of
// neighbouring ranks use (CollectiveCost::between_neighbours).
enum class FabricLevel : std::uint8_t { scale_up, network, neighbours };
inline constexpr std::size_t kFabricLevels = 3;

// What a collective asks of the fabric: of one level in the node, and of the network.
inline constexpr std::size_t kFabricParts = 2;
struct FabricWork {
  double latency_seconds = 0;
  std::array<double, kFabricParts> seconds{};  // in the node, over the network; alone
  bool in_sequence = false;                    // one part after the other
  FabricLevel in_node = FabricLevel::scale_up;

  double alone() const {
    return latency_seconds + (in_sequence || seconds[0] < seconds[1] ? seconds[1] : 0) +
           (in_sequence || seconds[0] >= seconds[1] ? seconds[0] : 0);
  }
};
FabricWork fabric_work(const CollectiveCost& cost);

// One whose bytes take less than this part of its latency (a gradient norm's scalar) takes its time but no part of any
// level: others cannot feel it.
inline constexpr double kUnfelt = 1e-3;
constexpr bool is_felt(const CollectiveCost& cost) {
  return (cost.intra_seconds > cost.inter_seconds ? cost.intra_seconds : cost.inter_seconds) >=
         kUnfelt * cost.latency_seconds;
}

// Streams with collectives on each level, a bit each.
using StreamsByLevel = std::array<std::uint16_t, kFabricLevels>;
// Whether two streams meet on a level.
constexpr bool any_meet(const StreamsByLevel& streams) {
  for (const std::uint16_t on_level : streams)
    if (std::popcount(on_level) > 1) return true;
  return false;
}

// What each stream has not yet done.
using FabricBacklog = std::array<std::vector<FabricWork>, kStreams>;

class SharedFabric {
 public:
  using Ticket = std::int64_t;  // 0, 1, ... on each stream

  void clear();
  // Begins anew with a backlog, all of it released.
  void begin_with(const FabricBacklog& backlog);
  // Behind what its stream has, and not before `release`. What ended before min(release, settled) is final: later calls
  // may not ask for an earlier release, or it counts as then.
  Ticket issue(std::size_t stream, double release, const FabricWork& work, double settled);
  // When it ends if nothing else is issued.
  double end(std::size_t stream, Ticket ticket);
  // When it began. REQUIRES: it has ended, or end() was asked since the last issue().
  double begin(std::size_t stream, Ticket ticket) const;
  // When all of the stream's has ended; 0: it had none.
  double end(std::size_t stream);
  // From when anything is under way at or after `from`, and until when, but no later than `until`.
  struct Stretch {
    double from, until;
  };
  Stretch busy(double from, double until);
  // Goes on to `at` and tells what the asynchronous streams have left then.
  void leave(double at, FabricBacklog& backlog);
  // begin_with(), so many seconds with nothing else, and what is left of it.
  void work_off(double seconds, FabricBacklog& backlog);
  // The same until nothing is left: when each stream has ended.
  std::array<double, kStreams> work_off(const FabricBacklog& backlog);

  // For lines that repeat. The state at an instant in two parts: times (and tickets) that may advance by the same from
  // period to period, and what must stay the same if the next period is to be like the last.
  void snapshot(std::vector<double>& times, std::vector<double>& same) const;
  std::size_t times() const { return 1 + used_.size(); }
  // Moves all that is under way to the times of a later state.
  void move_to(const double* times);
  // Tickets that are still under way, from 1; 0: it has ended.
  double place(std::size_t stream, Ticket ticket) const;

 private:
  struct Item {
    double release = 0;
    FabricWork work;
    double begin = 0, end = 0;
  };
  struct Queue {
    std::vector<Item> items;
    Ticket first = 0;  // of items.front()
  };
  // Of the oldest that has not ended.
  struct Head {
    std::size_t at = 0;  // in Queue::items
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
  // Until the time, or the end of an item, if that comes first.
  void run(State& state, double until, std::size_t use = kMost, std::size_t item = 0);
  void copy(State& to, const State& from) const;
  std::size_t use_of(std::size_t stream) const { return place_[stream]; }

  std::array<Queue, kMost> queues_;  // as used_
  std::vector<std::size_t> used_;    // streams that have queues, in the order of their first op
  std::array<std::uint8_t, kStreams> place_ = [] {
    std::array<std::uint8_t, kStreams> all{};
    all.fill(kUnused);
    return all;
  }();
  State state_;  // what is final
  State ahead_;  // from there on, if nothing else is issued
};

}  // namespace orrery
