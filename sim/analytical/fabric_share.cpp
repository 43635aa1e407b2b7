#include "sim/analytical/fabric_share.h"

#include <algorithm>
#include <limits>

namespace orrery {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kTogether = 1e-12;  // relative; work that ends within this ends together

// Streams that fall far behind leave more and more work from slot to slot. The work that is next in turn keeps its
// pieces; what is behind it is joined into so many, or more where pieces are unlike: one level of the fabric bounds all
// of a joined one.
constexpr std::size_t kNextLeft = 32, kJoinedLeft = 32;
void join_far(std::vector<FabricWork>& works) {
  if (works.size() <= kNextLeft + kJoinedLeft) return;
  const std::size_t far = works.size() - kNextLeft;
  std::size_t last = kNextLeft;
  for (std::size_t i = 1; i < far; ++i) {
    const FabricWork& work = works[kNextLeft + i];
    FabricWork& into = works[last];
    const bool together = i * kJoinedLeft / far == (i - 1) * kJoinedLeft / far;
    const auto is_in_node = [](const FabricWork& w) { return w.seconds[0] >= w.seconds[1]; };
    const bool alike =
        into.in_node == work.in_node && into.in_sequence == work.in_sequence && is_in_node(into) == is_in_node(work);
    if (together && alike) {
      into.latency_seconds += work.latency_seconds;
      for (std::size_t part = 0; part < kFabricParts; ++part) into.seconds[part] += work.seconds[part];
    } else {
      works[++last] = work;
    }
  }
  works.resize(last + 1);
}

}  // namespace

FabricWork fabric_work(const CollectiveCost& cost) {
  FabricWork work;
  work.latency_seconds = cost.seconds;
  if (!is_felt(cost)) return work;
  work.latency_seconds = cost.latency_seconds;
  work.in_sequence = cost.in_sequence;
  if (cost.between_neighbours) work.in_node = FabricLevel::neighbours;
  double inside = cost.intra_seconds, outside = cost.inter_seconds;
  // Narrower links beyond the NICs also narrow the work that the group shares there. If the level within the node
  // bounds the collective, `flowing` is its time, except for rounding.
  const double flowing = cost.seconds - cost.latency_seconds;
  const bool narrowed = flowing > inside * (1 + kTogether);
  if (outside > 0) outside = std::max(outside, work.in_sequence ? flowing - inside : narrowed ? flowing : 0);
  work.seconds = {inside, outside};
  return work;
}

void SharedFabric::clear() {
  for (std::size_t u = 0; u < used_.size(); ++u) {
    queues_[u].items.clear();
    queues_[u].first = 0;
    place_[used_[u]] = kUnused;
  }
  used_.clear();
  state_.time = ahead_.time = 0;
}

void SharedFabric::copy(State& to, const State& from) const {
  to.time = from.time;
  std::copy_n(from.heads.begin(), used_.size(), to.heads.begin());
}

std::size_t SharedFabric::level_of(const Head& head, std::size_t part) {
  return static_cast<std::size_t>(part == 0 ? head.in_node : FabricLevel::network);
}

void SharedFabric::run(State& state, double until, std::size_t use, std::size_t item) {
  const std::size_t queues = used_.size();
  while (state.time < until) {
    // The number of collectives on each level, and when it changes next.
    std::array<double, kFabricLevels> sharing{};
    double next = kNever;
    for (std::size_t u = 0; u < queues; ++u) {
      Head& head = state.heads[u];
      if (!head.begun) {
        std::vector<Item>& items = queues_[u].items;
        if (head.at == items.size()) continue;
        Item& i = items[head.at];
        if (i.release > state.time) {
          next = std::min(next, i.release - state.time);
          continue;
        }
        i.begin = state.time;
        head.begun = true;
        head.in_sequence = i.work.in_sequence;
        head.in_node = i.work.in_node;
        head.latency = i.work.latency_seconds;
        head.left = i.work.seconds;
      }
      if (head.latency > 0) {
        next = std::min(next, head.latency);
        continue;
      }
      const bool first = head.left[0] > 0, second = head.left[1] > 0 && !(first && head.in_sequence);
      sharing[level_of(head, 0)] += first ? 1 : 0;
      sharing[level_of(head, 1)] += second ? 1 : 0;
      if (!first && !second) next = 0;
    }
    // An endless flow takes as much as each collective, or the share that it uses when alone if that is less.
    if (has_endless_) [[unlikely]]
      for (std::size_t l = 0; l < kFabricLevels; ++l)
        if (beside_[l] > 0 && sharing[l] > 0)
          sharing[l] = beside_[l] < 1 ? std::min(sharing[l] + 1, sharing[l] / (1 - beside_[l])) : sharing[l] + 1;
    for (std::size_t u = 0; u < queues; ++u) {
      const Head& head = state.heads[u];
      if (!head.begun || head.latency > 0) continue;
      const bool first = head.left[0] > 0, second = head.left[1] > 0 && !(first && head.in_sequence);
      if (first) next = std::min(next, head.left[0] * sharing[level_of(head, 0)]);
      if (second) next = std::min(next, head.left[1] * sharing[level_of(head, 1)]);
    }
    if (next == kNever && until == kNever) return;
    const bool stops = state.time + next > until;
    if (stops) next = until - state.time;
    const double over = stops ? -1 : next * (1 + kTogether);
    const double time = stops ? until : state.time + next;
    bool found = false;
    for (std::size_t u = 0; u < queues; ++u) {
      Head& head = state.heads[u];
      if (!head.begun) continue;
      if (head.latency > 0) {
        head.latency = head.latency <= over ? 0 : head.latency - next;
        if (head.latency > 0) continue;
      } else {
        const bool first = head.left[0] > 0, second = head.left[1] > 0 && !(first && head.in_sequence);
        const auto serve = [&](std::size_t part) {
          double& left = head.left[part];
          const double share = sharing[level_of(head, part)];
          left = left * share <= over ? 0 : left - next / share;
        };
        if (first) serve(0);
        if (second) serve(1);
      }
      if (head.left[0] > 0 || head.left[1] > 0) continue;
      queues_[u].items[head.at].end = time;
      found |= u == use && head.at == item;
      ++head.at;
      head.begun = false;
    }
    state.time = time;
    if (found) return;
  }
}

SharedFabric::Ticket SharedFabric::issue(std::size_t stream, double release, const FabricWork& work, double settled) {
  if (place_[stream] == kUnused) {
    place_[stream] = static_cast<std::uint8_t>(used_.size());
    state_.heads[used_.size()] = ahead_.heads[used_.size()] = {};
    used_.push_back(stream);
  }
  Queue& queue = queues_[place_[stream]];
  const double until = std::min(release, settled);
  if (until > state_.time) {
    if (ahead_.time <= until) copy(state_, ahead_);
    run(state_, until);
  }
  copy(ahead_, state_);
  queue.items.push_back({.release = std::max(release, state_.time), .work = work});
  return queue.first + static_cast<Ticket>(queue.items.size()) - 1;
}

double SharedFabric::end(std::size_t stream, Ticket ticket) {
  const std::size_t use = place_[stream];
  const Queue& queue = queues_[use];
  if (ticket < queue.first) return 0;
  const auto item = static_cast<std::size_t>(ticket - queue.first);
  if (item >= ahead_.heads[use].at) run(ahead_, kNever, use, item);
  return queue.items[item].end;
}

double SharedFabric::begin(std::size_t stream, Ticket ticket) const {
  const Queue& queue = queues_[place_[stream]];
  return queue.items[static_cast<std::size_t>(ticket - queue.first)].begin;
}

double SharedFabric::end(std::size_t stream) {
  if (place_[stream] == kUnused) return 0;
  const Queue& queue = queues_[place_[stream]];
  return queue.items.empty() ? 0 : end(stream, queue.first + static_cast<Ticket>(queue.items.size()) - 1);
}

SharedFabric::Stretch SharedFabric::busy(double from, double until) {
  if (has_endless_) return {from, until};
  if (ahead_.time < until) run(ahead_, until);
  Stretch stretch{until, from};
  for (std::size_t u = 0; u < used_.size(); ++u) {
    const auto& items = queues_[u].items;
    const Head& head = ahead_.heads[u];
    for (std::size_t i = state_.heads[u].at; i < items.size(); ++i) {
      const bool ended = i < head.at;
      if (ended && items[i].end <= from) continue;
      const bool begun = ended || (i == head.at && head.begun);
      stretch.from = std::min(stretch.from, std::max(from, begun ? items[i].begin : items[i].release));
      stretch.until = std::max(stretch.until, head.at == items.size() ? std::min(until, items.back().end) : until);
      break;
    }
  }
  return stretch.from < until ? stretch : Stretch{until, until};
}

void SharedFabric::leave(double at, FabricBacklog& backlog) {
  for (auto& works : backlog) works.clear();
  if (at > state_.time) run(state_, at);
  for (std::size_t u = 0; u < used_.size(); ++u) {
    const std::size_t s = used_[u];
    if (!kStreamRows[s].asynchronous) continue;
    const Head& head = state_.heads[u];
    const auto& items = queues_[u].items;
    for (std::size_t i = head.at; i < items.size(); ++i) backlog[s].push_back(items[i].work);
    if (head.begun) {
      backlog[s].front().latency_seconds = head.latency;
      backlog[s].front().seconds = head.left;
    }
    join_far(backlog[s]);
  }
}

void SharedFabric::begin_with(const FabricBacklog& backlog) {
  clear();
  for (std::size_t s = 0; s < kStreams; ++s)
    for (const FabricWork& work : backlog[s]) issue(s, 0, work, 0);
}

void SharedFabric::work_off(double seconds, FabricBacklog& backlog) {
  begin_with(backlog);
  leave(seconds, backlog);
}

std::array<double, kStreams> SharedFabric::work_off(const FabricBacklog& backlog) {
  begin_with(backlog);
  std::array<double, kStreams> ends{};
  for (std::size_t s = 0; s < kStreams; ++s) ends[s] = end(s);
  return ends;
}

void SharedFabric::snapshot(std::vector<double>& times, std::vector<double>& same) const {
  times.push_back(state_.time);
  for (std::size_t u = 0; u < used_.size(); ++u) {
    const Queue& queue = queues_[u];
    const Head& head = state_.heads[u];
    times.push_back(static_cast<double>(queue.first) + static_cast<double>(queue.items.size()));
    same.push_back(static_cast<double>(queue.items.size() - head.at));
    same.push_back(head.begun ? head.latency : -1);
    for (const double left : head.left) same.push_back(head.begun ? left : 0);
    for (std::size_t i = head.at; i < queue.items.size(); ++i) {
      const Item& item = queue.items[i];
      same.push_back(std::max(0.0, item.release - state_.time));
      same.push_back(item.work.latency_seconds);
      for (const double seconds : item.work.seconds) same.push_back(seconds);
    }
  }
}

void SharedFabric::move_to(const double* times) {
  const double by = times[0] - state_.time;
  state_.time += by;
  for (std::size_t u = 0; u < used_.size(); ++u) {
    Queue& queue = queues_[u];
    for (std::size_t i = state_.heads[u].at; i < queue.items.size(); ++i) {
      queue.items[i].release += by;
      queue.items[i].begin += by;
    }
    queue.first = static_cast<Ticket>(times[1 + u]) - static_cast<Ticket>(queue.items.size());
  }
  copy(ahead_, state_);
}

double SharedFabric::place(std::size_t stream, Ticket ticket) const {
  const std::size_t use = place_[stream];
  const Ticket done = queues_[use].first + static_cast<Ticket>(state_.heads[use].at);
  return ticket < done ? 0 : static_cast<double>(ticket - done + 1);
}

}  // namespace orrery
