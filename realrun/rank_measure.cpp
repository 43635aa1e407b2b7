// Where the seconds of a measured step went.
#include <algorithm>
#include <map>
#include <tuple>

#include "realrun/rank.h"

namespace orrery::realrun {

void Rank::measure_step(Backend::Mark begin, Backend::Mark end) {
  const double seconds = backend_.seconds(begin, end);
  if (!measuring_) {
    result_.step_seconds.push_back(seconds);
    return;
  }
  result_.marked_step_seconds.push_back(seconds);
  // A CPU does one thing after the other; elsewhere what the compute stream does not do it waits for.
  const bool serial = backend_.facts().kind == "cpu";
  TimeBreakdown time;
  std::map<std::tuple<std::uint16_t, std::uint8_t, std::uint16_t>, std::pair<double, std::int64_t>> sums;
  result_.intervals.clear();
  double compute_end = 0, accounted = 0;
  for (const Issue& issue : issues_) {
    const double from = backend_.seconds(begin, issue.begin), length = backend_.seconds(issue.begin, issue.end);
    const auto account = [&](double& term, double value) {
      term += value;
      accounted += value;
    };
    const auto waiting_for = [&](Stream stream) -> double& {
      return time.exposed[static_cast<std::size_t>(row_of(stream).account)];
    };
    const Op* op = nullptr;
    if (!issue.between_stages && !issue.reduces_norm) {
      op = &(program_.pieces[issue.piece].*kBlocks[issue.block]).ops[issue.op];
      auto& [total, calls] = sums[{issue.piece, issue.block, issue.op}];
      total += length;
      ++calls;
    }
    if (issue.stream == Stream::compute && op != nullptr) {
      if (!serial && from > compute_end) {
        int waited = 0;  // the last of the streams it waited for
        for (int s = 1; s < kStreams; ++s)
          if (issue.waited_for >> s & 1u) waited = s;
        double& gap = waited == static_cast<int>(Stream::pipeline_communication) ? time.bubble
                      : waited > 0 ? waiting_for(static_cast<Stream>(waited))
                                   : time.host_issue;
        account(gap, from - compute_end);
      }
      compute_end = from + length;
      account(is_communication(op->kind)      ? waiting_for(op->account)
              : op->phase == Phase::recompute ? time.recompute
              : op->phase == Phase::update    ? time.optimizer
              : is_matmul(op->kind)           ? time.matmul
              : is_attention(op->kind)        ? time.attention
                                              : time.memory_bound,
              length);
    } else if (serial) {
      account(issue.receives ? time.bubble : waiting_for(issue.stream), length);
    }
    Interval interval;
    interval.stage = static_cast<std::int32_t>(position_.pp);
    interval.stream = issue.stream;
    interval.kind = issue.block == 3 ? 3 : issue.block;
    interval.micro_batch = static_cast<std::uint32_t>(std::max<std::int64_t>(issue.micro_batch, 0));
    interval.begin_seconds = from, interval.end_seconds = from + length;
    interval.name = op != nullptr        ? op->name
                    : issue.reduces_norm ? "gradient_norm.all_reduce"
                    : issue.receives     ? "receive"
                                         : "send";
    result_.intervals.push_back(interval);
  }
  time.host_issue += std::max(0.0, seconds - accounted);  // between the ops, and after the last
  const auto add = [](TimeBreakdown& to, const TimeBreakdown& from) {
    to.matmul += from.matmul, to.attention += from.attention, to.memory_bound += from.memory_bound;
    to.recompute += from.recompute, to.host_issue += from.host_issue, to.bubble += from.bubble;
    to.optimizer += from.optimizer;
    for (std::size_t s = 0; s < kStreams; ++s) to.exposed[s] += from.exposed[s];
  };
  add(result_.time, time);
  for (const auto& [key, sum] : sums) {
    const auto& [piece, block, op] = key;
    auto row = std::find_if(result_.ops.begin(), result_.ops.end(),
                            [&](const MeasuredOp& m) { return m.piece == piece && m.block == block && m.op == op; });
    if (row == result_.ops.end()) {
      row = result_.ops.insert(result_.ops.end(), MeasuredOp{});
      row->piece = piece, row->block = block, row->op = op;
    }
    row->times_per_step = static_cast<double>(sum.second);
    row->seconds.push_back(sum.first / static_cast<double>(sum.second));
  }
  issues_.clear();
}

}  // namespace orrery::realrun
