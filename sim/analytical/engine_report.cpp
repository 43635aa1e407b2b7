// The parts of a report that are made on request: the table of ops, shapes without measured efficiencies, the timeline.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "sim/analytical/block_clock.h"
#include "sim/analytical/engine_rep.h"
#include "sim/program/liveness.h"
#include "sim/program/work.h"

namespace orrery {
namespace {

constexpr std::uint8_t kUpdateInterval = 3;  // value of TimelineSpan::kind besides SlotKind's

std::string shape_of(const Op& op, std::span<const Tensor> tensors) {
  if (is_matmul(op.kind)) {
    const GemmShape g = gemm_shape(op, tensors);
    const std::string batch = g.batch > 1 ? fmt::format("batch={} ", g.batch) : std::string();
    return fmt::format("{}m={} n={} k={} {}", batch, g.m, g.n, g.k, name_of(op.compute_dtype));
  }
  if (is_attention(op.kind)) {
    const AttentionShape a = attention_shape(op, tensors);
    return fmt::format("batch={} heads={} queries={} keys={} head_dim={} {}{}", a.batch, a.heads, a.queries, a.keys,
                       a.head_dim, name_of(op.compute_dtype), op.documents.has_value() ? " within documents" : "");
  }
  return fmt::format("{:.0f} bytes", bytes(op, tensors));
}

// Limits the size of a trace: about 250 bytes per slice.
constexpr std::size_t kMostOpSlices = 24'000;

TimelineOp wait_for(Account account) {
  const char* what = account < kExposed ? "host issue" : row_of(static_cast<Stream>(account - kExposed)).label;
  return {.name = fmt::format("wait: {}", what), .kind = "wait", .bound = ""};
}

// An op that runs once for all instances belongs to all layers, whatever their plans.
TimelineOp describe(const Program& program, BlockKind kind, const LineOp& of) {
  const Op& op = of.code->ops[of.op];
  const Piece& piece = *of.code->piece;
  const auto own = std::ranges::find_if(program.pieces, [&](const Piece& p) { return &p == &piece; });
  const bool once = own == program.pieces.end() || op.every == kAllInstances ||
                    std::any_of(of.code->nodes.begin(), of.code->nodes.end(),
                                [&](const ClockNode& node) { return node.op == of.op && node.once; });
  const auto title = [&] { return piece_title(program, static_cast<std::size_t>(own - program.pieces.begin())); };
  return {.name = fmt::format("{}.{}.{}", once ? std::string(piece.name) : title(), name_of(kind), op.name),
          .kind = name_of(op.kind),
          .bound = of.code->model->bound(op, piece.tensors, of.instances),
          .flops = of.code->model->cost(op, piece.tensors, of.instances).flops,
          .bytes = bytes(op, piece.tensors) * static_cast<double>(of.instances)};
}

}  // namespace

std::uint32_t TimelineOps::operator()(BlockKind kind, const LineOp& op) {
  const int account = op.code == nullptr ? op.account : 0;
  const auto [at, added] =
      known_.try_emplace({op.code, op.op, op.instances, account}, static_cast<std::uint32_t>(ops_.size()));
  if (added) ops_.push_back(op.code == nullptr ? wait_for(op.account) : describe(program_, kind, op));
  return at->second;
}

void AnalyticalEngine::Rep::fill_ops(Report& report) const {
  const StageClass& c = classes[static_cast<std::size_t>(report.bounding_stage)];
  const auto stage = static_cast<std::size_t>(c.first_stage);
  const auto& chunks = program->stages[stage];
  const std::int64_t n = program->schedule.micro_batches;

  // An op that runs once per line runs in the last run of a piece that has it.
  std::uint16_t once_piece = 0;
  for (const Chunk& chunk : chunks)
    for (const PieceRun& run : chunk.runs)
      if (pieces[run.piece].block(BlockKind::norm).once) once_piece = run.piece;

  std::vector<std::array<std::vector<LineItem>, kBlockKinds>> items(program->micro_batch_classes());
  for (std::size_t of_class = 0; of_class < items.size(); ++of_class)
    for (std::size_t k = 0; k < kBlockKinds; ++k)
      line_items(program->stages_of(of_class)[stage], c.layout, static_cast<BlockKind>(k), items[of_class][k]);
  // Number of lines in a step, for a class of micro-batches.
  const auto lines_per_step = [&](std::size_t of_class, When when, bool update) -> double {
    if (update) return of_class == 0 ? 1 : 0;
    if (when == When::every_micro_batch) return static_cast<double>(program->micro_batches_of(of_class));
    return program->class_of(when == When::first_micro_batch ? 0 : n - 1) == of_class ? 1 : 0;
  };

  for (std::size_t p = 0; p < program->pieces.size(); ++p) {
    if (!pieces[p].used) continue;
    const Piece& piece = program->pieces[p];
    for (std::size_t k = 0; k < kBlockKinds; ++k) {
      const BlockCode& code = pieces[p].blocks[c.layout][k];
      const bool update = is_of_update(static_cast<BlockKind>(k));
      for (std::size_t i = 0; i < code.ops.size(); ++i) {
        const Op& op = code.ops[i];
        if (code.costs[i].absent) continue;
        const bool once = std::any_of(code.nodes.begin(), code.nodes.end(),
                                      [&](const ClockNode& node) { return node.op == i && node.once; });
        const std::size_t first_row = report.ops.size();
        const double bytes_of_one = bytes(op, piece.tensors);
        const auto note = [&](std::int64_t instances, double runs) {  // runs that cover as many instances
          const double times = runs * op.count;
          const double bytes_moved = bytes_of_one * static_cast<double>(instances) / op.count;
          for (std::size_t row = first_row; row < report.ops.size(); ++row) {
            if (report.ops[row].bytes != bytes_moved) continue;
            report.ops[row].times_per_step += times;
            return;
          }
          OpReport row;
          const TimelineOp of = describe(*program, static_cast<BlockKind>(k),
                                         {.code = &code, .op = static_cast<std::uint16_t>(i), .instances = instances});
          row.name = of.name;
          row.piece = static_cast<std::uint16_t>(p);
          row.block = static_cast<std::uint8_t>(update ? kUpdateBlock : k);
          row.stream = op.stream;
          row.seconds = code.model->cost(op, piece.tensors, instances).last_seconds;
          row.times_per_step = times;
          row.flops = of.flops / op.count;
          row.bytes = bytes_moved;
          row.bound = of.bound;
          report.ops.push_back(std::move(row));
        };
        if (once) {
          if (p == once_piece) note(1, 1);
        } else {
          for (std::size_t of_class = 0; of_class < items.size(); ++of_class) {
            const double times = lines_per_step(of_class, op.when, update);
            if (times == 0) continue;
            for (const LineItem& item : items[of_class][k])
              for (std::int64_t at = 0; item.code == &code && at < item.count; ++at)
                if (const std::int64_t covered = instances_covered(op.every, item.place(at), op.covers); covered > 0)
                  note(covered, times);
          }
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

void AnalyticalEngine::Rep::fill_timeline(Report& report) {
  Timeline& timeline = report.timeline;
  TimelineOps op_of(*program, timeline);
  PipelineTimeline slots;
  walk_timeline(program->schedule, pipeline_costs(), pipeline, slots);
  for (const TransferRecord& t : slots.transfers)
    timeline.arrows.push_back({t.from_stage, t.to_stage, t.from_seconds, t.to_seconds});

  std::size_t next = 0;
  for (std::int32_t s = 0; s < static_cast<std::int32_t>(program->stages.size()); ++s) {
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
                                    name_of(record.slot.kind), kNoOp});
      const ChunkMemory& m = memory[at(c, record.slot)];
      const PlacedBytes& transient = m.transient[static_cast<std::size_t>(record.slot.kind)];
      if (record.slot.kind == SlotKind::forward) change(m.saved, 1);
      sample(record.begin_seconds, sum(held, transient));
      if (record.slot.kind == SlotKind::backward) {
        change(m.saved, -1);
        if (program->schedule.split_backward) change(m.kept, 1);
      }
      if (record.slot.kind == SlotKind::weight_gradient) change(m.kept, -1);
      sample(record.end_seconds, held);
    }
    const StageEnd& end = ends[stage];
    const auto interval = [&](Stream stream, double begin, double finish, const char* name, std::uint32_t op = kNoOp) {
      if (finish > begin) timeline.intervals.push_back({s, stream, kUpdateInterval, 0, 0, begin, finish, name, op});
    };
    const double slots_end = pipeline.stages[stage].finish;
    if (s == 0) timeline.ops.push_back({.name = "drain", .kind = "drain", .bound = ""});
    for (int stream = 1; stream < kStreams; ++stream) {
      const double tail = classes[c].tail[static_cast<std::size_t>(stream)];
      interval(static_cast<Stream>(stream), slots_end, slots_end + tail, "drain", 0);
    }
    interval(Stream::compute, end.drained, end.drained + classes[c].gradients.seconds, "gradients");
    double sum_end = end.reduced;
    for (auto sum = classes[c].sums.rbegin(); sum != classes[c].sums.rend(); ++sum) {
      interval(Stream::pipeline_communication, sum_end - sum->seconds, sum_end, sum->code->ops[sum->op].name,
               op_of(BlockKind::stages, {.code = sum->code, .op = sum->op, .stream = Stream::pipeline_communication}));
      sum_end -= sum->seconds;
    }
    interval(Stream::compute, end.reduced, end.reduced + classes[c].norm.seconds, "gradient_norm");
    interval(Stream::compute, end.synchronised, end.end, "update");
    sample(end.drained, sum(held, classes[c].update_transient));
    sample(end.end, held);
  }
  fill_op_slices(slots, op_of, report);
}

LineResult AnalyticalEngine::Rep::trace_line(const LineOrigin& origin, std::vector<LineOp>& ops) {
  LineStart start = origin.start;
  FabricBacklog backlog = origin.backlog;
  if (start.backlog != nullptr) start.backlog = &backlog;
  LineResult result;
  clock.run(line_items(origin.chunks, origin.layout, origin.kind, line), origin.when, kernels.overlap_slowdown,
            origin.drain, result, start, &ops);
  return result;
}

// The slots whose ops are shown. They are those of the stages that represent their class, the bounding stage first: the
// end of the step, then all slots of the middle micro-batch, of the first and of the last, up to kMostOpSlices.
void AnalyticalEngine::Rep::fill_op_slices(const PipelineTimeline& slots, TimelineOps& op_of, Report& report) {
  struct Traced {
    LineResult result;
    std::vector<LineOp> ops;
  };
  std::map<std::int32_t, Traced> traced;  // by LineResult::origin
  const auto trace_of = [&](std::int32_t origin) -> const Traced& {
    const auto [at, added] = traced.try_emplace(origin);
    if (added) at->second.result = trace_line(origins[static_cast<std::size_t>(origin)], at->second.ops);
    return at->second;
  };
  const std::int64_t n = program->schedule.micro_batches;
  const std::size_t slots_of_stage = slots.slots.size() / program->stages.size();
  std::vector<std::size_t> by_rank(classes.size());
  for (std::size_t c = 0; c < by_rank.size(); ++c) by_rank[c] = c;
  std::swap(by_rank.front(), by_rank[static_cast<std::size_t>(report.bounding_stage)]);
  std::vector<std::size_t> speakers;
  for (std::size_t c = 0; c < classes.size(); ++c) speakers.push_back(speaker_of(c));

  std::size_t slices = 0;
  const auto fits = [&](std::int32_t origin) {
    if (origin < 0) return false;
    const std::size_t more = trace_of(origin).ops.size();
    if (slices + more > kMostOpSlices) return false;
    slices += more;
    return true;
  };
  std::vector<std::array<bool, 3>> end_chosen(classes.size());
  const auto ends_of = [&](std::size_t c) {
    return std::array<const LineResult*, 3>{&classes[c].gradients, &classes[c].norm, &classes[c].update};
  };
  for (const std::size_t c : by_rank)
    for (std::size_t part = 0; part < 3; ++part) end_chosen[c][part] = fits(ends_of(c)[part]->origin);
  const auto line_of = [&](std::size_t c, const Slot& slot) -> const LineResult& {
    return lines[at(c, slot)][index(slot.kind)].of(slot.micro_batch, n);
  };
  std::vector<bool> chosen(slots.slots.size());
  std::vector<std::int64_t> shown{n / 2, 0, n - 1};
  for (std::size_t i = 0; i < shown.size(); ++i) {
    if (std::find(shown.begin(), shown.begin() + static_cast<std::ptrdiff_t>(i), shown[i]) !=
        shown.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    for (const std::size_t c : by_rank)
      for (std::size_t at = speakers[c] * slots_of_stage; at < (speakers[c] + 1) * slots_of_stage; ++at)
        if (slots.slots[at].slot.micro_batch == shown[i]) chosen[at] = fits(line_of(c, slots.slots[at].slot).origin);
  }

  Timeline& timeline = report.timeline;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const auto stage = static_cast<std::int32_t>(speakers[c]);
    timeline.op_stages.push_back(stage);
    std::array<double, kStreams> free{};  // asynchronous streams serve slots in order
    const auto place = [&](std::int32_t origin, double begin, double seconds_of_slot) {
      const Traced& trace = trace_of(origin);
      const LineOrigin& from = origins[static_cast<std::size_t>(origin)];
      // A slot that represents several different ones has their mean length.
      const double took = trace.result.seconds;
      const double stretch = took > 0 && std::abs(seconds_of_slot - took) > 1e-9 * took ? seconds_of_slot / took : 1;
      for (const LineOp& op : trace.ops) {
        const auto s = static_cast<std::size_t>(op.stream);
        double first = begin + stretch * (op.begin - from.start.waits_seconds);
        double last = begin + stretch * (op.end - from.start.waits_seconds);
        if (kStreamRows[s].asynchronous) {
          last += std::max(0.0, free[s] - first);
          first = std::max(first, free[s]);
          free[s] = last;
        }
        timeline.op_slices.push_back({stage, op.stream, op_of(from.kind, op), first, last});
      }
    };
    for (std::size_t at = speakers[c] * slots_of_stage; at < (speakers[c] + 1) * slots_of_stage; ++at) {
      const SlotRecord& slot = slots.slots[at];
      const LineResult& l = line_of(c, slot.slot);
      if (chosen[at]) {
        ++timeline.slots_with_ops;
        place(l.origin, slot.begin_seconds, slot.end_seconds - slot.begin_seconds);
        continue;
      }
      for (std::size_t s = 0; s < kStreams; ++s)
        if (l.stream_end[s] > 0)
          free[s] = std::max(slot.begin_seconds + l.stream_end[s], free[s] + (l.carried[s] > 0 ? 0 : l.stream_work[s]));
    }
    const StageEnd& end = ends[speakers[c]];
    const std::array<double, 3> begins{end.drained, end.reduced, end.synchronised};
    for (std::size_t part = 0; part < 3; ++part)
      if (end_chosen[c][part]) place(ends_of(c)[part]->origin, begins[part], ends_of(c)[part]->seconds);
  }
}

}  // namespace orrery
