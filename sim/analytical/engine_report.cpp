// What a report holds on request: the table of ops, shapes without measured efficiencies, and the timeline.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "sim/analytical/engine_rep.h"
#include "sim/program/liveness.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

constexpr std::uint8_t kUpdateInterval = 3;  // Interval::kind beyond SlotKind

std::string shape_of(const Op& op, std::span<const Tensor> tensors) {
  if (is_matmul(op.kind)) {
    const GemmShape g = gemm_shape(op, tensors);
    const std::string batch = g.batch > 1 ? fmt::format("batch={} ", g.batch) : std::string();
    return fmt::format("{}m={} n={} k={} {}", batch, g.m, g.n, g.k, name_of(op.compute_dtype));
  }
  if (is_attention(op.kind)) {
    const AttentionShape a = attention_shape(op, tensors);
    return fmt::format("batch={} heads={} queries={} keys={} head_dim={} {}", a.batch, a.heads, a.queries, a.keys,
                       a.head_dim, name_of(op.compute_dtype));
  }
  return fmt::format("{:.0f} bytes", bytes(op, tensors));
}

// How often a node is reached in an item of a line.
struct Executions {
  std::int64_t instances = 1;  // that each covers
  std::int64_t times = 0;
};

template <class Visit>
void for_executions(std::uint16_t every, const LineItem& item, Visit&& visit) {
  const std::int64_t behind = item.before + item.count, full = behind / every - item.before / every;
  if (full > 0) visit(Executions{every, full});
  if (behind == item.in_stretch() && behind % every > 0) visit(Executions{behind % every, 1});
}

}  // namespace

void AnalyticalEngine::Rep::fill_ops(const Program& program, Report& report) const {
  const StageClass& c = classes[static_cast<std::size_t>(report.bounding_stage)];
  const auto& chunks = program.stages[static_cast<std::size_t>(c.first_stage)];
  const double n = static_cast<double>(program.schedule.micro_batches);

  // An op that runs once a line does so in the last run of a piece that has one.
  std::uint16_t once_piece = 0;
  for (const Chunk& chunk : chunks)
    for (const Run& run : chunk.runs)
      if (pieces[run.piece].block(BlockKind::norm).once) once_piece = run.piece;

  std::array<std::vector<LineItem>, kBlockKinds> items;
  for (std::size_t k = 0; k < kBlockKinds; ++k)
    for (const Chunk& chunk : chunks) {
      const auto kind = static_cast<BlockKind>(k);
      append_line(program.pieces, chunk.runs, kind == BlockKind::backward || kind == BlockKind::weight_gradient,
                  code_of(kind), items[k]);
    }

  for (std::size_t p = 0; p < program.pieces.size(); ++p) {
    if (!pieces[p].used) continue;
    const Piece& piece = program.pieces[p];
    const std::string title = piece_title(program, p);
    for (std::size_t k = 0; k < kBlockKinds; ++k) {
      const BlockCode& code = pieces[p].blocks[k];
      const bool update = is_of_update(static_cast<BlockKind>(k));
      for (std::size_t i = 0; i < code.ops.size(); ++i) {
        const Op& op = code.ops[i];
        if (code.costs[i].absent) continue;
        const bool once = std::any_of(code.nodes.begin(), code.nodes.end(),
                                      [&](const ClockNode& node) { return node.op == i && node.once; });
        const double lines_per_step = update || op.when != When::every_micro_batch ? 1 : n;
        const std::size_t first_row = report.ops.size();
        const auto note = [&](Executions e, double lines_of_run) {
          const double times = static_cast<double>(e.times) * lines_of_run * op.count;
          const OpCost cost = costs.cost(op, piece.tensors, e.instances);
          const double bytes_moved = bytes(op, piece.tensors) * static_cast<double>(e.instances) / op.count;
          for (std::size_t row = first_row; row < report.ops.size(); ++row) {
            if (report.ops[row].bytes != bytes_moved) continue;
            report.ops[row].times_per_step += times;
            return;
          }
          OpReport row;
          // What runs once for all instances is of all layers, whatever their plans.
          const std::string_view of = once || op.every == kAllInstances ? std::string_view(piece.name) : title;
          row.name = fmt::format("{}.{}.{}", of, name_of(static_cast<BlockKind>(k)), op.name);
          row.piece = static_cast<std::uint16_t>(p);
          row.block = static_cast<std::uint8_t>(update ? kUpdateBlock : k);
          row.stream = op.stream;
          row.seconds = cost.last_seconds;
          row.times_per_step = times;
          row.flops = cost.flops / op.count;
          row.bytes = bytes_moved;
          row.bound = costs.bound(op, piece.tensors, e.instances);
          report.ops.push_back(std::move(row));
        };
        if (once) {
          if (p == once_piece) note({1, 1}, 1);
        } else {
          for (const LineItem& item : items[k])
            if (item.code == &code) for_executions(op.every, item, [&](Executions e) { note(e, lines_per_step); });
        }
        const bool kernel = op.stream == Stream::compute && !is_communication(op.kind);
        if (!kernel || costs.kernels().near_measured(op, piece.tensors) || report.ops.size() == first_row) continue;
        UnmeasuredShape unmeasured{fmt::format("{}.{}", piece.name, op.name), shape_of(op, piece.tensors), 0};
        for (std::size_t row = first_row; row < report.ops.size(); ++row)
          unmeasured.share_of_step += report.ops[row].seconds * report.ops[row].times_per_step / step_seconds;
        report.unmeasured_share += unmeasured.share_of_step;
        const auto same = std::find_if(
            report.unmeasured.begin(), report.unmeasured.end(),
            [&](const UnmeasuredShape& u) { return u.op == unmeasured.op && u.shape == unmeasured.shape; });
        if (same == report.unmeasured.end()) {
          report.unmeasured.push_back(std::move(unmeasured));
        } else {
          same->share_of_step += unmeasured.share_of_step;
        }
      }
    }
  }
  std::stable_sort(
      report.unmeasured.begin(), report.unmeasured.end(),
      [](const UnmeasuredShape& a, const UnmeasuredShape& b) { return a.share_of_step > b.share_of_step; });
}

void AnalyticalEngine::Rep::fill_timeline(const Program& program, Report& report) {
  Timeline& timeline = report.timeline;
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  const PipelineCosts pipeline_costs{stage_class, seconds, hops};
  PipelineTimeline slots;
  walk_timeline(program.schedule, pipeline_costs, pipeline, slots);
  for (const TransferRecord& t : slots.transfers)
    timeline.arrows.push_back({t.from_stage, t.to_stage, t.from_seconds, t.to_seconds});

  std::size_t next = 0;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(program.stages.size()); ++s) {
    const auto stage = static_cast<std::size_t>(s);
    const auto c = static_cast<std::size_t>(stage_class[stage]);
    PlacedBytes held = classes[c].resident;
    const auto sample = [&](double time, const PlacedBytes& bytes) { timeline.memory.push_back({s, time, bytes}); };
    const auto change = [&](const PlacedBytes& by, double sign) { held = sum(held, by, sign); };
    sample(0, held);
    for (; next < slots.slots.size() && slots.slots[next].stage == s; ++next) {
      const SlotRecord& record = slots.slots[next];
      timeline.intervals.push_back({s, Stream::compute, static_cast<std::uint8_t>(record.slot.kind), record.slot.chunk,
                                    record.slot.micro_batch, record.begin_seconds, record.end_seconds,
                                    name_of(record.slot.kind)});
      const ChunkMemory& m = memory[c * chunks + record.slot.chunk];
      const PlacedBytes& transient = m.transient[static_cast<std::size_t>(record.slot.kind)];
      if (record.slot.kind == SlotKind::forward) change(m.saved, 1);
      sample(record.begin_seconds, sum(held, transient));
      if (record.slot.kind == SlotKind::backward) {
        change(m.saved, -1);
        if (program.schedule.split_backward) change(m.kept, 1);
      }
      if (record.slot.kind == SlotKind::weight_gradient) change(m.kept, -1);
      sample(record.end_seconds, held);
    }
    const StageEnd& end = ends[stage];
    const auto interval = [&](Stream stream, double begin, double finish, const char* name) {
      if (finish > begin) timeline.intervals.push_back({s, stream, kUpdateInterval, 0, 0, begin, finish, name});
    };
    const double slots_end = pipeline.stages[stage].finish;
    for (int stream = 1; stream < kStreams; ++stream) {
      const double tail = classes[c].tail[static_cast<std::size_t>(stream)];
      interval(static_cast<Stream>(stream), slots_end, slots_end + tail, "drain");
    }
    interval(Stream::compute, end.drained, end.drained + classes[c].gradients.seconds, "gradients");
    double sum_end = end.reduced;
    for (auto sum = classes[c].sums.rbegin(); sum != classes[c].sums.rend(); ++sum) {
      interval(Stream::pipeline_communication, sum_end - sum->seconds, sum_end, sum->name);
      sum_end -= sum->seconds;
    }
    interval(Stream::compute, end.reduced, end.reduced + classes[c].norm.seconds, "gradient_norm");
    interval(Stream::compute, end.synchronised, end.end, "update");
    sample(end.drained, sum(held, classes[c].update_transient));
    sample(end.end, held);
  }
}

}  // namespace orrery
