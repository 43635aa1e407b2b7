#include "sim/analytical/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "sim/analytical/engine_rep.h"
#include "sim/base/error.h"
#include "sim/program/pair.h"
#include "sim/report/terms.h"

namespace orrery {
namespace {

// The seconds of work that a stream has left after a line, if it starts with `before` seconds of work instead of the
// backlog with which the line was clocked; at least the seconds that it leaves with no backlog.
double left_behind(const LineResult& l, const LineResult& first, std::size_t stream, double before) {
  const double least = std::max(0.0, first.stream_end[stream] - first.seconds);
  return std::max(least, l.stream_end[stream] - l.seconds + before - l.carried[stream]);
}

void add(Accounts& to, const Accounts& from, double times) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += times * from[i];
}

// The share of `own`'s seconds of network use in blocks of this kind during which `other` uses the network, too.
double meeting(std::span<const NetworkUse> own, BlockKind kind, std::span<const NetworkUse> other) {
  double used = 0, met = 0;
  auto o = other.begin();
  for (const NetworkUse& use : own) {
    if (use.kind != kind) continue;
    used += use.part * (use.end - use.begin);
    while (o != other.end() && o->end <= use.begin) ++o;
    for (auto at = o; at != other.end() && at->begin < use.end; ++at)
      met += use.part * at->part * (std::min(use.end, at->end) - std::max(use.begin, at->begin));
  }
  return used > 0 ? std::min(1.0, met / used) : 0;
}

void check_timeline(const Program& program) {
  const Schedule& schedule = program.schedule;
  const auto stages = static_cast<std::int64_t>(program.stages.size());
  const std::int64_t kinds = schedule.split_backward ? 3 : 2, chunks = schedule.chunks;
  const double slots = static_cast<double>(stages * kinds * chunks) * static_cast<double>(schedule.micro_batches);
  if (slots <= static_cast<double>(kMostTimelineSlots)) return;
  throw InputError(
      {"", ""},
      fmt::format("a timeline of {:.0f} slots ({} micro-batches, {} times on each of {} stage{} of {} chunk{})", slots,
                  schedule.micro_batches, kinds, stages, stages == 1 ? "" : "s", chunks, chunks == 1 ? "" : "s"),
      fmt::format("at most {} for --trace or --svg: a smaller workload.global_batch_size or a larger "
                  "plan.micro_batch_size",
                  kMostTimelineSlots));
}

}  // namespace

AnalyticalEngine::AnalyticalEngine(const Cluster& cluster, const Calibration& kernels,
                                   const CollectiveCalibration& collectives)
    : rep_(std::make_unique<Rep>(cluster, kernels, collectives)) {}
AnalyticalEngine::~AnalyticalEngine() = default;

std::span<const std::int32_t> AnalyticalEngine::stage_classes() const { return rep_->stage_class; }

void AnalyticalEngine::evaluate(const Program& program, Dtype mfu_dtype, const AnalyticalOptions& options,
                                Report& report) {
  if (options.timeline) check_timeline(program);
  rep_->evaluate_step(program, mfu_dtype, options, {}, report);
  if (!program.tasks.empty()) rep_->add_tasks(mfu_dtype, options.shares_levels, report);
}

void AnalyticalEngine::Rep::evaluate_step(const Program& of, Dtype mfu_dtype, const AnalyticalOptions& options,
                                          const EndlessFlow& flow, Report& report) {
  program = &of;
  endless = flow;
  clock.shares_levels(options.shares_levels);
  clock.run_beside(flow);
  keeps_origins = options.timeline;
  find_layouts();
  for (int round = 0; round == 0 || share_nics(round); ++round) {
    origins.clear();
    find_classes();
    prepare_pieces();
    find_hops();
    hold_memory();
    clock_slots();
    account_pairs();
    walker.walk(of.schedule, pipeline_costs(), pipeline);
    finish_stages();
  }
  report = {};  // including fields that callers add: nothing of the plan before remains
  report.engine = "analytical";
  fill_time(mfu_dtype, report);
  fill_memory(report);
  if (options.ops) fill_ops(report);
  if (options.timeline) fill_timeline(report);
}

void AnalyticalEngine::evaluate_memory(const Program& program, Report& report) {
  Rep& r = *rep_;
  r.program = &program;
  r.clock.shares_levels(false);
  r.keeps_origins = false;
  r.find_layouts();
  r.find_classes();
  r.prepare_pieces();
  r.hold_memory();
  report = {};
  report.stages.resize(r.classes.size());
  r.fill_memory(report);
}

double AnalyticalEngine::least_pipeline_seconds(const Program& program) {
  Rep& r = *rep_;
  r.program = &program;
  r.find_hops();
  r.behind_last.clear();
  r.clock_lines();
  r.gather_while_waiting();
  r.take_seconds();
  r.find_pair_saves();
  r.walker.walk(program.schedule, r.pipeline_costs(), r.pipeline);
  return r.pipeline.makespan;
}

std::int64_t AnalyticalEngine::instances_walked() const { return rep_->clock.walked(); }

double AnalyticalEngine::resting_bytes(const Program& program) const {
  double most = 0;
  for (const StageClass& c : rep_->classes) most = std::max(most, device_bytes(c.resident));
  return most + program.runtime.context_bytes;
}

double AnalyticalEngine::micro_batch_seconds(const Program& program) const {
  const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
  double sum = 0;
  for (std::size_t c = 0; c < rep_->classes.size(); ++c)
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
        double least = 0;
        for (std::size_t of_class = 0; of_class < program.micro_batch_classes(); ++of_class) {
          const SlotLines& slot = rep_->lines[rep_->at(c, of_class, chunk)][kind];
          const double here = std::min({slot.first.seconds, slot.usual.seconds, slot.last.seconds});
          least = of_class == 0 ? here : std::min(least, here);
        }
        sum += static_cast<double>(rep_->classes[c].stages) * least;
      }
  return program.schedule.pairs ? sum / 2 : sum;  // a pair takes at least as long as its longer half
}

double AnalyticalEngine::product_seconds(std::uint16_t piece) const {
  double seconds = 0;
  for (const BlockCode& code : rep_->pieces[piece].blocks.front())
    for (std::size_t i = 0; i < code.ops.size(); ++i) {
      const Op& op = code.ops[i];
      if ((is_matmul(op.kind) || is_attention(op.kind)) && op.phase != Phase::recompute &&
          op.stream == Stream::compute && op.when == When::every_micro_batch && op.every == 1)
        seconds += code.costs[i].seconds - code.costs[i].waiting;
    }
  return seconds;
}

void AnalyticalEngine::Rep::prepare_pieces() {
  costs.set_program(*program);
  for (const Layout& layout : layouts)
    for (const Layout::Block& block : layout.blocks)
      block.costs->set_stage(costs, layout.stage, stage_spans, block.others_busy);
  if (pieces.size() < program->pieces.size()) pieces.resize(program->pieces.size());
  for (PieceData& data : pieces) {
    data.used = false;
    data.most_instances = 0;
  }
  for (std::size_t i = 0; i < rows(); ++i)
    for_each_stretch(program->pieces, row(i).chunk.runs,
                     [&](std::span<const PieceRun> stretch, std::int64_t instances) {
                       for (const PieceRun& run : stretch) {
                         PieceData& data = pieces[run.piece];
                         data.used = true;
                         data.most_instances = std::max(data.most_instances, instances);
                       }
                     });
  for (std::size_t p = 0; p < program->pieces.size(); ++p) {
    PieceData& data = pieces[p];
    if (!data.used) continue;
    const Piece& piece = program->pieces[p];
    data.memory = piece_memory(piece, program->runtime.granularity, data.most_instances, scratch);
    if (data.blocks.size() < layouts.size()) data.blocks.resize(layouts.size());
    CompileContext context(piece, costs, program->runtime, scratch.lives.storage(), !program->stage_groups.empty());
    for (std::size_t l = 0; l < std::max<std::size_t>(layouts.size(), 1); ++l)
      for (std::size_t k = 0; k < kBlockKinds; ++k) {
        if (!layouts.empty()) context.costs = layouts[l].blocks[k].costs.get();
        compiler.compile(piece, static_cast<BlockKind>(k), context, data.blocks[l][k]);
      }
    if (program->schedule.pairs) {
      if (!data.pair) data.pair = std::make_unique<PairedPiece>();
      PairedPiece& pair = *data.pair;
      pair.any = pair_blocks(piece, pair.piece);
      pair.code.resize(std::max<std::size_t>(layouts.size(), 1));
      if (pair.any) {
        pair.lives.find(pair.piece);
        CompileContext of_pair(pair.piece, costs, program->runtime, pair.lives.storage(),
                               !program->stage_groups.empty());
        for (std::size_t l = 0; l < pair.code.size(); ++l) {
          if (!layouts.empty()) of_pair.costs = layouts[l].blocks[index(BlockKind::backward)].costs.get();
          compiler.compile(pair.piece, BlockKind::forward, of_pair, pair.code[l]);
        }
      }
    }
    data.recompute_flops = 0;
    const BlockCode& backward = data.block(BlockKind::backward);
    for (std::size_t i = 0; i < backward.ops.size(); ++i)
      if (const Op& op = backward.ops[i]; op.phase == Phase::recompute)
        data.recompute_flops += op.documents.has_value() || costs.dealt_rows(op, piece.tensors)
                                    ? costs.mean_flops(op, piece.tensors)
                                    : backward.costs[i].flops;
  }
}

// Stages lie alike if their first ranks have the same place in their nodes, and the same holds for the neighbouring
// stages, if there are any.
void AnalyticalEngine::Rep::find_layouts() {
  for (Layout& layout : layouts) spare_layouts.push_back(std::move(layout));
  layouts.clear();
  const Mesh& mesh = program->mesh;
  const std::int64_t per_node = cluster.node.devices;
  if (stages_lie_alike(mesh, cluster.node)) return;
  stage_spans.set_mesh(mesh, cluster.node);
  const std::int64_t stages = mesh.size(MeshAxis::pp), stride = mesh.stride(MeshAxis::pp);
  const std::int64_t reach = (per_node - 1) / stride + 1;  // number of stages that may begin in one node
  const auto alike = [&](std::int64_t a, std::int64_t b) {
    return a * stride % per_node == b * stride % per_node && std::min(a, reach) == std::min(b, reach) &&
           std::min(stages - a, reach + 1) == std::min(stages - b, reach + 1);
  };
  stage_layout.assign(static_cast<std::size_t>(stages), 0);
  for (std::int64_t s = 0; s < stages; ++s) {
    std::size_t l = 0;
    while (l < layouts.size() && !alike(layouts[l].stage, s)) ++l;
    if (l == layouts.size()) {
      if (spare_layouts.empty())
        for (Layout::Block& block : spare_layouts.emplace_back().blocks)
          block.costs = std::make_unique<OpCostModel>(cluster, kernels, collectives);
      layouts.push_back(std::move(spare_layouts.back()));
      spare_layouts.pop_back();
      layouts.back().stage = s;
      for (Layout::Block& block : layouts.back().blocks) block.others_busy.assign(static_cast<std::size_t>(stages), 0);
    }
    stage_layout[static_cast<std::size_t>(s)] = l;
  }
}

// Stages that share NICs slow each other down while both use them. When they use them depends on how long everything
// takes; this is iterated. Returns false if no stages share NICs or nothing changes any more.
bool AnalyticalEngine::Rep::share_nics(int round) {
  constexpr int kSharingRounds = 4;
  constexpr double kSettled = 0.01;  // share of the time
  if (layouts.empty() || !clock.shares_levels() || round == kSharingRounds) return false;
  const std::vector<std::vector<NetworkUse>> uses = network_use();
  bool changes = false;
  for (Layout& layout : layouts) {
    const std::vector<NetworkUse>& own = uses[static_cast<std::size_t>(layout.stage)];
    for (std::size_t k = 0; k < kBlockKinds; ++k)
      for (std::size_t other = 0; other < uses.size(); ++other) {
        if (other == static_cast<std::size_t>(layout.stage)) continue;
        const double busy = meeting(own, static_cast<BlockKind>(k), uses[other]);
        changes |= std::abs(busy - layout.blocks[k].others_busy[other]) > kSettled;
        layout.blocks[k].others_busy[other] = busy;
      }
  }
  return changes;
}

// Finds network use slot by slot, from a walk without other stages' traffic. A slot's traffic is spread evenly over the
// slot, or over a longer time if it takes longer, after the traffic that the slots before have left.
std::vector<std::vector<NetworkUse>> AnalyticalEngine::Rep::network_use() {
  const Schedule& schedule = program->schedule;
  const std::size_t stages = program->stages.size(), chunks = static_cast<std::size_t>(schedule.chunks);
  const std::int64_t n = schedule.micro_batches;
  static constexpr std::array<When, 3> kWhens{When::every_micro_batch, When::first_micro_batch, When::last_micro_batch};
  walk_timeline(schedule, unpaired_costs(), pipeline, walked);
  std::vector<std::vector<NetworkUse>> uses(stages);
  // Seconds of traffic that is alone on the NICs: [(class of micro-batches * chunks + chunk) * kSlotKinds + kind].
  std::vector<std::array<double, kWhens.size()>> network(program->micro_batch_classes() * chunks * kSlotKinds);
  const auto add_use = [this](const PieceRun& run, BlockKind kind, std::size_t layout, auto& seconds_by_when) {
    const BlockCode& code = pieces[run.piece].block(kind, layout);
    for (const ClockNode& node : code.nodes) {
      if (!code.costs[node.op].is_on(FabricLevel::network)) continue;
      const auto times = [&]() -> double {
        if (node.once || node.covers == Covers::last) return 1;
        if (node.covers == Covers::before) return static_cast<double>(run.count - 1);
        return static_cast<double>(run.count) / node.every;
      };
      double seconds_of_run = node.seconds * times();
      if (node.every == kAllInstances)
        seconds_of_run = code.model->cost(code.ops[node.op], code.piece->tensors, run.count).seconds;
      for (std::size_t w = 0; w < kWhens.size(); ++w)
        if (node.when == bit(kWhens[w])) seconds_by_when[w] += seconds_of_run;
    }
  };
  auto record = walked.slots.begin();
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::size_t k = 0; k < network.size(); ++k) {
      network[k] = {};
      const auto& of_class = program->stages_of(k / kSlotKinds / chunks);
      for (const PieceRun& run : of_class[s][k / kSlotKinds % chunks].runs)
        add_use(run, static_cast<BlockKind>(k % kSlotKinds), stage_layout[s], network[k]);
    }
    std::vector<NetworkUse>& use = uses[s];
    // Gathers that the first forward issues ahead need no input (gather_while_waiting).
    double ahead = 0;
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      for (const PieceRun& run : program->stages_of(program->class_of(0))[s][chunk].runs) {
        const BlockCode& code = pieces[run.piece].block(BlockKind::forward, stage_layout[s]);
        for (const std::uint16_t k : code.prefetched) {
          const ClockNode& node = code.nodes[k];
          if (!code.costs[node.op].is_on(FabricLevel::network) || (node.when & kFirst) == 0) continue;
          const auto instances = node.when == kUsual ? std::min<std::int64_t>(run.count, node.prefetch) : run.count;
          ahead += node.seconds * static_cast<double>(instances) / node.every;
        }
      }
    double busy_until = ahead;
    if (ahead > 0) use.push_back({BlockKind::forward, 0, ahead, 1});
    for (; record != walked.slots.end() && record->stage == static_cast<std::int32_t>(s); ++record) {
      const Slot& slot = record->slot;
      const WhenSet conditions = conditions_of(slot.micro_batch, n);
      double seconds_of_slot = 0;
      for (std::size_t w = 0; w < kWhens.size(); ++w)
        if ((conditions & bit(kWhens[w])) != 0)
          seconds_of_slot +=
              network[(program->class_of(slot.micro_batch) * chunks + slot.chunk) * kSlotKinds + index(slot.kind)][w];
      if (slot.kind == SlotKind::forward && slot.micro_batch == 0) {
        const double before = std::min(ahead, seconds_of_slot);
        ahead -= before;
        seconds_of_slot -= before;
      }
      if (seconds_of_slot <= 0) continue;
      const double begin = std::max(record->begin_seconds, busy_until);
      busy_until = std::max(record->end_seconds, begin + seconds_of_slot);
      use.push_back({static_cast<BlockKind>(slot.kind), begin, busy_until, seconds_of_slot / (busy_until - begin)});
    }
    const auto use_at_end = [&](BlockKind kind, double begin, double seconds_of_part) {
      std::array<double, kWhens.size()> of_part{};
      for (const Chunk& chunk : program->stages[s])
        for (const PieceRun& run : chunk.runs) add_use(run, kind, stage_layout[s], of_part);
      if (of_part[0] <= 0) return;
      seconds_of_part = std::max(seconds_of_part, of_part[0]);
      use.push_back({kind, begin, begin + seconds_of_part, of_part[0] / seconds_of_part});
    };
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    use_at_end(BlockKind::gradients, ends[s].drained, c.gradients.seconds);
    use_at_end(BlockKind::norm, ends[s].reduced, c.norm.seconds);
    use_at_end(BlockKind::update, ends[s].synchronised, c.update.seconds);
  }
  return uses;
}

void AnalyticalEngine::Rep::find_classes() {
  classes.clear();
  stage_class.resize(program->stages.size());
  const auto last = static_cast<std::int32_t>(program->stages.size()) - 1;
  for (std::int32_t s = 0; s <= last; ++s) {
    const std::size_t layout = layouts.empty() ? 0 : stage_layout[static_cast<std::size_t>(s)];
    std::size_t c = classes.size();
    // Searched from the last class on: a stage usually equals the one before it.
    while (c > 0) {
      const std::int32_t like = classes[c - 1].first_stage;
      bool alike = classes[c - 1].layout == layout;
      for (std::size_t k = 0; alike && k < program->micro_batch_classes(); ++k) {
        const auto& stages = program->stages_of(k);
        alike = stages[static_cast<std::size_t>(like)] == stages[static_cast<std::size_t>(s)];
      }
      if (alike) break;
      --c;
    }
    if (c == 0) {
      classes.emplace_back();
      classes.back().first_stage = s;
      classes.back().layout = layout;
      c = classes.size();
    }
    ++classes[c - 1].stages;
    stage_class[static_cast<std::size_t>(s)] = static_cast<std::int32_t>(c - 1);
  }
}

std::vector<LineItem>& AnalyticalEngine::Rep::line_items(std::span<const Chunk> chunks, std::size_t layout,
                                                         BlockKind kind, std::vector<LineItem>& items) const {
  items.clear();
  for (const Chunk& chunk : chunks) append_line(program->pieces, chunk.runs, kind, code_of(kind, layout), items);
  return items;
}

void AnalyticalEngine::Rep::clock_line(std::span<const Chunk> chunks, std::size_t layout, BlockKind kind, WhenSet when,
                                       bool drain, LineResult& result, const LineStart& start) {
  result.origin = -1;
  if (keeps_origins) {
    result.origin = static_cast<std::int32_t>(origins.size());
    origins.push_back({chunks, layout, kind, when, drain, start, {}});
    if (start.backlog != nullptr) origins.back().backlog = *start.backlog;
  }
  clock.run(line_items(chunks, layout, kind, line), when, kernels.overlap_slowdown, drain, result, start);
}

// `has`: whether this chunk has a first and a last micro-batch.
void AnalyticalEngine::Rep::clock_chunk(const Chunk& chunk, std::size_t layout, WhenSet has,
                                        std::array<SlotLines, kSlotKinds>& lines_of) {
  for (std::size_t k = 0; k < kSlotKinds; ++k) {
    SlotLines& l = lines_of[k];
    if (k == index(SlotKind::weight_gradient) && !program->schedule.split_backward) {
      l = {};
      continue;
    }
    const auto kind = static_cast<BlockKind>(k);
    if (program->schedule.micro_batches == 1) {
      clock_line(chunk, layout, kind, kOnly, l.usual);
      l.first = l.last = l.usual;
      continue;
    }
    WhenSet conditions = 0;
    for (const PieceRun& run : chunk.runs) conditions |= pieces[run.piece].block(kind).conditions;
    conditions &= has;
    clock_line(chunk, layout, kind, kUsual, l.usual);
    l.first = l.last = l.usual;
    if ((conditions & bit(When::first_micro_batch)) != 0) clock_line(chunk, layout, kind, kFirst, l.first);
    if ((conditions & bit(When::last_micro_batch)) != 0) clock_line(chunk, layout, kind, kLast, l.last);
  }
}

void AnalyticalEngine::Rep::clock_update(StageClass& c) {
  const auto& chunks = program->stages[static_cast<std::size_t>(c.first_stage)];
  for (const UpdatePart part : kStepEnd) {
    if (program->stage_groups.empty() && (part == UpdatePart::gradients || part == UpdatePart::stages)) continue;
    line_items(chunks, c.layout, block_of(part), line);
    if (std::all_of(line.begin(), line.end(), [](const LineItem& item) { return item.code->nodes.empty(); })) continue;
    if (part == UpdatePart::norm)
      for (const LineItem& item : line)
        for (const Op& op : item.code->ops) c.synchronises |= op.kind == OpKind::gradient_norm;
    if (part == UpdatePart::stages) {
      for (const LineItem& item : line)
        for (const ClockNode& node : item.code->nodes)
          c.sums.push_back({item.code->ops[node.op].stages.value(), node.seconds, item.code, node.op});
    } else {
      // Nothing waits for the host after the reductions: it continues to issue, as far ahead as it is.
      LineStart start;
      if (part == UpdatePart::norm) start.host_seconds = std::min(0.0, c.gradients.host);
      clock_line(chunks, c.layout, block_of(part), kOnly, true,
                 part == UpdatePart::gradients ? c.gradients
                 : part == UpdatePart::norm    ? c.norm
                                               : c.update,
                 start);
    }
  }
}

// Work on asynchronous streams is served in order: a slot's work ends `stream_end` after the slot began, or later by
// the work that earlier slots have left. If the waits between slots were not computed, slots count as back to back, so
// that the tail is never underestimated.
void AnalyticalEngine::Rep::find_tail(std::size_t stage_class_of) {
  const Schedule& schedule = program->schedule;
  StageClass& c = classes[stage_class_of];
  const std::size_t begin = at(stage_class_of, 0), behind = at(stage_class_of + 1, 0);
  const auto* chunks = &lines[begin];
  const std::int64_t n = schedule.micro_batches;
  c.tail = {};
  bool usual = !program->micro_batch_class.empty();  // whether they matter
  bool began = false;  // before the last micro-batch nothing matters until one of its slots has such work
  std::array<std::size_t, kStreams> used{};  // streams with such work
  std::size_t streams = 0;
  for (std::size_t s = 0; s < kStreams; ++s) {
    bool any = false;
    for (std::size_t chunk = begin; chunk < behind; ++chunk)
      for (const SlotLines& l : lines[chunk]) {
        usual |= l.usual.stream_end[s] > 0;
        began |= l.first.stream_end[s] > 0;
        any |= l.first.stream_end[s] > 0 || l.usual.stream_end[s] > 0 || l.last.stream_end[s] > 0;
      }
    if (any) used[streams++] = s;
  }
  if (streams == 0) return;

  double time = 0;
  std::array<double, kStreams> end{};
  const auto pass = [&](const Slot& slot) {
    const SlotLines& of_slot = lines[at(stage_class_of, slot)][index(slot.kind)];
    const LineResult& l = of_slot.of(slot.micro_batch, n);
    if (usual || slot.micro_batch == 0 || slot.micro_batch + 1 == n)
      for (std::size_t i = 0; i < streams; ++i)
        if (const std::size_t s = used[i]; l.stream_end[s] > 0) {
          began = true;
          if (l.carried[s] > 0)
            end[s] = time + l.seconds + left_behind(l, of_slot.first, s, std::max(0.0, end[s] - time));
          else
            end[s] = std::max(time + l.stream_end[s], end[s] + l.stream_work[s]);
        }
    time += l.seconds;
    if (behind_last.empty() || slot.kind != SlotKind::backward || slot.micro_batch + 1 != n) return;
    const std::size_t stages = program->stages.size();
    const auto* longer =
        &behind_last[(stage_class_of * static_cast<std::size_t>(schedule.chunks) + slot.chunk) * stages];
    time = std::accumulate(longer, longer + stages, time);
  };
  const StageOrder order = schedule.order(static_cast<std::size_t>(c.first_stage));
  if (usual) {
    std::size_t slots = 0;
    order.for_each([&](const Slot& slot) {
      time += wait(stage_class_of, slots++);
      pass(slot);
    });
  } else {
    // Only the first and the last micro-batches matter: stretches without them count as a whole.
    const auto stretch = [&](std::span<const Segment> segments, std::uint32_t shift) {
      for (const Segment& segment : segments) {
        const auto has_last = [&](const Slot& slot) {
          const std::int64_t first = slot.micro_batch + shift;
          return first < n && n <= first + segment.repeats;
        };
        if (!began && std::ranges::none_of(segment.pattern(), has_last)) continue;
        for (std::uint32_t r = 0; r < segment.repeats;) {
          std::uint32_t next = segment.repeats - 1;  // the next repeat that may contain the last micro-batch
          double seconds_of_repeat = 0;
          for (Slot slot : segment.pattern()) {
            const std::int64_t last = n - 1 - slot.micro_batch - shift;
            if (last > r) next = static_cast<std::uint32_t>(std::min<std::int64_t>(next, last));
            seconds_of_repeat += chunks[slot.chunk][index(slot.kind)].usual.seconds;
            slot.micro_batch += shift + r;
            pass(slot);
          }
          if (next <= r) break;
          time += (next - r - 1) * seconds_of_repeat;
          r = next;
        }
      }
    };
    stretch(order.prologue, 0);
    for (std::uint32_t r = 0; r < order.repeats; ++r) stretch(order.body, r * order.advance);
    stretch(order.epilogue, 0);
  }
  for (std::size_t s = 0; s < kStreams; ++s) {
    const bool followed = c.followed && kStreamRows[s].occupies == Occupies::fabric;
    c.tail[s] = followed ? c.left[s] : std::max(0.0, end[s] - time);
    if (c.tail[s] <= c.tail_seconds) continue;
    c.tail_seconds = c.tail[s];
    c.tail_stream = static_cast<Stream>(s);
  }
}

void AnalyticalEngine::Rep::clock_slots() {
  const std::int64_t n = program->schedule.micro_batches;
  clock_lines();
  gather_while_waiting();
  find_pair_saves();
  find_waits();
  for (std::size_t i = 0; i < classes.size(); ++i) carry_backlogs(i);
  spare_pairs_backlogs();
  slow_behind_last();
  slow_hops();
  take_seconds();
  for (std::size_t i = 0; i < classes.size(); ++i) {
    StageClass& c = classes[i];
    for (std::size_t k = at(i, 0); k < at(i + 1, 0); ++k) {
      auto& l = lines[k];
      const std::size_t of_class = row(k).of_class;
      const bool first = program->class_of(0) == of_class, last = program->class_of(n - 1) == of_class;
      const auto usual = static_cast<double>(program->micro_batches_of(of_class) - (first ? 1 : 0) - (last ? 1 : 0));
      for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
        if (n == 1) {
          add(c.slots, l[kind].usual.accounts, 1);
        } else {
          if (first) add(c.slots, l[kind].first.accounts, 1);
          add(c.slots, l[kind].usual.accounts, usual);
          if (last) add(c.slots, l[kind].last.accounts, 1);
        }
      }
    }
    clock_update(c);
    find_tail(i);
  }
}

// Finds the time that two slots save as a pair. Both are clocked without a backlog: work that earlier slots have left
// slows a pair by as much as it slows the two slots in sequence. spare_pairs_backlogs() corrects pairs that take
// longer.
void AnalyticalEngine::Rep::find_pair_saves() {
  pair_saves.clear();
  if (!program->schedule.pairs) return;
  pair_saves.assign(rows(), 0);
  pair_lines.assign(pair_saves.size(), {});
  for (std::size_t at = 0; at < pair_saves.size(); ++at) {
    const Row of_row = row(at);
    const StageClass& c = classes[of_row.stage_class];
    const Chunk& chunk = of_row.chunk;
    const auto of = [&](BlockKind kind) -> const LineResult& { return lines[at][index(kind)].usual; };
    if (std::none_of(chunk.runs.begin(), chunk.runs.end(),
                     [&](const PieceRun& run) { return pieces[run.piece].pair->any; }))
      continue;
    line.clear();
    for (const PieceRun& run : chunk.runs) {
      const PieceData& data = pieces[run.piece];
      if (data.pair->any) {
        line.push_back({&data.pair->code[data.pair->code.size() > c.layout ? c.layout : 0], run.count});
        continue;
      }
      for (const BlockKind kind : {BlockKind::forward, BlockKind::backward})
        line.push_back({&data.block(kind, c.layout), run.count});
    }
    LineResult& pair = pair_lines[at];
    pair.origin = -1;
    clock.run(line, kUsual, kernels.overlap_slowdown, false, pair);
    pair_saves[at] = of(BlockKind::forward).seconds + of(BlockKind::backward).seconds - pair.seconds;
    for (const BlockKind kind : {BlockKind::forward, BlockKind::backward}) add(pair.accounts, of(kind).accounts, -1);
  }
}

// A pair can take longer than its halves alone, because one half's gathers share the fabric with work that the other
// half leaves there. Slots that carry backlogs are slowed by the same work, which must count once only.
void AnalyticalEngine::Rep::spare_pairs_backlogs() {
  for (std::size_t at = 0; at < pair_saves.size(); ++at) {
    if (pair_saves[at] >= 0 || !classes[row(at).stage_class].carries) continue;
    const auto& l = lines[at];
    const double carried = l[index(BlockKind::forward)].usual.seconds + l[index(BlockKind::backward)].usual.seconds;
    const double saves = std::clamp(carried - pair_lines[at].seconds, pair_saves[at], 0.0);
    for (double& seconds_of_account : pair_lines[at].accounts) seconds_of_account *= saves / pair_saves[at];
    pair_saves[at] = saves;
  }
}

// Books the time of paired slots, for as many pairs as the order of the class's first stage has.
void AnalyticalEngine::Rep::account_pairs() {
  if (pair_saves.empty()) return;
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const std::size_t first = at(i, 0), behind = at(i + 1, 0);
    std::vector<double> paired(behind - first);  // by row: number of pairs; each half counts 0.5
    const StageOrder order = program->schedule.order(static_cast<std::size_t>(classes[i].first_stage));
    order.for_each_turn(
        true, [](const Slot&) {},
        [&](const Slot& forward, const Slot& backward) {
          for (const Slot* slot : {&forward, &backward}) paired[this->at(i, *slot) - first] += 0.5;
        });
    for (std::size_t k = 0; k < paired.size(); ++k) {
      const std::size_t at = first + k;
      if (pair_saves[at] == 0) continue;
      add(classes[i].slots, pair_lines[at].accounts, paired[k]);
    }
  }
}

// Clocks every chunk by itself.
void AnalyticalEngine::Rep::clock_lines() {
  lines.resize(rows());
  seconds.resize(lines.size());
  const std::size_t first = program->class_of(0), last = program->class_of(program->schedule.micro_batches - 1);
  const auto ends_of = [&](std::size_t of_class) {
    return static_cast<WhenSet>((of_class == first ? bit(When::first_micro_batch) : 0) |
                                (of_class == last ? bit(When::last_micro_batch) : 0));
  };
  for (std::size_t at = 0; at < lines.size(); ++at) {
    const Row own = row(at);
    const std::size_t layout = classes[own.stage_class].layout;
    const WhenSet has = ends_of(own.of_class);
    const auto like_own = [&](std::size_t i) {
      const Row other = row(i);
      return classes[other.stage_class].layout == layout && ends_of(other.of_class) == has && other.chunk == own.chunk;
    };
    std::size_t like = 0;  // equal chunks take equal times; a virtual pipeline has many
    while (like < at && !like_own(like)) ++like;
    if (like < at)
      lines[at] = lines[like];
    else
      clock_chunk(own.chunk, layout, has, lines[at]);
  }
}

void AnalyticalEngine::Rep::find_hops() {
  borders.find(*program);
  hops.assign(borders.size(), 0);
  // Equal hops are computed once: every stage is at the same distance from the next, except those at a node's edge, and
  // most borders are equal.
  const std::int64_t stride = program->mesh.stride(MeshAxis::pp), per_node = cluster.node.devices;
  leaves_node.resize(program->stages.size());
  std::int64_t in_node = 0;  // place of the stage's first rank in its node
  for (std::size_t s = 0; s < leaves_node.size(); ++s) {
    in_node += stride % per_node;
    leaves_node[s] = stride >= per_node || in_node >= per_node;
    if (in_node >= per_node) in_node -= per_node;
  }
  const auto last = static_cast<std::int32_t>(program->stages.size()) - 1;
  // For the current kind of border: within a node, across a node's edge.
  std::array<double, 2> known{};
  for (std::size_t q = 0; q + 1 < borders.size(); ++q) {
    const auto crossing = [&] {
      const Crossing forward = borders.forward(q), backward = borders.backward(q);
      return forward.sent_bytes < backward.sent_bytes ? backward : forward;
    };
    if (q == 0 || borders.number(q) != borders.number(q - 1) || cluster.is_scattered()) known = {-1, -1};
    if (borders.stage_at(q) == borders.stage_at(q + 1)) continue;
    const std::int32_t stage = borders.behind_stage(q);
    if (stage == last) {  // around the ring
      hops[q] = costs.transfer(crossing(), stage).seconds;
      continue;
    }
    double& seconds_across = known[leaves_node[static_cast<std::size_t>(stage)] ? 1 : 0];
    if (seconds_across < 0) seconds_across = costs.transfer(crossing(), stage).seconds;
    hops[q] = seconds_across;
  }
}

void AnalyticalEngine::Rep::take_seconds() {
  for (std::size_t at = 0; at < lines.size(); ++at)
    for (std::size_t kind = 0; kind < kSlotKinds; ++kind) seconds[at][kind] = seconds_of(lines[at][kind]);
}

// Seconds of a sum over these stages; all of it on the network if they are on several nodes.
double AnalyticalEngine::Rep::stage_sum_seconds(std::size_t group, bool& crosses_nodes) const {
  double took = 0;
  const StageGroup& stages = program->stage_groups[group];
  for (const std::uint16_t s : stages)
    for (const StageSum& sum : classes[static_cast<std::size_t>(stage_class[s])].sums)
      if (sum.group == group) took = std::max(took, sum.seconds);
  crosses_nodes = false;
  for (std::size_t s = stages.front(); s < stages.back(); ++s) crosses_nodes = crosses_nodes || leaves_node[s] != 0;
  return took;
}

// Sums over stages, whose ranks wait for each other.
void AnalyticalEngine::Rep::sum_over_stages() {
  for (std::size_t g = 0; g < program->stage_groups.size(); ++g) {
    double begin = 0;
    bool crosses_nodes = false;
    double took = stage_sum_seconds(g, crosses_nodes);
    if (crosses_nodes) took *= 1 + beside_on_network();
    for (const std::uint16_t s : program->stage_groups[g]) {
      begin = std::max(begin, ends[s].reduced);
    }
    for (const std::uint16_t s : program->stage_groups[g]) {
      ends[s].bubble += begin - ends[s].reduced;
      ends[s].reduced = begin + took;
      ends[s].sums += took;
    }
  }
}

void AnalyticalEngine::Rep::finish_stages() {
  const std::size_t stages = program->stages.size();
  ends.assign(stages, {});
  for (std::size_t s = 0; s < stages; ++s) {
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    ends[s].drained = pipeline.stages[s].finish + c.tail_seconds;
    ends[s].reduced = ends[s].drained + c.gradients.seconds;
    const StageClock& clock_of = pipeline.stages[s];
    const double idle = clock_of.finish - clock_of.busy_seconds - clock_of.transfer_seconds;
    constexpr double kIdleRounding = 1e-13;  // relative; the rounding error of a stage that is always busy
    ends[s].bubble = idle > kIdleRounding * clock_of.finish ? idle : 0;
  }
  sum_over_stages();
  bool synchronises = false;
  double slowest = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    const StageClass& c = classes[static_cast<std::size_t>(stage_class[s])];
    synchronises |= c.synchronises;
    ends[s].synchronised = ends[s].reduced + c.norm.seconds;
    slowest = std::max(slowest, ends[s].synchronised);
  }
  step_seconds = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    StageEnd& e = ends[s];
    if (synchronises) {
      e.bubble += slowest - e.synchronised;
      e.synchronised = slowest;
    }
    e.end = e.synchronised + classes[static_cast<std::size_t>(stage_class[s])].update.seconds;
    step_seconds = std::max(step_seconds, e.end);
  }
  bounding_stage = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    ends[s].bubble += step_seconds - ends[s].end;
    if (ends[s].bubble < ends[static_cast<std::size_t>(bounding_stage)].bubble)
      bounding_stage = static_cast<std::int32_t>(s);
  }
}

std::size_t AnalyticalEngine::Rep::speaker_of(std::size_t stage_class_of) const {
  auto s = static_cast<std::size_t>(classes[stage_class_of].first_stage);
  for (std::size_t other = s; other < ends.size(); ++other)
    if (stage_class[other] == static_cast<std::int32_t>(stage_class_of) && ends[other].bubble < ends[s].bubble)
      s = other;
  return s;
}

void AnalyticalEngine::Rep::fill_time(Dtype mfu_dtype, Report& report) {
  const std::size_t stages = program->stages.size();
  report.stages.resize(classes.size());
  for (std::size_t i = 0; i < classes.size(); ++i) {
    const StageClass& c = classes[i];
    const std::size_t s = speaker_of(i);
    StageReport& stage = report.stages[i];
    stage.stage = c.first_stage;
    stage.stages = c.stages;
    stage.time = {};
    add(stage.time, c.slots);
    stage.time.exposed[static_cast<std::size_t>(row_of(c.tail_stream).account)] += c.tail_seconds;
    stage.time.exposed[static_cast<std::size_t>(Stream::pipeline_communication)] +=
        pipeline.stages[s].transfer_seconds + ends[s].sums;
    add(stage.time, c.gradients.accounts);
    add(stage.time, c.norm.accounts);
    add(stage.time, c.update.accounts);
    stage.time.bubble = ends[s].bubble;
    stage.busy_seconds = step_seconds - ends[s].bubble;
  }
  report.bounding_stage = stage_class[static_cast<std::size_t>(bounding_stage)];

  report.step_seconds = step_seconds;
  report.pipeline_seconds = pipeline.makespan;
  report.devices = program->mesh.ranks();
  const auto devices = static_cast<double>(report.devices);
  const ModelWork& model = program->model;
  report.tokens_per_second = model.tokens_per_step / step_seconds;
  report.tokens_per_second_per_device = report.tokens_per_second / devices;
  report.sequences_per_second = model.sequences_per_step / step_seconds;
  report.model_flops_per_second_per_device = model.flops_per_step / step_seconds / devices;
  const double peak = cluster.device.peak(mfu_dtype);
  report.mfu = report.model_flops_per_second_per_device / peak;
  report.mfu_full_attention = model.flops_per_step_full_attention / step_seconds / devices / peak;
  double recomputed = 0;
  for (const StageClass& c : classes) recomputed += c.stages * c.recompute_flops;
  recomputed *= devices / static_cast<double>(stages);  // all ranks of a stage do the same
  report.hfu = (model.executed_flops_per_step + recomputed) / step_seconds / devices / peak;
  summarise_bounding_stage(report);
  if (!kernels.measured)
    report.notes.push_back("kernel efficiencies of " + cluster.device.name + " are borrowed from " +
                           kernels.borrowed_from + ": none were measured on it");
  if (kernels.measured && kernels.lends_to(mfu_dtype))
    report.notes.push_back(std::string("efficiencies of products in ") + name_of(mfu_dtype) + " on " +
                           cluster.device.name + " are those of a wider type: none were measured");
  if (!kernels.attention_borrowed_from.empty())
    report.notes.push_back("attention efficiencies of " + cluster.device.name + " are borrowed from " +
                           kernels.attention_borrowed_from);
  if (!collectives.note.empty()) report.notes.push_back(collectives.note);
}

}  // namespace orrery
