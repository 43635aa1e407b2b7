// The processing of ops by a stream.
#include <algorithm>
#include <cmath>
#include <random>

#include "sim/des/simgrid/run.h"

namespace orrery {

void SimgridRun::enqueue(SimulatedClass& c, Line& line, Work& w) {
  const auto stream = static_cast<std::size_t>(w.node->stream);
  StreamRun& s = c.streams[stream];
  s.queue.emplace_back(&w, &line);
  if (stream == kComputeStream) return;
  ++s.pending;
  if (line.ahead) ++s.ahead;
  ++line.left;
  if (!s.has_process) {
    s.has_process = true;
    clock_.start(serve(c, stream));
  } else {
    clock_.wake(s);
  }
}

Process SimgridRun::serve(SimulatedClass& c, std::size_t stream) {
  StreamRun& s = c.streams[stream];
  for (;;) {
    while (s.queue.empty()) co_await clock_.block(s);
    const auto [w, line] = s.queue.front();
    s.queue.pop_front();
    co_await perform(c, stream, *w, *line);
    --line->left;
    if (line->ahead) --s.ahead;
    if (--s.pending == s.ahead && s.drain_awaited) clock_.wake(c);
  }
}

Routine SimgridRun::await_work(Self& self, std::size_t stream, Work& other, Until until, int& cause,
                               std::uint32_t& cause_event) {
  while (!holds(other, until)) {
    other.waiters |= static_cast<std::uint16_t>(1u << stream);
    co_await clock_.block(self);
  }
  cause = other.node != nullptr ? static_cast<int>(other.node->stream) : static_cast<int>(kComputeStream);
  cause_event = other.done ? other.event : other.cause;
}

Routine SimgridRun::await(SimulatedClass& c, std::size_t stream, Work& w, int& cause, std::uint32_t& cause_event) {
  Self& self = waiter(c, static_cast<int>(stream));
  if (w.trigger != nullptr && !holds(*w.trigger, Until::started))
    co_await await_work(self, stream, *w.trigger, Until::started, cause, cause_event);
  for (Work* const before : {w.compute_before, w.buffer})
    if (before != nullptr && !holds(*before, Until::done))
      co_await await_work(self, stream, *before, Until::done, cause, cause_event);
  if (w.node->prefetch == 0) {
    for (std::size_t d = w.node->first_dep; d < w.node->first_dep + w.node->deps; ++d) {
      const std::uint16_t from = w.code->deps[d];
      if (from == BlockCode::kEntry) {
        for (Work* const entry : {w.entry, w.other_entry})
          if (entry != nullptr && !holds(*entry, Until::done))
            co_await await_work(self, stream, *entry, Until::done, cause, cause_event);
        continue;
      }
      Work& producer = w.instance[from];
      const Until until = w.node->count > 1 && producer.node->count == w.node->count ? Until::first_part : Until::done;
      if (!holds(producer, until)) co_await await_work(self, stream, producer, until, cause, cause_event);
    }
  }
  if (w.issued >= 0 || w.host_end >= 0) {
    if (w.waited != nullptr) {
      if (!holds(*w.waited, Until::started))
        co_await await_work(self, stream, *w.waited, Until::started, cause, cause_event);
      w.late = w.waited->late;
    }
    if (w.node->host_waits) w.late = std::max(w.late, now() - (w.issued - w.node->host_first));
    for (double* const time : {&w.issued, &w.host_end})
      if (*time >= 0) *time += w.late;
  }
  if (w.issued > now()) {
    co_await clock_.sleep_until(w.issued);
    cause = kHostCause;
  }
}

void SimgridRun::book_wait(SimulatedClass& c, Account account, double since) {
  double seconds = now() - since;
  for (auto wait = c.stage_waits.rbegin(); wait != c.stage_waits.rend() && wait->second > since; ++wait)
    seconds -= wait->second - std::max(wait->first, since);
  c.out.accounts[account] += seconds;
}

void SimgridRun::interrupt(SimulatedClass& c) {
  if (!c.in_kernel) return;
  c.in_kernel = false;
  clock_.wake(c);
}

double SimgridRun::jittered(SimulatedClass& c, double seconds, const std::vector<double>& kernels) {
  for (std::size_t i = 0; i < c.jitter.size(); ++i) {
    const Perturbation& p = *c.jitter_of[i];
    if (now() < p.from_seconds || (p.until_seconds > 0 && now() >= p.until_seconds)) continue;
    const double cv = p.coefficient_of_variation;
    const auto draw = [&] {
      switch (p.distribution) {
        case JitterDistribution::lognormal: {
          const double variance = std::log1p(cv * cv);
          return std::lognormal_distribution<double>(-variance / 2, std::sqrt(variance))(c.jitter[i]);
        }
        case JitterDistribution::gamma:
          return std::gamma_distribution<double>(1 / (cv * cv), cv * cv)(c.jitter[i]);
        case JitterDistribution::uniform:
          break;
      }
      return std::uniform_real_distribution<double>(1 - std::sqrt(3.0) * cv, 1 + std::sqrt(3.0) * cv)(c.jitter[i]);
    };
    double total = 0, drawn = 0;
    for (const double kernel : kernels) {
      total += kernel;
      drawn += kernel * draw();
    }
    seconds *= total > 0 ? drawn / total : draw();
  }
  return seconds;
}

// Runs a kernel in the process of the class. It is slower while collectives run.
Routine SimgridRun::kernel(SimulatedClass& c, double seconds, const std::vector<double>& kernels) {
  double left = jittered(c, seconds, kernels);
  const double slowdown = c.plan->overlap_slowdown;
  while (left > 0) {
    const double rate = c.rate / (c.collectives > 0 ? 1 + slowdown : 1);
    const double begin = now(), end = begin + left / rate;
    c.in_kernel = true;
    co_await clock_.block_for(c, left / rate);
    const bool interrupted = !c.in_kernel;
    c.in_kernel = false;
    if (!interrupted && now() >= end - 1e-12 * end) break;
    left -= (now() - begin) * rate;
  }
}

// Each waiter checks by itself whether its condition holds.
void SimgridRun::wake_waiters(SimulatedClass& c, Work& w) {
  const std::uint16_t waiting = w.waiters;
  w.waiters = 0;
  for (int s = 0; waiting >> s != 0; ++s)
    if ((waiting >> s & 1) != 0) clock_.wake(waiter(c, s));
}

void SimgridRun::finish(SimulatedClass& c, Work& w) {
  w.done = true;
  wake_waiters(c, w);
}

Routine SimgridRun::perform(SimulatedClass& c, std::size_t stream, Work& w, const Line& line) {
  StreamRun& s = c.streams[stream];
  const ClockNode& node = *w.node;
  const bool on_compute = stream == kComputeStream;
  const std::uint32_t name = w.name;
  const double free = now();
  int cause = static_cast<int>(stream);
  // The event that came last: the stream's previous work, or the line's start.
  std::uint32_t cause_event = on_compute || s.last_end >= line.begin ? s.last_event : line.cause;
  s.current = &w;
  co_await await(c, stream, w, cause, cause_event);
  double begin = now();
  const auto account = [&](int by) { return by == kHostCause ? kHostIssue : waiting_for(static_cast<Stream>(by)); };
  if (on_compute) book_wait(c, account(cause), free);
  w.started = true;
  w.cause = cause_event;
  wake_waiters(c, w);  // those that wait for the start

  // The work that it follows part by part.
  Work* leader = nullptr;
  if (node.count > 1)
    for (std::size_t d = node.first_dep; d < node.first_dep + node.deps; ++d)
      if (const std::uint16_t from = w.code->deps[d];
          from != BlockCode::kEntry && w.instance[from].node->count == node.count)
        leader = &w.instance[from];
  const bool is_kernel = w.exchange == kNoExchange;
  double busy = 0;
  for (std::uint16_t part = 0; part < node.count; ++part) {
    if (leader != nullptr && part > 0 && !leader->done && leader->parts_done <= part) {
      const double waiting_since = now();
      Self& self = waiter(c, static_cast<int>(stream));
      while (!leader->done && leader->parts_done <= part) {
        leader->waiters |= static_cast<std::uint16_t>(1u << stream);
        co_await clock_.block(self);
      }
      if (on_compute) book_wait(c, waiting_for(leader->node->stream), waiting_since);
    }
    const double part_begin = now();
    if (is_kernel) {
      const double seconds = w.seconds / node.count;
      if (on_compute)
        co_await kernel(c, seconds, c.plan->ops[name].kernels);
      else
        co_await clock_.sleep(seconds);
    } else {
      Beginning beginning{cause_event};
      co_await exchange(c, waiter(c, static_cast<int>(stream)), w.exchange, stream, name, true,
                        node.moves && !on_compute, beginning);
      cause_event = beginning.cause;
      if (part == 0) begin = beginning.time;
    }
    busy += now() - part_begin;
    if (node.count > 1) {
      ++w.parts_done;
      wake_waiters(c, w);
    }
  }
  if (on_compute) {
    if (!is_kernel || node.seconds <= 0) {
      c.out.accounts[node.account] += busy;
    } else {
      for (std::size_t a = 0; a < node.kernel_seconds.size(); ++a)
        c.out.accounts[a] += busy * node.kernel_seconds[a] / node.seconds;
    }
    if (w.host_end > now()) {
      c.out.accounts[kHostIssue] += w.host_end - now();
      co_await clock_.sleep_until(w.host_end);
    }
  }
  w.event = record({.begin = begin,
                    .end = now(),
                    .cause = cause_event,
                    .rank_class = c.id,
                    .name = name,
                    .chunk = w.covered,
                    .stream = static_cast<std::uint8_t>(stream),
                    .kind = EventRecord::op,
                    .slot_kind = 0,
                    .waited_for_host = cause == kHostCause});
  s.last_event = w.event;
  s.last_end = now();
  s.current = nullptr;
  finish(c, w);
}

}  // namespace orrery
