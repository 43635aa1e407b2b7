#include "realrun/measured_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <span>

#include "sim/base/statistics.h"
#include "sim/program/liveness.h"
#include "sim/program/work.h"
#include "sim/report/format.h"
#include "sim/report/terms.h"
#include "strategies/expert_parallel/expert_parallel.h"
#include "strategies/precision/precision.h"

namespace orrery {

std::vector<double> slowest(const std::vector<RankResult>& ranks, std::vector<double> RankResult::*seconds) {
  std::vector<double> steps = ranks.front().*seconds;
  for (const RankResult& rank : ranks)
    for (std::size_t s = 0; s < steps.size(); ++s) steps[s] = std::max(steps[s], (rank.*seconds).at(s));
  return steps;
}

namespace {

double mean_of(std::span<const double> values) {
  return std::reduce(values.begin(), values.end()) / static_cast<double>(values.size());
}

}  // namespace

std::vector<double> step_samples(const Program& program, const std::vector<RankResult>& ranks,
                                 std::vector<double> RankResult::*seconds) {
  const std::vector<double> steps = slowest(ranks, seconds);
  const auto length = static_cast<std::size_t>(steps_of_iteration(program));
  std::vector<double> samples;
  for (std::size_t s = 0; s + length <= steps.size(); s += length)
    samples.push_back(mean_of(std::span(steps).subspan(s, length)));
  if (samples.empty() && !steps.empty()) samples.push_back(mean_of(steps));
  return samples;
}

namespace {

// Whether the op reads or writes rows of experts; only rows that were counted are then reported.
bool is_of_rows(const Op& op, const Piece& piece) {
  const auto has_slots = [&](TensorId id) { return id != kNoTensor && piece.tensors[id].find(Axis::slots) >= 0; };
  return std::ranges::any_of(op.reads, has_slots) || std::ranges::any_of(op.writes, has_slots);
}

void report_rows(const std::vector<RankResult>& ranks, Report& report) {
  RoutedRows all;
  expert_parallel::RoutedWork routing;
  for (const RankResult& rank : ranks) {
    const RoutedRows& rows = rank.rows;
    if (rows.layers == 0) continue;
    all.computed += rows.computed, all.slots += rows.slots;
    all.sent += rows.sent, all.slots_sent += rows.slots_sent;
    all.layers += rows.layers, all.sum_of_busiest_ranks += rows.sum_of_busiest_ranks;
    routing.busiest_rank = std::max(routing.busiest_rank, rows.busiest_rank);
    routing.busiest_expert = std::max(routing.busiest_expert, rows.busiest_expert);
  }
  if (all.layers == 0) return;
  routing.mean_busiest_rank = all.sum_of_busiest_ranks / all.layers;
  expert_parallel::append_figures(routing, report.figures);
  std::string note = fmt::format("experts computed {:.0f} rows, {} of their slots", all.computed,
                                 percent_text(all.computed / all.slots));
  if (all.slots_sent > 0)
    note += fmt::format("; {:.0f} rows were sent to other ranks, {} of the slots for them", all.sent,
                        percent_text(all.sent / all.slots_sent));
  note += fmt::format("; the busiest rank had {:.2f} times the mean, {:.2f} on average over layers",
                      routing.busiest_rank, routing.mean_busiest_rank);
  report.notes.push_back(note + " (one way, all layers, micro-batches and steps)");
}

std::vector<OpReport> op_reports(const Program& program, const RankResult& rank) {
  std::vector<OpReport> rows;
  for (const MeasuredOp& measured : rank.ops) {
    const Piece& piece = program.pieces.at(measured.piece);
    const Op& op = (piece.*kBlocks.at(measured.block)).ops.at(measured.op);
    OpReport row;
    row.name = fmt::format("{}.{}.{}", piece_title(program, measured.piece), kBlockNames[measured.block], op.name);
    row.piece = measured.piece;
    row.block = measured.block;
    row.stream = op.stream;
    row.seconds = median(measured.seconds);
    row.times_per_step = measured.times_per_step;
    row.flops = is_communication(op.kind) || op.kind == OpKind::copy ? 0 : flops(op, piece.tensors);
    row.bytes = bytes(op, piece.tensors);
    if (rank.rows.slots > 0 && is_of_rows(op, piece)) {  // slots beyond the rows were not computed
      const double filled = rank.rows.computed / rank.rows.slots;
      row.flops *= filled;
      row.bytes *= filled;
    }
    row.bound = "measured";
    // Several ops of a block may share a name: chunks of one product.
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const OpReport& other) {
      return other.name == row.name && other.flops == row.flops && other.bytes == row.bytes;
    });
    if (same == rows.end()) {
      rows.push_back(std::move(row));
    } else {
      const double times = same->times_per_step + row.times_per_step;
      same->seconds = (same->seconds * same->times_per_step + row.seconds * row.times_per_step) / times;
      same->times_per_step = times;
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const OpReport& a, const OpReport& b) {
    return a.seconds * a.times_per_step > b.seconds * b.times_per_step;
  });
  return rows;
}

}  // namespace

Report measured_report(const Scenario& scenario, const Program& program, const std::vector<RankResult>& ranks,
                       const BackendFacts& facts) {
  Report report;
  report.engine = "measured";
  report.devices = static_cast<std::int64_t>(ranks.size());
  const double devices = static_cast<double>(ranks.size());
  const std::vector<double> steps = step_samples(program, ranks, &RankResult::step_seconds),
                            marked = step_samples(program, ranks, &RankResult::marked_step_seconds);
  report.step_seconds = steps.empty() ? median(marked) : median(steps);
  const double step = report.step_seconds;
  const ModelWork& model = program.model;
  report.tokens_per_second = model.tokens_per_step / step;
  report.tokens_per_second_per_device = report.tokens_per_second / devices;
  report.sequences_per_second = model.sequences_per_step / step;
  report.model_flops_per_second_per_device = model.flops_per_step / step / devices;
  const double peak = scenario.cluster.device.peak(precision::peak_dtype(scenario));
  if (peak > 0) {
    report.mfu = report.model_flops_per_second_per_device / peak;
    report.mfu_full_attention = model.flops_per_step_full_attention / step / devices / peak;
  }

  std::int64_t stages = 0;
  for (const RankResult& rank : ranks) stages = std::max(stages, rank.stage + 1);
  report.stages.resize(static_cast<std::size_t>(stages));
  for (std::int64_t s = 0; s < stages; ++s) {
    StageReport& stage = report.stages[static_cast<std::size_t>(s)];
    stage.stage = s;
    for (const RankResult& rank : ranks) {
      if (rank.stage != s) continue;
      add_terms(rank.time, stage.time);
      if (rank.peak_bytes < stage.memory.peak_bytes) continue;
      stage.memory.peak_bytes = rank.peak_bytes;
      stage.memory.bytes = rank.bytes_at_peak;
    }
    const double total = stage.time.total();
    for (const TimeTerm& term : time_terms())
      if (total > 0) term.of(stage.time) *= step / total;
    stage.busy_seconds = step - stage.time.bubble;
  }
  const auto index_of = [&](auto less) {
    return std::min_element(report.stages.begin(), report.stages.end(), less) - report.stages.begin();
  };
  report.bounding_stage =
      index_of([](const StageReport& a, const StageReport& b) { return a.time.bubble < b.time.bubble; });
  report.memory_stage =
      index_of([](const StageReport& a, const StageReport& b) { return a.memory.peak_bytes > b.memory.peak_bytes; });
  summarise_bounding_stage(report);
  report.memory_peak_bytes = report.fullest().memory.peak_bytes;
  report.memory_capacity_bytes = scenario.cluster.device.memory_bytes;
  report.memory_fits = true;

  const RankResult* slow = nullptr;
  for (const RankResult& rank : ranks)
    if (rank.stage == report.bounding_stage &&
        (slow == nullptr || median(rank.marked_step_seconds) > median(slow->marked_step_seconds)))
      slow = &rank;
  report.ops = op_reports(program, *slow);
  double executed = 0;
  for (const OpReport& op : report.ops) executed += op.flops * op.times_per_step;
  if (peak > 0) report.hfu = executed / step / peak;
  for (const RankResult& rank : ranks)
    if (&rank == slow || rank.stage != report.bounding_stage)
      report.timeline.intervals.insert(report.timeline.intervals.end(), rank.intervals.begin(), rank.intervals.end());

  report_rows(ranks, report);
  report.notes.push_back(fmt::format("measured on {} ({}), {} rank{}", facts.device, facts.software, ranks.size(),
                                     ranks.size() == 1 ? "" : "s"));
  if (!steps.empty()) {
    const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
    if (const std::int64_t length = steps_of_iteration(program);
        static_cast<std::int64_t>(slowest(ranks, &RankResult::step_seconds).size()) < length)
      report.notes.push_back(
          fmt::format("fewer steps than the {} of an iteration were measured: the step time need not have its other "
                      "tasks (--steps {})",
                      length, 2 * length));
    report.notes.push_back(
        fmt::format("steps took {} to {}, or {} with marks around every op; the terms are measured with marks",
                    seconds_text(*least), seconds_text(*most), seconds_text(median(marked))));
  }
  return report;
}

double fastest_step_seconds(const Program& program, const std::vector<RankResult>& ranks) {
  std::vector<double> steps = step_samples(program, ranks, &RankResult::step_seconds);
  if (steps.empty()) steps = step_samples(program, ranks, &RankResult::marked_step_seconds);
  return steps.empty() ? 0 : *std::min_element(steps.begin(), steps.end());
}

}  // namespace orrery
