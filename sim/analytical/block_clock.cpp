#include "sim/analytical/block_clock.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace orrery {
namespace {

constexpr auto kCompute = static_cast<std::size_t>(Stream::compute);
constexpr int kHost = kStreams;      // the cause of a wait for the host
constexpr double kRounding = 1e-14;  // relative to the time since the line's start

constexpr Account waiting_for(int cause) {
  return cause == kHost ? kHostIssue : waiting_for(static_cast<Stream>(cause));
}

// Whether a node is served in a queue of the shared fabric, if levels are shared.
constexpr bool is_queued(const ClockNode& node) {
  return node.stream != Stream::compute && (node.moves || row_of(node.stream).occupies == Occupies::fabric);
}

constexpr bool is_asynchronous(std::size_t stream) { return kStreamRows[stream].asynchronous; }

}  // namespace

void add(TimeBreakdown& to, const Accounts& from) {
  to.matmul += from[kMatmul];
  to.attention += from[kAttention];
  to.memory_bound += from[kMemoryBound];
  to.recompute += from[kRecompute];
  to.optimizer += from[kOptimizer];
  to.slowest_device += from[kSlowestDevice];
  to.host_issue += from[kHostIssue];
  for (std::size_t s = 0; s < kStreams; ++s) to.exposed[s] += from[kExposed + s];
}

const BlockCode& LineClock::code_of(std::int64_t index) const {
  std::size_t i = 0;
  while (index >= line_[i].count) index -= line_[i++].count;
  return *line_[i].code;
}

SharedFabric::Ticket LineClock::issue(const BlockCode& code, const ClockNode& node, std::int64_t instances,
                                      double release, double last_release) {
  FabricWork work{.latency_seconds = node.last_seconds};
  if (node.moves) work = fabric_work(code.model->collective(code.ops[node.op], code.piece->tensors, instances));
  const auto stream = static_cast<std::size_t>(node.stream);
  SharedFabric::Ticket ticket = 0;
  for (int part = 0; part < node.count; ++part) {
    const double later = node.count > 1 ? (last_release - release) * part / (node.count - 1) : 0;
    ticket = fabric_.issue(stream, release + later, work, s_.free[kCompute]);
  }
  return ticket;
}

template <bool Shared>
double LineClock::end_of(const ClockNode& node, std::size_t k, bool first_part) {
  if (Shared && end_[k] > 0 && is_queued(node))
    return fabric_.end(static_cast<std::size_t>(node.stream),
                       static_cast<SharedFabric::Ticket>(end_[k]) - (first_part ? node.count : 1));
  return first_part ? first_part_[k] : end_[k];
}

void LineClock::trace_wait(double begin, double end, Account account) {
  if (end > begin) traced_->push_back({.account = account, .begin = begin, .end = end});
}

// Records a node's kernels one after the other. If the host bounds the node, each kernel waits until the host has
// issued it; otherwise the kernels share the node's slow-down.
void LineClock::trace_kernels(const BlockCode& code, std::size_t k, std::int64_t instances, double begin, double end,
                              double seconds) {
  const ClockNode& node = code.nodes[k];
  const std::size_t last = k + 1 < code.nodes.size() ? code.nodes[k + 1].op : code.ops.size();
  const auto is_absent = [](const OpCost& cost) { return cost.absent; };
  const auto costs = std::span(code.costs).subspan(node.op, last - node.op);
  if (node.moves || node.count > 1 || costs.size() - std::count_if(costs.begin(), costs.end(), is_absent) == 1) {
    traced_->push_back({&code, node.op, instances, node.stream, kHostIssue, begin, end});
    return;
  }
  const bool host_bounds = end > begin + seconds;
  const double slowed = host_bounds || node.seconds <= 0 ? 1 : seconds / node.seconds;
  double time = begin, issued = s_.host;
  for (std::size_t i = node.op; i < last; ++i) {
    if (code.costs[i].absent) continue;
    issued += code.host[i];
    if (host_bounds && issued > time) {
      trace_wait(time, issued, kHostIssue);
      time = issued;
    }
    const double until = time + slowed * code.costs[i].seconds;
    traced_->push_back({&code, static_cast<std::uint16_t>(i), instances, node.stream, kHostIssue, time, until});
    time = until;
  }
  traced_->back().end = end;  // equal except for rounding
}

void LineClock::trace_queued(const BlockCode& code, const ClockNode& node, std::int64_t instances,
                             SharedFabric::Ticket last) {
  traced_tickets_.push_back({traced_->size(), last + 1 - node.count, last});
  traced_->push_back({.code = &code, .op = node.op, .instances = instances, .stream = node.stream});
}

template <bool Shared, bool Traced>
void LineClock::issue_prefetched(std::int64_t target, int least_distance, int most_distance, double time) {
  const BlockCode& code = code_of(target);
  double* ends = ahead_slot(target);
  for (std::size_t k = 0; k < code.prefetched.size(); ++k) {
    const ClockNode& node = code.nodes[code.prefetched[k]];
    if (node.prefetch < least_distance || node.prefetch > most_distance) continue;
    if ((node.when & when_) == 0) {
      ends[k] = 0;
      continue;
    }
    const auto stream = static_cast<std::size_t>(node.stream);
    s_.host += node.host;
    const std::int64_t instances = node.every == kAllInstances ? 1 : node.every;
    if (Shared && is_queued(node)) {
      const SharedFabric::Ticket ticket = issue(code, node, instances, time, time);
      if constexpr (Traced) trace_queued(code, node, instances, ticket);
      ends[k] = static_cast<double>(ticket + 1);
      s_.work[stream] += node.seconds;
      continue;
    }
    [[maybe_unused]] const double begin = std::max(s_.free[stream], time);
    if (time > s_.free[stream] && node.moves) s_.busy_begin[stream] = time;
    ends[k] = s_.free[stream] = std::max(s_.free[stream], time) + node.seconds;
    if constexpr (Traced) traced_->push_back({&code, node.op, instances, node.stream, kHostIssue, begin, ends[k]});
    s_.work[stream] += node.seconds;
  }
}

template <bool Record, bool Shared>
double LineClock::overlap_seconds(double start, double seconds) {
  double from = start + seconds, until = start;
  if constexpr (Shared) {
    const SharedFabric::Stretch busy = fabric_.busy(start, start + seconds * (1 + slowdown_));
    from = std::min(from, busy.from);
    until = std::max(until, busy.until);
    // The backlog that the line found on the streams ends at some time, possibly after this kernel.
    if (Record && found_work_)
      for (const std::size_t s : kFabricStreams) slacks_.push_back(std::abs(fabric_.end(s) - start));
  } else {
    for (const std::size_t s : kFabricStreams) {
      if (s_.free[s] <= start) continue;
      from = std::min(from, std::max(start, s_.busy_begin[s]));
      until = std::max(until, s_.free[s]);
    }
  }
  const double beside = seconds - (from - start);  // seconds of work left when the collective starts
  const double room = (until - from) / (1 + slowdown_);
  if constexpr (Record) {
    slacks_.push_back(std::abs(until - start));
    slacks_.push_back(std::abs(beside));
    slacks_.push_back(std::abs(room - beside));
  }
  return std::max(0.0, std::min(beside, room)) * slowdown_;
}

// The time at which a node may start, by the last of its dependencies; and the time at which dependencies that are met
// part by part have ended.
struct LineClock::Start {
  double time = 0, tail = 0;
  int cause = 0, tail_cause = 0;
};

template <bool Record, bool Shared>
[[gnu::always_inline]] inline LineClock::Start LineClock::start_of(const BlockCode& code, const ClockNode& node,
                                                                   bool queued) {
  const auto stream = static_cast<std::size_t>(node.stream);
  Start start{.time = queued ? 0 : s_.free[stream], .cause = static_cast<int>(stream)};
  [[maybe_unused]] const std::size_t first_slack = slacks_.size();
  const auto after = [&](double time, int by) {
    if constexpr (Record) slacks_.push_back(time);
    if (time <= start.time) return;
    start.time = time;
    start.cause = by;
  };
  if constexpr (Record) slacks_.push_back(start.time);
  if (node.host_first > 0 || code.graph_host_seconds > 0) after(s_.host + node.host_first, kHost);
  if (node.waits_for_compute) after(s_.free[kCompute], static_cast<int>(kCompute));
  if (buffer_free_ > 0 && stream == kCompute) after(buffer_free_, static_cast<int>(copying_stream_));
  for (std::size_t d = node.first_dep; d < node.first_dep + node.deps; ++d) {
    const std::uint16_t from = code.deps[d];
    if (from == BlockCode::kEntry) {
      after(s_.entry, static_cast<int>(entry_stream_));
      continue;
    }
    const ClockNode& producer = code.nodes[from];
    const bool in_parts = node.count > 1 && producer.count == node.count;
    const double produced = end_of<Shared>(producer, from);
    after(in_parts ? end_of<Shared>(producer, from, true) : produced, static_cast<int>(producer.stream));
    if (in_parts && produced > start.tail) {
      start.tail = produced;
      start.tail_cause = static_cast<int>(producer.stream);
    }
  }
  if constexpr (Record)
    for (std::size_t i = first_slack; i < slacks_.size(); ++i) slacks_[i] = start.time - slacks_[i];
  return start;
}

// Runs a node on the compute stream and returns its end. `seconds`: on entry alone, on return with all slow-downs.
template <bool Record, bool Shared>
[[gnu::always_inline]] inline double LineClock::run_on_compute(const BlockCode& code, const ClockNode& node,
                                                               std::int64_t instances, Start& start, double& seconds) {
  s_.accounts[waiting_for(start.cause)] += start.time - s_.free[kCompute];
  if (Shared && node.moves) {
    const double last_release = std::max(start.time, start.tail);
    seconds = fabric_.end(kCompute, issue(code, node, instances, start.time, last_release)) - start.time;
    start.tail = 0;
  }
  if (!node.counted) s_.accounts[node.account] += seconds;
  if (slowdown_ > 0 && !node.moves) {
    const double extra = overlap_seconds<Record, Shared>(start.time, seconds);
    if (extra > 0)
      for (std::size_t a = 0; a < node.kernel_seconds.size(); ++a)
        s_.accounts[a] += extra * node.kernel_seconds[a] / node.seconds;
    seconds += extra;
  }
  double end = start.time + seconds;
  if (node.host > node.host_first) {
    const double host_end = s_.host + node.host_bound;
    if constexpr (Record) slacks_.push_back(std::abs(end - host_end));
    if (host_end > end) {
      s_.accounts[kHostIssue] += host_end - end;
      end = host_end;
    }
  }
  return end;
}

// The time at which the block's output is ready for the next instance.
template <bool Record, bool Shared>
[[gnu::always_inline]] inline void LineClock::hand_on(const BlockCode& code) {
  double exit = -1;
  if (code.exit_compute != BlockCode::kNone) {
    exit = end_of<Shared>(code.nodes[code.exit_compute], code.exit_compute);
    entry_stream_ = Stream::compute;
  }
  if (code.exit_other != BlockCode::kNone) {
    const double other = end_of<Shared>(code.nodes[code.exit_other], code.exit_other);
    if constexpr (Record)
      if (exit >= 0) slacks_.push_back(std::abs(exit - other));
    if (other > exit) {
      exit = other;
      entry_stream_ = code.nodes[code.exit_other].stream;
    }
  }
  if (exit >= 0) s_.entry = exit;
}

template <bool Record, bool Shared, bool Traced>
void LineClock::instance(const LineItem& item, std::int64_t at, std::int64_t base) {
  const BlockCode& code = *item.code;
  const std::int64_t index = base + at;
  bool began = false;
  const auto begin = [&](double time) {
    if (all_ahead_) return;
    order_.when_starts(index, [&](std::int64_t target, int least, int most) {
      issue_prefetched<Shared, Traced>(target, least, most, time);
    });
  };
  std::size_t prefetched = 0;
  ++walked_;
  s_.host += code.graph_host_seconds;
  if (takes_turns_) {
    buffer_free_ = s_.copied[0];
    std::shift_left(s_.copied.begin(), s_.copied.end(), 1);
    s_.copied.back() = 0;
  }

  const std::span<const ClockNode> nodes = code.nodes;
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const ClockNode& node = nodes[k];
    if (node.prefetch > 0) {
      end_[k] = first_part_[k] = ahead_slot(index)[prefetched++];
      continue;
    }
    end_[k] = first_part_[k] = 0;  // it does not run: others need not wait for it
    if ((node.when & when_) == 0 || (node.once && index != once_at_)) continue;
    double seconds = node.seconds, last_seconds = node.last_seconds;
    std::int64_t instances = 1;
    if (node.every > 1 || node.covers != Covers::own) {
      instances = instances_covered(node.every, item.place(at), node.covers);
      if (instances == 0) continue;
      if (instances != node.every) {
        const OpCost cost = code.model->cost(code.ops[node.op], code.piece->tensors, instances);
        seconds = cost.seconds;
        last_seconds = cost.last_seconds;
      }
    }

    const auto stream = static_cast<std::size_t>(node.stream);
    if (node.host_waits) {
      if constexpr (Record) slacks_.push_back(std::abs(s_.host - s_.free[kCompute]));
      s_.host = std::max(s_.host, s_.free[kCompute]);
    }
    const bool queued = Shared && is_queued(node);
    Start start = start_of<Record, Shared>(code, node, queued);
    if (queued) {
      const SharedFabric::Ticket ticket = issue(code, node, instances, start.time, std::max(start.time, start.tail));
      if constexpr (Traced) trace_queued(code, node, instances, ticket);
      end_[k] = static_cast<double>(ticket + 1);
      s_.work[stream] += seconds;
      s_.host += node.host;
      continue;
    }
    double end = 0;
    if (stream == kCompute) {
      if (!began && node.op >= code.issues_ahead_from) {
        began = true;
        if (order_.longest > 0) begin(start.time);
      }
      end = run_on_compute<Record, Shared>(code, node, instances, start, seconds);
    } else {
      if (node.moves && start.time > s_.free[stream]) s_.busy_begin[stream] = start.time;
      end = start.time + seconds;
    }
    if (start.tail > 0) {
      const double tail_end = start.tail + last_seconds;
      if constexpr (Record) slacks_.push_back(std::abs(end - tail_end));
      if (tail_end > end) {
        if (stream == kCompute) s_.accounts[waiting_for(start.tail_cause)] += tail_end - end;
        end = tail_end;
      }
    }
    if constexpr (Traced) {
      if (stream == kCompute) {
        trace_wait(s_.free[kCompute], start.time, waiting_for(start.cause));
        trace_kernels(code, k, instances, start.time, end, seconds);
      } else {
        traced_->push_back({&code, node.op, instances, node.stream, kHostIssue, start.time, end});
      }
    }
    s_.work[stream] += seconds;
    if (node.buffers > 0) {
      double& copied = s_.copied[node.buffers - 1u];
      copied = std::max(copied, end);
      copying_stream_ = node.stream;
    }
    s_.free[stream] = end_[k] = end;
    first_part_[k] = start.time + last_seconds;
    s_.host += node.host;
  }
  if (!began && order_.longest > 0) begin(std::max(s_.free[kCompute], s_.host));
  hand_on<Record, Shared>(code);
}

void LineClock::snapshot(std::int64_t index, std::vector<double>& x, std::vector<double>& same) const {
  x.resize(kStateSize + static_cast<std::size_t>(order_.longest * ahead_nodes_));
  std::memcpy(x.data(), &s_, sizeof(State));
  auto out = x.begin() + static_cast<std::ptrdiff_t>(kStateSize);
  for (std::int64_t target = index; target < index + order_.longest; ++target) {
    const auto slot = ahead_end_.begin() + target % (order_.longest + 1) * ahead_nodes_;
    out = std::copy(slot, slot + ahead_nodes_, out);
  }
  if (!shared_) return;
  same.clear();
  fabric_.snapshot(x, same);
  for (std::int64_t target = index; target < index + order_.longest; ++target) {
    const BlockCode& code = code_of(target);
    const double* tickets = ahead_end_.data() + target % (order_.longest + 1) * ahead_nodes_;
    for (std::size_t k = 0; k < code.prefetched.size(); ++k) {
      const ClockNode& node = code.nodes[code.prefetched[k]];
      if (!is_queued(node) || tickets[k] == 0) continue;
      same.push_back(
          fabric_.place(static_cast<std::size_t>(node.stream), static_cast<SharedFabric::Ticket>(tickets[k]) - 1));
    }
  }
}

void LineClock::restore(std::int64_t index, const std::vector<double>& x) {
  std::memcpy(static_cast<void*>(&s_), x.data(), sizeof(State));
  auto in = x.begin() + static_cast<std::ptrdiff_t>(kStateSize);
  for (std::int64_t target = index; target < index + order_.longest; ++target, in += ahead_nodes_)
    std::copy(in, in + ahead_nodes_, ahead_slot(target));
  if (shared_) fabric_.move_to(&*in);
}

std::int64_t LineClock::steady_periods(std::int64_t most) const {
  if (x0_.size() != x2_.size() || x1_.size() != x2_.size()) return 0;
  double scale = 0;
  for (double x : x2_) scale = std::max(scale, std::abs(x));
  const double tolerance = kRounding * scale;
  for (std::size_t i = 0; i < x2_.size(); ++i)
    if (std::abs((x2_[i] - x1_[i]) - (x1_[i] - x0_[i])) > tolerance) return 0;
  if (shared_) {
    if (same1_.size() != same2_.size()) return 0;
    for (std::size_t i = 0; i < same2_.size(); ++i)
      if (std::abs(same2_[i] - same1_[i]) > tolerance) return 0;
  }
  if (slacks_.size() != last_slacks_.size()) return 0;
  for (std::size_t i = 0; i < slacks_.size(); ++i) {
    const double shrinking = last_slacks_[i] - slacks_[i];
    if (shrinking <= tolerance) continue;
    most = std::min(most, static_cast<std::int64_t>(std::min(slacks_[i] / shrinking, 1e9)));
  }
  return most;
}

template <bool Shared, bool Traced>
void LineClock::walk(const LineItem& item, std::int64_t base) {
  if constexpr (Traced) {
    for (std::int64_t at = 0; at < item.count; ++at) instance<false, Shared, true>(item, at, base);
    return;
  }
  const std::int64_t count = item.count;
  // The last instances differ from the others: they issue other pieces ahead, or none, and end the norm.
  const std::int64_t margin = std::max<std::int64_t>(order_.longest, 1);
  // The state may repeat after this many instances: buckets fill. Streams that wait for each other across instances may
  // take turns (the cyclicity of a max-plus system), so longer periods are tried if a period shows no steady advance.
  std::int64_t multiple = 1, period = item.code->period;
  constexpr int kPatience = 4;  // periods of one length
  std::int64_t at = 0;
  int known = 0;  // periods in a row; the state after the last three is in x0, x1, x2
  while (at < count) {
    if (all_ahead_ || count - at - margin < (known < 3 ? 4 - known : 1) * period) {
      instance<false, Shared, false>(item, at++, base);
      continue;
    }
    slacks_.clear();
    for (std::int64_t i = 0; i < period; ++i) instance<true, Shared, false>(item, at++, base);
    std::swap(x0_, x1_);
    std::swap(x1_, x2_);
    if constexpr (Shared) std::swap(same1_, same2_);
    snapshot(base + at, x2_, same2_);
    if (++known >= 3) {
      const std::int64_t periods = steady_periods((count - at - margin) / period);
      if (periods > 0) {
        for (std::size_t i = 0; i < x2_.size(); ++i) x2_[i] += static_cast<double>(periods) * (x2_[i] - x1_[i]);
        at += periods * period;
        restore(base + at, x2_);
        known = 0;
      } else if (known > kPatience) {
        period = ++multiple * item.code->period;
        known = 0;
      }
    }
    std::swap(slacks_, last_slacks_);
  }
}

template <bool Shared, bool Traced>
void LineClock::walk_line() {
  if (all_ahead_) {
    for (std::int64_t i = 0; i < order_.length; ++i) issue_prefetched<Shared, Traced>(i, 1, IssueAhead::kAny, 0);
    s_.host = std::max(s_.host, s_.free[kCompute]);  // the host waits for the input, too
  } else {
    order_.at_beginning(
        [&](std::int64_t target, int least, int most) { issue_prefetched<Shared, Traced>(target, least, most, 0); });
  }
  std::int64_t base = 0;
  for (const LineItem& item : line_) {
    walk<Shared, Traced>(item, base);
    base += item.count;
  }
}

void LineClock::run(std::span<const LineItem> line, WhenSet when, double overlap_slowdown, bool drain,
                    LineResult& result, const LineStart& start, std::vector<LineOp>* ops) {
  line_ = line;
  traced_ = ops;
  if (ops != nullptr) {
    ops->clear();
    traced_tickets_.clear();
  }
  when_ = when;
  slowdown_ = overlap_slowdown;
  all_ahead_ = start.waits_seconds > 0;
  s_ = {};
  s_.free[kCompute] = s_.entry = start.waits_seconds;
  s_.host = start.host_seconds;
  order_ = {};
  takes_turns_ = false;
  buffer_free_ = 0;
  ahead_nodes_ = 0;
  entry_stream_ = Stream::compute;
  std::size_t nodes = 0;
  StreamsByLevel on_level{};
  for (const LineItem& item : line) {
    for (std::size_t w = 0; w < item.code->on_level.size(); ++w)
      if ((when & bit(static_cast<When>(w))) != 0)
        for (std::size_t l = 0; l < kFabricLevels; ++l) on_level[l] |= item.code->on_level[w][l];
    order_.length += item.count;
    if (item.code->once) once_at_ = order_.length - 1;
    takes_turns_ = takes_turns_ || item.code->takes_turns;
    nodes = std::max(nodes, item.code->nodes.size());
    ahead_nodes_ = std::max(ahead_nodes_, static_cast<std::int64_t>(item.code->prefetched.size()));
    for (std::uint16_t k : item.code->prefetched)
      order_.longest = std::max(order_.longest, static_cast<std::int64_t>(item.code->nodes[k].prefetch));
  }
  if (end_.size() < nodes) {
    end_.resize(nodes);
    first_part_.resize(nodes);
  }
  order_.longest = all_ahead_ && order_.longest > 0 ? order_.length : std::min(order_.longest, order_.length);
  ahead_end_.assign(static_cast<std::size_t>((order_.longest + 1) * ahead_nodes_), 0.0);
  shared_ = (shares_levels_ && any_meet(on_level)) || beside_ || start.backlog != nullptr;
  result.carried = {};
  found_work_ = false;
  if (shared_) {
    if (start.backlog != nullptr) {
      found_work_ = std::ranges::any_of(*start.backlog, [](const auto& works) { return !works.empty(); });
      fabric_.begin_with(*start.backlog);
      for (std::size_t s = 0; s < kStreams; ++s)
        for (const FabricWork& work : (*start.backlog)[s]) result.carried[s] += work.alone();
    } else {
      fabric_.clear();
    }
    if (ops != nullptr)
      walk_line<true, true>();
    else
      walk_line<true, false>();
    for (std::size_t s = 0; s < kStreams; ++s)
      if (s != kCompute) s_.free[s] = std::max(s_.free[s], fabric_.end(s));
    if (ops != nullptr)
      for (const TracedTickets& tickets : traced_tickets_) {
        LineOp& op = (*ops)[tickets.at];
        op.begin = fabric_.begin(static_cast<std::size_t>(op.stream), tickets.first);
        op.end = fabric_.end(static_cast<std::size_t>(op.stream), tickets.last);
      }
  } else if (ops != nullptr) {
    walk_line<false, true>();
  } else {
    walk_line<false, false>();
  }

  double end = s_.free[kCompute];
  auto cause = static_cast<int>(kCompute);
  const auto after = [&](double time, Stream by) {
    if (time <= end) return;
    end = time;
    cause = static_cast<int>(by);
  };
  after(s_.entry, entry_stream_);
  for (std::size_t s = 0; s < kStreams; ++s)
    if (drain || !is_asynchronous(s)) after(s_.free[s], static_cast<Stream>(s));
  if (ops != nullptr) trace_wait(s_.free[kCompute], end, waiting_for(cause));
  if (start.backlog != nullptr) fabric_.leave(end, *start.backlog);
  result.seconds = end - start.waits_seconds;
  result.accounts = s_.accounts;
  result.accounts[waiting_for(cause)] += end - s_.free[kCompute];
  for (const LineItem& item : line)
    for (std::size_t w = 0; w < item.code->busy.size(); ++w)
      if ((when & item.code->conditions & bit(static_cast<When>(w))) != 0)
        for (std::size_t a = 0; a < kAccounts; ++a)
          result.accounts[a] += static_cast<double>(item.count) * item.code->busy[w][a];
  result.stream_work = s_.work;
  result.host = s_.host - end;
  for (std::size_t s = 0; s < kStreams; ++s)
    result.stream_end[s] = is_asynchronous(s) && !drain ? std::max(0.0, s_.free[s] - start.waits_seconds) : 0;
}

}  // namespace orrery
