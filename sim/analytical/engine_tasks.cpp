// Tasks beside the step: their times, alone and beside each other.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "sim/analytical/engine_rep.h"
#include "sim/analytical/iteration.h"

namespace orrery {

double AnalyticalEngine::Rep::seconds_on(FabricLevel level) {
  const auto part = [&](const FabricWork& work) {
    if (level == FabricLevel::network) return work.seconds[1];
    return work.in_node == level ? work.seconds[0] : 0;
  };
  const auto stage = static_cast<std::size_t>(bounding_stage);
  const std::size_t layout = classes[static_cast<std::size_t>(stage_class[stage])].layout;
  double seconds_on_level = 0;
  // Adds the seconds of a block, by When.
  const auto add = [&](const Chunk& chunk, BlockKind kind, std::array<double, 3>& by_when) {
    for_each_stretch(program->pieces, chunk.runs, [&](std::span<const PieceRun> stretch, std::int64_t instances) {
      for (const PieceRun& run : stretch) {
        const BlockCode& code = pieces[run.piece].block(kind, layout);
        for (const ClockNode& node : code.nodes) {
          if (!node.moves || !code.costs[node.op].is_on(level)) continue;
          const bool all = node.every == kAllInstances || node.covers == Covers::last;
          const std::int64_t covered = node.every == kAllInstances ? instances : node.every;
          const double work =
              part(fabric_work(code.model->collective(code.ops[node.op], code.piece->tensors, covered)));
          const double times = all ? static_cast<double>(run.count) / static_cast<double>(instances)
                                   : static_cast<double>(run.count) / node.every;
          for (std::size_t w = 0; w < by_when.size(); ++w)
            if (node.when == bit(static_cast<When>(w))) by_when[w] += work * times * node.count;
        }
      }
    });
  };
  for (std::size_t of_class = 0; of_class < program->micro_batch_classes(); ++of_class)
    for (const Chunk& chunk : program->stages_of(of_class)[stage])
      for (std::size_t kind = 0; kind < kSlotKinds; ++kind) {
        std::array<double, 3> by_when{};
        add(chunk, static_cast<BlockKind>(kind), by_when);
        seconds_on_level += by_when[0] * static_cast<double>(program->micro_batches_of(of_class)) +
                            (of_class == 0 ? by_when[1] + by_when[2] : 0);
      }
  for (std::size_t q = 0; level == FabricLevel::network && q + 1 < hops_alone.size(); ++q) {
    if (borders.stage_at(q) == borders.stage_at(q + 1) ||
        !leaves_node[static_cast<std::size_t>(borders.behind_stage(q))])
      continue;
    const bool own = static_cast<std::size_t>(borders.stage_at(q)) == stage ||
                     static_cast<std::size_t>(borders.stage_at(q + 1)) == stage;
    // Outputs of the forward cross one way, gradients of the backward the other. Where one follows the other in turn
    // (1F1B) they cross at the same time; before that, as many cross alone as there are stages behind.
    const std::int64_t n = program->schedule.micro_batches,
                       alone = std::min(n, static_cast<std::int64_t>(hops_alone.size() - 1 - q));
    if (own) seconds_on_level += hops_alone[q] * static_cast<double>(n + alone);
  }
  for (std::size_t g = 0; level == FabricLevel::network && g < program->stage_groups.size(); ++g) {
    bool crosses_nodes = false;
    const double took = stage_sum_seconds(g, crosses_nodes);
    if (crosses_nodes && std::ranges::find(program->stage_groups[g], stage) != program->stage_groups[g].end())
      seconds_on_level += took;
  }
  for (const BlockKind kind : {BlockKind::gradients, BlockKind::norm, BlockKind::update}) {
    std::array<double, 3> by_when{};
    for (const Chunk& chunk : program->stages[stage]) add(chunk, kind, by_when);
    for (const double work : by_when) seconds_on_level += work;
  }
  return seconds_on_level;
}

void AnalyticalEngine::Rep::add_tasks(Dtype mfu_dtype, bool shares_levels, Report& report) {
  const Program& with_tasks = *program;
  Rep other(cluster, kernels, collectives);
  std::vector<EndlessFlow> flows(with_tasks.pieces.front().tasks.size());  // by block - 1, if it runs beside others
  const TaskParts parts =
      evaluate_tasks(with_tasks, report, [&](const Task& task, const Program& of_task, Report& report_of_task) {
        other.evaluate_step(of_task, mfu_dtype, {.shares_levels = shares_levels}, {}, report_of_task);
        if (!task.beside || !shares_levels) return;
        EndlessFlow& flow = flows[task.block - 1u];
        for (std::size_t l = 0; l < kFabricLevels; ++l) flow[l] = other.seconds_on(static_cast<FabricLevel>(l));
        const double most = *std::ranges::max_element(flow);
        for (double& share : flow) share = most > 0 ? share / most : 0;
      });
  const auto beside = [&](std::size_t task, std::size_t task_beside) {
    const std::uint16_t block = with_tasks.tasks[task].block;
    const EndlessFlow& flow = flows[with_tasks.tasks[task_beside].block - 1u];
    Report slowed;
    other.evaluate_step(block == 0 ? with_tasks : parts.programs[block - 1u], mfu_dtype,
                        {.shares_levels = shares_levels}, flow, slowed);
    // A level is never idle. While collectives of this task use it, which takes them twice as long, the flow has half
    // of it: it loses time only where it uses more when alone. The level on which it loses most decides.
    double lost = 0;
    for (std::size_t l = 0; l < kFabricLevels; ++l)
      if (flow[l] > 0.5) lost = std::max(lost, (2 - 1 / flow[l]) * other.seconds_on(static_cast<FabricLevel>(l)));
    return RunBeside{slowed.step_seconds, std::max(0.0, slowed.step_seconds - lost)};
  };
  const Iteration iteration = iterate(with_tasks, parts.alone, beside);
  spread(with_tasks, iteration, parts.reports, report);
  constexpr double kWorthSaying = 0.03;
  if (const double share = iteration.uncertain_seconds / iteration.seconds; share > kWorthSaying)
    report.notes.push_back(
        fmt::format("a task beside the steps meets only a part of a step: the step time is uncertain by up to {:.0f} "
                    "%; --engine des simulates that part",
                    100 * share));
}

}  // namespace orrery
