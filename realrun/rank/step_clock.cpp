#include "realrun/rank/step_clock.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "sim/program/liveness.h"
#include "sim/report/terms.h"

namespace orrery::realrun {
namespace {

double& term_of(const Op& op, TimeBreakdown& time) {
  if (is_communication(op.kind)) return time.exposed[static_cast<std::size_t>(row_of(op.account).account)];
  if (op.phase == Phase::recompute) return time.recompute;
  if (op.phase == Phase::update) return time.optimizer;
  if (is_matmul(op.kind)) return time.matmul;
  return is_attention(op.kind) ? time.attention : time.memory_bound;
}

// The term for a gap of the compute stream, before an op that waited for other streams.
double& term_of_gap(std::uint64_t waited_for, TimeBreakdown& time) {
  int waited = 0;  // the last stream waited for
  for (int s = 1; s < kStreams; ++s)
    if (waited_for >> s & 1u) waited = s;
  if (waited == 0) return time.host_issue;
  const auto stream = static_cast<Stream>(waited);
  if (stream == Stream::pipeline_communication) return time.bubble;
  return time.exposed[static_cast<std::size_t>(row_of(stream).account)];
}

}  // namespace

void StepClock::add_step(Backend::Mark begin, Backend::Mark end, RankResult& result) {
  const double seconds = backend_.seconds(begin, end);
  result.seconds_by_step.push_back(seconds);
  if (!marking_) {
    result.step_seconds.push_back(seconds);
    return;
  }
  result.marked_step_seconds.push_back(seconds);
  add_terms(terms_of_step(begin, seconds), result.time);
  result.intervals.clear();
  for (const Issue& issue : issues_) result.intervals.push_back(interval_of(issue, begin));
  add_ops(result.ops);
  issues_.clear();
}

// A CPU does one thing after the other. Elsewhere, time in which the compute stream does nothing is waiting time.
TimeBreakdown StepClock::terms_of_step(Backend::Mark begin, double seconds) const {
  const bool serial = backend_.facts().kind == "cpu";
  TimeBreakdown time;
  double compute_end = 0, accounted = 0;
  const auto account = [&](double& term, double value) {
    term += value;
    accounted += value;
  };
  for (const Issue& issue : issues_) {
    const double from = backend_.seconds(begin, issue.begin), length = backend_.seconds(issue.begin, issue.end);
    if (issue.stream == Stream::compute && issue.op != nullptr) {
      if (!serial && from > compute_end) account(term_of_gap(issue.waited_for, time), from - compute_end);
      compute_end = from + length;
      account(term_of(*issue.op, time), length);
    } else if (serial) {
      account(issue.receives ? time.bubble : time.exposed[static_cast<std::size_t>(row_of(issue.stream).account)],
              length);
    }
  }
  time.host_issue += std::max(0.0, seconds - accounted);  // between the ops, and after the last one
  return time;
}

TimelineSpan StepClock::interval_of(const Issue& issue, Backend::Mark begin) const {
  const double from = backend_.seconds(begin, issue.begin);
  TimelineSpan interval;
  interval.stage = static_cast<std::int32_t>(position_.pp);
  interval.stream = issue.stream;
  interval.kind = issue.block;
  interval.micro_batch = static_cast<std::uint32_t>(std::max<std::int64_t>(issue.micro_batch, 0));
  interval.begin_seconds = from, interval.end_seconds = from + backend_.seconds(issue.begin, issue.end);
  interval.name = issue.op != nullptr ? issue.op->name : issue.receives ? "receive" : "send";
  return interval;
}

void StepClock::add_ops(std::vector<MeasuredOp>& ops) const {
  std::map<std::tuple<std::uint16_t, std::uint8_t, std::uint16_t>, std::pair<double, std::int64_t>> sums;
  for (const Issue& issue : issues_) {
    if (issue.op == nullptr) continue;
    auto& [total, calls] = sums[{issue.piece, issue.block, issue.number}];
    total += backend_.seconds(issue.begin, issue.end);
    ++calls;
  }
  for (const auto& [key, sum] : sums) {
    const auto& [piece, block, op] = key;
    auto row = std::find_if(ops.begin(), ops.end(),
                            [&](const MeasuredOp& m) { return m.piece == piece && m.block == block && m.op == op; });
    if (row == ops.end()) {
      row = ops.insert(ops.end(), MeasuredOp{});
      row->piece = piece, row->block = block, row->op = op;
    }
    row->times_per_step = static_cast<double>(sum.second);
    row->seconds.push_back(sum.first / static_cast<double>(sum.second));
  }
}

}  // namespace orrery::realrun
