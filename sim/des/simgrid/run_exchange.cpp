// Communication: who meets whom, and the flows.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "sim/des/simgrid/run.h"

namespace orrery {

void Simulation::wait(const sg4::CommPtr& comm, std::uint32_t flow_class) {
  try {
    comm->wait();
  } catch (const simgrid::NetworkFailureException&) {
    const std::int32_t pattern = traffic().flow_classes()[flow_class].pattern;
    const auto x = std::find_if(plan_.exchanges.begin(), plan_.exchanges.end(),
                                [&](const Exchange& e) { return e.pattern == pattern; });
    stall(fmt::format("{}, with the traffic of {} over it{}", failed_,
                      x == plan_.exchanges.end() ? "a flow" : name_of(x->kind), who_waits()));
  }
}

void Simulation::flows(const Exchange& x, std::uint32_t group_class) {
  const auto all = traffic().flow_classes();
  const auto own = traffic().flows(x.pattern, group_class);
  sleep(x.cost.latency_seconds);
  const auto bytes_of = [&](std::uint32_t f) {
    return all[f].share * (all[f].leaves_node ? x.wire_outside : x.wire_inside);
  };
  if (own.size() == 1) {
    const std::uint32_t f = own.front();
    if (network_.unbound(f)) return;
    const double begin = now(), bytes = bytes_of(f);
    ++out_.activities;
    wait(network_.start(f, bytes), f);
    out_.flows.push_back({begin, now(), all[f].share * x.bytes, bytes, f});
    return;
  }
  int phases = 1;
  for (const std::uint32_t f : own) phases = std::max(phases, all[f].phase + 1);
  for (int phase = 0; phase < phases; ++phase) {
    const double begin = now();
    std::vector<std::pair<std::uint32_t, sg4::CommPtr>> running;
    for (const std::uint32_t f : own)
      if (all[f].phase == phase && !network_.unbound(f)) {
        ++out_.activities;
        running.emplace_back(f, network_.start(f, bytes_of(f)));
      }
    for (auto& [f, comm] : running) {
      wait(comm, f);
      out_.flows.push_back({begin, comm->get_finish_time(), all[f].share * x.bytes, bytes_of(f), f});
    }
  }
}

// Every message by itself: an actor an edge.
void Simulation::flows_exactly(const Exchange& x, std::uint32_t group_class) {
  struct Edge {
    std::vector<double> arrivals;
    std::vector<Self*> waiting;
  };
  const auto all = traffic().flow_classes();
  const auto own = traffic().flows(x.pattern, group_class);
  if (own.empty()) return;
  const std::uint32_t first = own.front();  // ascending
  std::vector<Edge> edges(own.back() - first + 1);
  int phases = 1;
  for (const std::uint32_t f : own) phases = std::max(phases, all[f].phase + 1);
  sleep(x.cost.base_seconds);
  for (int phase = 0; phase < phases; ++phase) {
    double last = now();
    std::int64_t running = 0;
    Self caller;
    for (const std::uint32_t f : own) {
      if (all[f].phase != phase) continue;
      ++running;
      sg4::Actor::create("edge", network_.host(f), [&, f] {
        Self self;
        const FlowClass& flow = all[f];
        Edge& edge = edges[f - first];
        const double bytes = flow.share * (flow.leaves_node ? x.wire_outside : x.wire_inside);
        const double latency = flow.leaves_node ? x.cost.inter_step_seconds : x.cost.intra_step_seconds;
        // An edge that has its links to itself keeps a clock of its own, which may be ahead of the simulation's:
        // nothing that happens meanwhile can change when its messages arrive.
        const double alone = network_.seconds_per_byte_alone(f) * bytes;
        double left = now();
        edge.arrivals.reserve(static_cast<std::size_t>(flow.messages));
        for (std::int32_t k = 0; k < flow.messages; ++k) {
          double begin = left;
          for (const std::uint32_t a : flow.after) {
            const std::int32_t needed = k + flow.lag;
            if (needed < 0 || needed >= all[a].messages) continue;
            Edge& before = edges[a - first];
            while (static_cast<std::int32_t>(before.arrivals.size()) <= needed) {
              before.waiting.push_back(&self);
              self.block();
            }
            begin = std::max(begin, before.arrivals[static_cast<std::size_t>(needed)]);
          }
          if (alone > 0) {
            left = begin + alone;
          } else {
            sleep_until(begin);
            if (!network_.unbound(f)) {
              ++out_.activities;
              wait(network_.start(f, bytes), f);
            }
            left = now();
          }
          if (!network_.unbound(f)) out_.flows.push_back({begin, left, flow.share * x.bytes, bytes, f});
          edge.arrivals.push_back(left + latency);
          // Others may line up for the next message while these are woken.
          for (Self* s : std::exchange(edge.waiting, {})) s->wake();
        }
        if (!edge.arrivals.empty()) last = std::max(last, edge.arrivals.back());
        if (--running == 0) caller.wake();
      });
    }
    while (running > 0) caller.block();
    sleep_until(last);
  }
}

void Simulation::transmit(const Exchange& x, std::uint32_t group_class) {
  if (x.pattern == kNoPattern)
    sleep(x.cost.seconds);
  else if (plan_.options.fidelity == Fidelity::step_exact)
    flows_exactly(x, group_class);
  else
    flows(x, group_class);
}

void Simulation::note_stage_wait(ClassRun& c, double from) {
  auto& waits = c.stage_waits;
  for (; !waits.empty() && waits.back().second >= from; waits.pop_back()) from = std::min(from, waits.back().first);
  waits.emplace_back(from, now());
}

double Simulation::exchange(ClassRun& c, Self& self, std::uint32_t id, std::size_t stream, std::uint32_t name,
                            bool meet, bool moves, std::uint32_t& cause) {
  const Exchange& x = plan_.exchanges[id];
  const std::uint32_t group = traffic().group_class(x.communicator, c.first_rank);
  const auto& members = traffic().group_classes()[group].members;
  const auto note = [&](std::uint32_t rank_class, double begin, double end) {
    const auto [row, is_new] = exchange_rows_.try_emplace({rank_class, id, name}, out_.exchanges.size());
    if (is_new) out_.exchanges.push_back({.rank_class = rank_class, .exchange = id, .name = name});
    ExchangeRecord& r = out_.exchanges[row->second];
    r.times += 1;
    r.seconds += end - begin;
    if (end - begin > r.longest_end - r.longest_begin) {
      r.longest_begin = begin;
      r.longest_end = end;
    }
  };
  const auto run = [&] {
    if (moves)
      for (const std::uint32_t m : members) {
        ClassRun& other = *classes_[m];
        if (other.collectives++ == 0) interrupt(other);
      }
    transmit(x, group);
    if (moves)
      for (const std::uint32_t m : members) {
        ClassRun& other = *classes_[m];
        if (--other.collectives == 0) interrupt(other);
      }
  };
  if (!meet || members.size() == 1) {
    const double begin = now();
    run();
    note(c.id, begin, now());
    return begin;
  }

  const std::pair key{group, stream};
  std::deque<Meeting>& queue = meetings_[key];
  const std::size_t number = met_[{c.id, group, stream}]++;
  std::size_t& first = first_meeting_[key];
  while (first + queue.size() <= number) queue.emplace_back();
  Meeting& m = queue[number - first];
  if (m.arrived.empty()) {
    m.exchange = id;
    m.left = members.size();
  }
  const Exchange& theirs = plan_.exchanges[m.exchange];
  if (theirs.kind != x.kind || theirs.bytes != x.bytes)
    stall(
        fmt::format("ranks of one group disagree on what comes next at {:.6g} s: {} issues {} of {:.6g} bytes, {} {} "
                    "of {:.6g} bytes",
                    now(), words(c), name_of(x.kind), x.bytes, words(*classes_[m.arrived.front().first]),
                    name_of(theirs.kind), theirs.bytes));
  m.arrived.emplace_back(c.id, now());
  if (m.arrived.size() < members.size()) {
    m.waiting.push_back(&self);
    while (!m.done) self.block();
  } else {
    m.begin = now();
    m.cause = cause;
    for (const auto& [other, when] : m.arrived) {
      if (other == c.id || m.begin <= when) continue;
      if (classes_[other]->stage != c.stage) note_stage_wait(*classes_[other], when);
      const auto [row, is_new] = wait_rows_.try_emplace({other, c.id, name}, out_.waits.size());
      if (is_new) out_.waits.push_back({.rank_class = other, .for_class = c.id, .name = name});
      out_.waits[row->second].times += 1;
      out_.waits[row->second].seconds += m.begin - when;
    }
    run();
    m.done = true;
    for (Self* s : m.waiting) s->wake();
  }
  const double begin = m.begin;
  cause = m.cause;
  note(c.id, begin, now());
  if (--m.left == 0)
    while (!queue.empty() && queue.front().done && queue.front().left == 0) {
      queue.pop_front();
      ++first;
    }
  return begin;
}

}  // namespace orrery
