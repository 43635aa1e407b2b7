#include "sim/analytical/block_clock.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace orrery {
namespace {

constexpr auto kCompute = static_cast<std::size_t>(Stream::compute);
constexpr int kHost = kStreams;      // as the cause of a wait
constexpr double kRounding = 1e-14;  // relative to the time since the line's start

constexpr Account waiting_for(int cause) {
  return cause == kHost ? kHostIssue : waiting_for(static_cast<Stream>(cause));
}

// Of the streams whose work slows kernels beside it.
constexpr std::size_t kFabricStreams = std::count_if(kStreamRows.begin(), kStreamRows.end(), [](const StreamRow& row) {
  return row.occupies == Occupies::fabric;
});
constexpr std::array<std::size_t, kFabricStreams> fabric_streams() {
  std::array<std::size_t, kFabricStreams> streams{};
  std::size_t n = 0;
  for (std::size_t s = 0; s < kStreamRows.size(); ++s)
    if (kStreamRows[s].occupies == Occupies::fabric) streams[n++] = s;
  return streams;
}

constexpr bool is_asynchronous(std::size_t stream) { return kStreamRows[stream].asynchronous; }

}  // namespace

const char* name_of(BlockKind kind) {
  constexpr std::array<const char*, kBlockKinds> names{"forward", "backward", "weight_gradient", "update", "update"};
  return names[static_cast<std::size_t>(kind)];
}

void add(TimeBreakdown& to, const Accounts& from) {
  to.matmul += from[kMatmul];
  to.attention += from[kAttention];
  to.memory_bound += from[kMemoryBound];
  to.recompute += from[kRecompute];
  to.optimizer += from[kOptimizer];
  to.host_issue += from[kHostIssue];
  for (std::size_t s = 0; s < kStreams; ++s) to.exposed[s] += from[kExposed + s];
}

const BlockCode& LineClock::code_of(std::int64_t index) const {
  std::size_t i = 0;
  while (index >= line_[i].count) index -= line_[i++].count;
  return *line_[i].code;
}

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
    if (time > s_.free[stream] && node.moves) s_.busy_begin[stream] = time;
    ends[k] = s_.free[stream] = std::max(s_.free[stream], time) + node.seconds;
    s_.work[stream] += node.seconds;
    s_.host += node.host;
  }
}

template <bool Record>
double LineClock::overlap_seconds(double start, double seconds) {
  double from = start + seconds, until = start;
  static constexpr auto kStreamsOfFabric = fabric_streams();
  for (const std::size_t s : kStreamsOfFabric) {
    if (s_.free[s] <= start) continue;
    from = std::min(from, std::max(start, s_.busy_begin[s]));
    until = std::max(until, s_.free[s]);
  }
  const double beside = seconds - (from - start);  // what remains to be done when the collective is there
  const double room = (until - from) / (1 + slowdown_);
  if constexpr (Record) {
    slacks_.push_back(std::abs(until - start));
    slacks_.push_back(std::abs(beside));
    slacks_.push_back(std::abs(room - beside));
  }
  return std::max(0.0, std::min(beside, room)) * slowdown_;
}

template <bool Record>
void LineClock::instance(const LineItem& item, std::int64_t at, std::int64_t base) {
  const BlockCode& code = *item.code;
  const std::int64_t index = base + at;
  double& compute = s_.free[kCompute];
  bool began = false;
  const auto begin = [&](double time) {
    order_.when_starts(index,
                       [&](std::int64_t target, int least, int most) { issue_prefetched(target, least, most, time); });
  };
  std::size_t prefetched = 0;
  ++walked_;
  s_.host += code.graph_host_seconds;

  const std::span<const ClockNode> nodes = code.nodes;
  for (std::size_t k = 0; k < nodes.size(); ++k) {
    const ClockNode& node = nodes[k];
    if (node.prefetch > 0) {
      end_[k] = first_part_[k] = ahead_slot(index)[prefetched++];
      continue;
    }
    end_[k] = first_part_[k] = 0;  // if it does not run: nothing to wait for
    if ((node.when & when_) == 0 || (node.once && index != once_at_)) continue;
    double seconds = node.seconds, last_seconds = node.last_seconds;
    if (node.every > 1) {
      const std::int64_t instances = instances_covered(node.every, item.place(at));
      if (instances == 0) continue;
      if (instances != node.every) {
        const OpCost cost = code.model->cost(code.ops[node.op], code.piece->tensors, instances);
        seconds = cost.seconds;
        last_seconds = cost.last_seconds;
      }
    }

    const auto stream = static_cast<std::size_t>(node.stream);
    double start = s_.free[stream];
    int cause = static_cast<int>(stream);
    [[maybe_unused]] const std::size_t first_slack = slacks_.size();
    const auto after = [&](double time, int by) {
      if constexpr (Record) slacks_.push_back(time);
      if (time <= start) return;
      start = time;
      cause = by;
    };
    if constexpr (Record) slacks_.push_back(start);
    if (node.host_first > 0 || code.graph_host_seconds > 0) after(s_.host + node.host_first, kHost);
    if (node.waits_for_compute) after(compute, static_cast<int>(kCompute));
    double tail = 0;  // when what it depends on part by part has ended
    int tail_cause = 0;
    for (std::size_t d = node.first_dep; d < node.first_dep + node.deps; ++d) {
      const std::uint16_t from = code.deps[d];
      if (from == BlockCode::kEntry) {
        after(s_.entry, static_cast<int>(entry_stream_));
        continue;
      }
      const ClockNode& producer = nodes[from];
      const bool in_parts = node.count > 1 && producer.count == node.count;
      after(in_parts ? first_part_[from] : end_[from], static_cast<int>(producer.stream));
      if (in_parts && end_[from] > tail) {
        tail = end_[from];
        tail_cause = static_cast<int>(producer.stream);
      }
    }
    if constexpr (Record)
      for (std::size_t i = first_slack; i < slacks_.size(); ++i) slacks_[i] = start - slacks_[i];

    double end = 0;
    if (stream == kCompute) {
      if (!began) {
        began = true;
        if (order_.longest > 0) begin(start);
      }
      s_.accounts[waiting_for(cause)] += start - compute;
      if (!node.counted) s_.accounts[node.account] += seconds;
      if (slowdown_ > 0 && !node.moves) {
        const double extra = overlap_seconds<Record>(start, seconds);
        if (extra > 0)
          for (std::size_t a = 0; a < node.kernel_seconds.size(); ++a)
            s_.accounts[a] += extra * node.kernel_seconds[a] / node.seconds;
        seconds += extra;
      }
      end = start + seconds;
      if (node.host > node.host_first) {
        const double host_end = s_.host + node.host_bound;
        if constexpr (Record) slacks_.push_back(std::abs(end - host_end));
        if (host_end > end) {
          s_.accounts[kHostIssue] += host_end - end;
          end = host_end;
        }
      }
    } else {
      if (node.moves && start > s_.free[stream]) s_.busy_begin[stream] = start;
      end = start + seconds;
    }
    if (tail > 0) {
      const double tail_end = tail + last_seconds;
      if constexpr (Record) slacks_.push_back(std::abs(end - tail_end));
      if (tail_end > end) {
        if (stream == kCompute) s_.accounts[waiting_for(tail_cause)] += tail_end - end;
        end = tail_end;
      }
    }
    s_.work[stream] += seconds;
    s_.free[stream] = end_[k] = end;
    first_part_[k] = start + last_seconds;
    s_.host += node.host;
  }
  if (!began && order_.longest > 0) begin(std::max(compute, s_.host));

  double exit = -1;
  if (code.exit_compute != BlockCode::kNone) {
    exit = end_[code.exit_compute];
    entry_stream_ = Stream::compute;
  }
  if (code.exit_other != BlockCode::kNone) {
    const double other = end_[code.exit_other];
    if constexpr (Record)
      if (exit >= 0) slacks_.push_back(std::abs(exit - other));
    if (other > exit) {
      exit = other;
      entry_stream_ = code.nodes[code.exit_other].stream;
    }
  }
  if (exit >= 0) s_.entry = exit;
}

void LineClock::snapshot(std::int64_t index, std::vector<double>& x) const {
  x.resize(kStateSize + static_cast<std::size_t>(order_.longest * ahead_nodes_));
  std::memcpy(x.data(), &s_, sizeof(State));
  auto out = x.begin() + static_cast<std::ptrdiff_t>(kStateSize);
  for (std::int64_t target = index; target < index + order_.longest; ++target) {
    const auto slot = ahead_end_.begin() + target % (order_.longest + 1) * ahead_nodes_;
    out = std::copy(slot, slot + ahead_nodes_, out);
  }
}

void LineClock::restore(std::int64_t index, const std::vector<double>& x) {
  std::memcpy(static_cast<void*>(&s_), x.data(), sizeof(State));
  auto in = x.begin() + static_cast<std::ptrdiff_t>(kStateSize);
  for (std::int64_t target = index; target < index + order_.longest; ++target, in += ahead_nodes_)
    std::copy(in, in + ahead_nodes_, ahead_slot(target));
}

std::int64_t LineClock::steady_periods(std::int64_t most) const {
  double scale = 0;
  for (double x : x2_) scale = std::max(scale, std::abs(x));
  const double tolerance = kRounding * scale;
  for (std::size_t i = 0; i < x2_.size(); ++i)
    if (std::abs((x2_[i] - x1_[i]) - (x1_[i] - x0_[i])) > tolerance) return 0;
  if (slacks_.size() != last_slacks_.size()) return 0;
  for (std::size_t i = 0; i < slacks_.size(); ++i) {
    const double shrinking = last_slacks_[i] - slacks_[i];
    if (shrinking <= tolerance) continue;
    most = std::min(most, static_cast<std::int64_t>(std::min(slacks_[i] / shrinking, 1e9)));
  }
  return most;
}

void LineClock::walk(const LineItem& item, std::int64_t base) {
  const std::int64_t count = item.count;
  // The last instances differ: they start other pieces ahead, or nothing, and end the norm.
  const std::int64_t margin = std::max<std::int64_t>(order_.longest, 1);
  // Instances after which the state may repeat: buckets fill; and streams that wait for each other across instances
  // may take turns (the cyclicity of a max-plus system), so longer periods are tried when one shows no steady advance.
  std::int64_t multiple = 1, period = item.code->period;
  constexpr int kPatience = 4;  // periods of one length
  std::int64_t at = 0;
  int known = 0;  // periods in a row, of which the state after the last three is in x0, x1, x2
  while (at < count) {
    if (!jump_ || count - at - margin < (known < 3 ? 4 - known : 1) * period) {
      instance<false>(item, at++, base);
      continue;
    }
    slacks_.clear();
    for (std::int64_t i = 0; i < period; ++i) instance<true>(item, at++, base);
    std::swap(x0_, x1_);
    std::swap(x1_, x2_);
    snapshot(base + at, x2_);
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

void LineClock::run(std::span<const LineItem> line, WhenSet when, double overlap_slowdown, bool drain,
                    LineResult& result, bool jump) {
  line_ = line;
  when_ = when;
  slowdown_ = overlap_slowdown;
  jump_ = jump;
  s_ = {};
  order_ = {};
  ahead_nodes_ = 0;
  entry_stream_ = Stream::compute;
  std::size_t nodes = 0;
  for (const LineItem& item : line) {
    order_.length += item.count;
    if (item.code->once) once_at_ = order_.length - 1;
    nodes = std::max(nodes, item.code->nodes.size());
    ahead_nodes_ = std::max(ahead_nodes_, static_cast<std::int64_t>(item.code->prefetched.size()));
    for (std::uint16_t k : item.code->prefetched)
      order_.longest = std::max(order_.longest, static_cast<std::int64_t>(item.code->nodes[k].prefetch));
  }
  if (end_.size() < nodes) {
    end_.resize(nodes);
    first_part_.resize(nodes);
  }
  order_.longest = std::min(order_.longest, order_.length);
  ahead_end_.assign(static_cast<std::size_t>((order_.longest + 1) * ahead_nodes_), 0.0);
  order_.at_beginning([&](std::int64_t target, int least, int most) { issue_prefetched(target, least, most, 0); });

  std::int64_t base = 0;
  for (const LineItem& item : line) {
    walk(item, base);
    base += item.count;
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
  result.seconds = end;
  result.accounts = s_.accounts;
  result.accounts[waiting_for(cause)] += end - s_.free[kCompute];
  for (const LineItem& item : line)
    for (std::size_t w = 0; w < item.code->busy.size(); ++w)
      if ((when & item.code->conditions & bit(static_cast<When>(w))) != 0)
        for (std::size_t a = 0; a < kAccounts; ++a)
          result.accounts[a] += static_cast<double>(item.count) * item.code->busy[w][a];
  result.stream_work = s_.work;
  for (std::size_t s = 0; s < kStreams; ++s) result.stream_end[s] = is_asynchronous(s) && !drain ? s_.free[s] : 0;
}

}  // namespace orrery
