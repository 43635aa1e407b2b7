// Communication: the meetings of ranks, and their flows.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/des/simgrid/run.h"

namespace orrery {

Routine SimgridRun::wait(Flight& flight, Self& self) {
  flight.waiting = &self;
  while (flight.left > 0 && !flight.failed) co_await clock_.block(self);
  if (!flight.failed) co_return;
  const std::int32_t pattern = traffic().flow_classes()[flight.failed_class].pattern;
  const auto x = std::find_if(plan_.exchanges.begin(), plan_.exchanges.end(),
                              [&](const Exchange& e) { return e.pattern == pattern; });
  stall(fmt::format("{}, with the traffic of {} over it{}", failed_,
                    x == plan_.exchanges.end() ? "a flow" : name_of(x->kind), who_waits()));
}

Routine SimgridRun::flows(const Exchange& x, std::uint32_t group_class) {
  const auto all = traffic().flow_classes();
  const auto own = traffic().flows(x.pattern, group_class);
  co_await clock_.sleep(x.cost.latency_seconds);
  const auto bytes_of = [&](std::uint32_t f) {
    return all[f].share * (all[f].leaves_node ? x.wire_outside : x.wire_inside);
  };
  std::vector<double> ends(own.size()), bytes;
  std::vector<std::uint32_t> started;
  std::vector<double*> ends_of;
  Self self;
  const int phases = traffic().phases_of(own);
  for (int phase = 0; phase < phases; ++phase) {
    const double begin = now();
    Flight flight;
    started.clear();
    bytes.clear();
    ends_of.clear();
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (all[own[i]].phase != phase || network_.unbound(own[i])) continue;
      started.push_back(own[i]);
      bytes.push_back(bytes_of(own[i]));
      ends_of.push_back(&ends[i]);
    }
    if (started.size() > 1)
      network_.start({x.pattern, group_class, phase, x.wire_inside, x.wire_outside}, started, bytes, flight, ends_of);
    else if (!started.empty())
      network_.start(started[0], bytes[0], flight, *ends_of[0]);
    if (flight.left == 0) continue;
    co_await wait(flight, self);
    for (std::size_t i = 0; i < own.size(); ++i)
      if (const std::uint32_t f = own[i]; all[f].phase == phase && !network_.unbound(f))
        out_.flows.push_back({begin, ends[i], all[f].share * x.bytes, bytes_of(f), f});
  }
}

Process SimgridRun::exact_edge(const Exchange& x, ExactPhase& phase, std::uint32_t f) {
  const auto all = traffic().flow_classes();
  const FlowClass& flow = all[f];
  ExactEdge& edge = phase.edges[f - phase.first];
  Self self;
  const double bytes = flow.share * (flow.leaves_node ? x.wire_outside : x.wire_inside);
  const double latency = flow.leaves_node ? x.cost.inter_step_seconds : x.cost.intra_step_seconds;
  // An edge that has its links to itself keeps its own clock, which may be ahead of the simulation's: no other event
  // can change when its messages arrive.
  const double alone = network_.seconds_per_byte_alone(f) * bytes;
  double left = now();
  edge.arrivals.reserve(static_cast<std::size_t>(flow.messages));
  for (std::int32_t k = 0; k < flow.messages; ++k) {
    double begin = left;
    for (const std::uint32_t a : flow.after) {
      const std::int32_t needed = k + flow.lag;
      if (needed < 0 || needed >= all[a].messages) continue;
      ExactEdge& before = phase.edges[a - phase.first];
      while (static_cast<std::int32_t>(before.arrivals.size()) <= needed) {
        before.waiting.push_back(&self);
        co_await clock_.block(self);
      }
      begin = std::max(begin, before.arrivals[static_cast<std::size_t>(needed)]);
    }
    if (alone > 0) {
      left = begin + alone;
    } else {
      co_await clock_.sleep_until(begin);
      if (!network_.unbound(f)) {
        Flight flight;
        double end = 0;
        network_.start(f, bytes, flight, end);
        co_await wait(flight, self);
      }
      left = now();
    }
    if (!network_.unbound(f)) out_.flows.push_back({begin, left, flow.share * x.bytes, bytes, f});
    edge.arrivals.push_back(left + latency);
    // Others may queue for the next message while these are woken.
    for (Self* s : std::exchange(edge.waiting, {})) clock_.wake(*s);
  }
  if (!edge.arrivals.empty()) phase.last = std::max(phase.last, edge.arrivals.back());
  if (--phase.running == 0) clock_.wake(phase.caller);
}

// Every message by itself, with one process per edge.
Routine SimgridRun::flows_exactly(const Exchange& x, std::uint32_t group_class) {
  const auto all = traffic().flow_classes();
  const auto own = traffic().flows(x.pattern, group_class);
  if (own.empty()) co_return;
  ExactPhase exact;
  exact.first = own.front();  // ascending
  exact.edges.resize(own.back() - exact.first + 1);
  co_await clock_.sleep(x.cost.base_seconds);
  const int phases = traffic().phases_of(own);
  for (int phase = 0; phase < phases; ++phase) {
    exact.last = now();
    for (const std::uint32_t f : own) {
      if (all[f].phase != phase) continue;
      ++exact.running;
      clock_.start(exact_edge(x, exact, f));
    }
    while (exact.running > 0) co_await clock_.block(exact.caller);
    co_await clock_.sleep_until(exact.last);
  }
}

Routine SimgridRun::transmit(const Exchange& x, std::uint32_t group_class) {
  if (x.pattern == kNoPattern)
    co_await clock_.sleep(x.cost.seconds);
  else if (plan_.options.fidelity == Fidelity::step_exact)
    co_await flows_exactly(x, group_class);
  else
    co_await flows(x, group_class);
}

// `moves`: whether it slows kernels that run at the same time.
Routine SimgridRun::run_exchange_of(const Exchange& x, std::uint32_t group_class, bool moves) {
  const auto& members = traffic().group_classes()[group_class].members;
  if (moves)
    for (const std::uint32_t m : members) {
      SimulatedClass& other = *classes_[m];
      if (other.collectives++ == 0) interrupt(other);
    }
  co_await transmit(x, group_class);
  if (moves)
    for (const std::uint32_t m : members) {
      SimulatedClass& other = *classes_[m];
      if (--other.collectives == 0) interrupt(other);
    }
}

void SimgridRun::note_stage_wait(SimulatedClass& c, double from) const {
  auto& waits = c.stage_waits;
  for (; !waits.empty() && waits.back().second >= from; waits.pop_back()) from = std::min(from, waits.back().first);
  waits.emplace_back(from, now());
}

void SimgridRun::count_exchange(SimulatedClass& c, std::uint32_t x, std::uint32_t name, double begin, double end) {
  std::uint32_t& row = c.exchange_rows[x];
  if (row == 0) {
    out_.exchanges.push_back({.rank_class = c.id, .exchange = x, .name = name});
    row = static_cast<std::uint32_t>(out_.exchanges.size());
  }
  ExchangeRecord& r = out_.exchanges[row - 1];
  r.times += 1;
  r.seconds += end - begin;
  if (end - begin <= r.longest_end - r.longest_begin) return;
  r.longest_begin = begin;
  r.longest_end = end;
}

void SimgridRun::count_wait(SimulatedClass& c, const SimulatedClass& for_whom, std::uint32_t x, std::uint32_t name,
                            double seconds) {
  auto& rows = c.wait_rows[x];
  auto row = std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.first == for_whom.id; });
  if (row == rows.end()) {
    row = rows.emplace(rows.end(), for_whom.id, static_cast<std::uint32_t>(out_.waits.size()));
    out_.waits.push_back({.rank_class = c.id, .for_class = for_whom.id, .name = name});
  }
  out_.waits[row->second].times += 1;
  out_.waits[row->second].seconds += seconds;
}

Routine SimgridRun::exchange(SimulatedClass& c, Self& self, std::uint32_t id, std::size_t stream, std::uint32_t name,
                             bool meet, bool moves, Beginning& beginning) {
  const Exchange& x = plan_.exchanges[id];
  const std::uint32_t group = traffic().group_class(x.communicator, c.first_rank);
  const auto& members = traffic().group_classes()[group].members;
  const bool local = is_local(x);
  if (!local) co_await clock_.enter_outside();
  if (!meet || members.size() == 1) {
    beginning.time = now();
    co_await run_exchange_of(x, group, moves);
    count_exchange(c, id, name, beginning.time, now());
    if (!local) clock_.leave_outside();
    co_return;
  }

  auto& meetings = meetings_[std::size_t{group} * kStreams + stream];
  // The first to which it has not come yet.
  auto next = std::ranges::find_if(meetings, [&](const Meeting* meeting) {
    return std::ranges::find(meeting->arrived, c.id, &std::pair<std::uint32_t, double>::first) ==
           meeting->arrived.end();
  });
  if (next == meetings.end()) {
    if (free_meetings_.empty()) free_meetings_.push_back(&all_meetings_.emplace_back());
    next = meetings.insert(next, free_meetings_.back());
    free_meetings_.pop_back();
  }
  Meeting& m = **next;
  if (m.arrived.empty()) {
    m.exchange = id;
    m.left = members.size();
  }
  const Exchange& theirs = plan_.exchanges[m.exchange];
  if (theirs.kind != x.kind || theirs.bytes != x.bytes)
    stall(fmt::format(
        "ranks of one group disagree on the next collective at {:.6g} s: {} issues {} of {:.6g} bytes, {} {} "
        "of {:.6g} bytes",
        now(), words(c), name_of(x.kind), x.bytes, words(*classes_[m.arrived.front().first]), name_of(theirs.kind),
        theirs.bytes));
  m.arrived.emplace_back(c.id, now());
  if (m.arrived.size() < members.size()) {
    m.waiting.push_back(&self);
    while (!m.done) co_await clock_.block(self);
  } else {
    m.begin = now();
    m.cause = beginning.cause;
    for (const auto& [other, when] : m.arrived) {
      if (other == c.id || m.begin <= when) continue;
      if (classes_[other]->stage != c.stage) note_stage_wait(*classes_[other], when);
      count_wait(*classes_[other], c, id, name, m.begin - when);
    }
    co_await run_exchange_of(x, group, moves);
    m.done = true;
    for (Self* s : m.waiting) clock_.wake(*s);
  }
  beginning = {m.cause, m.begin};
  count_exchange(c, id, name, m.begin, now());
  if (!local) clock_.leave_outside();
  if (--m.left == 0)
    while (!meetings.empty() && meetings.front()->done && meetings.front()->left == 0) {
      Meeting* over = meetings.front();
      over->arrived.clear();
      over->waiting.clear();
      over->cause = EventRecord::kNoCause;
      over->done = false;
      free_meetings_.push_back(over);
      meetings.pop_front();
    }
}

}  // namespace orrery
