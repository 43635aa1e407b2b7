#include "cli/memory_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "sim/base/error.h"
#include "sim/memory/address_layout.h"
#include "sim/memory/allocation_trace.h"
#include "sim/program/liveness.h"
#include "sim/report/format.h"
#include "study/simulation/allocator.h"

namespace orrery {

std::string allocator_text(const Simulation& simulation) {
  const AllocationTrace trace = allocations(simulation);
  std::vector<std::vector<std::string>> rows;
  for (const bool expandable : {false, true}) {
    const Replay r = replay(trace, allocator_options(simulation, expandable), kAllocatorSteps);
    const CachingAllocator::Statistics& s = r.statistics;
    const auto between = static_cast<double>(s.peak_reserved - s.peak_allocated);
    rows.push_back({expandable ? "expandable" : "fixed", bytes_text(static_cast<double>(s.peak_allocated)),
                    bytes_text(static_cast<double>(s.peak_reserved)), bytes_text(between),
                    s.peak_reserved > 0 ? percent_text(between / static_cast<double>(s.peak_reserved)) : "-",
                    std::to_string(s.retries) + (r.out_of_memory ? ", then out of memory" : "")});
  }
  return fmt::format(
             "PyTorch's caching allocator, pipeline stage {}, peaks over {} steps (without {} of the framework)\n",
             simulation.report.fullest().stage, kAllocatorSteps,
             bytes_text(simulation.report.fullest().memory.framework_bytes)) +
         grid("<segments|allocated|reserved|between|of reserved|retries", rows);
}

namespace {

BiLevelLayout plan_of(const Simulation& simulation, const AllocationTrace& trace) {
  return bi_level_plan(*simulation.program, trace, CachingAllocator::kLeastBlock,
                       [](std::span<const StorageLife> lives) { return smallest_layout(lives); });
}

// An event takes some 100 bytes in the file, and twice that in memory, where the trace has three steps.
constexpr double kMostEvents = 1e6;

void check_size(const Simulation& simulation) {
  const auto stage = static_cast<std::size_t>(simulation.report.fullest().stage);
  const double events = allocation_events(*simulation.program, stage);
  if (events <= kMostEvents) return;
  const std::int64_t micro_batches = simulation.program->schedule.micro_batches;
  throw InputError({"", ""},
                   fmt::format("about {:.2g} allocations and frees in a step of {} micro-batch{} on stage {}", events,
                               micro_batches, micro_batches == 1 ? "" : "es", stage),
                   fmt::format("at most {:.2g} for --memory-trace: a smaller workload.global_batch_size or a larger "
                               "plan.micro_batch_size",
                               kMostEvents));
}

}  // namespace

std::string memory_plan_text(const Simulation& simulation) {
  const AllocationTrace trace = allocations(simulation);
  const BiLevelLayout plan = plan_of(simulation, trace);
  const StageReport& stage = simulation.report.fullest();
  const auto text = [](std::int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::vector<std::vector<std::string>> rows;
  const auto row = [&](const char* level, std::string block, std::int64_t runs, std::size_t storages,
                       const AddressLayout& layout) {
    rows.push_back({level, std::move(block), std::to_string(runs), std::to_string(storages), text(layout.least_bytes),
                    text(layout.bytes), percent_text(layout.gap()), layout.by_program ? "CBC" : "best fit"});
  };
  for (const BlockLayout& block : plan.blocks)
    row("1", fmt::format("{}.{}", piece_title(*simulation.program, block.piece), kBlockNames[block.block]),
        block.instances, block.storages, block.layout);
  row("2", "step", 1, plan.storages, plan.step);
  const auto is_best = [](const AddressLayout& layout) { return layout.by_program || layout.gap() == 0; };
  const bool found_best = is_best(plan.step) && std::ranges::all_of(plan.blocks, [&](const BlockLayout& block) {
                            return is_best(block.layout);
                          });
  const auto reserved = [&](bool expandable) {
    const Replay r = replay(trace, allocator_options(simulation, expandable), kAllocatorSteps);
    return text(r.statistics.peak_reserved) + (r.out_of_memory ? " and then runs out of memory" : "");
  };
  return fmt::format(
             "Bi-level memory plan (MEMO, arXiv 2407.12117, section 4.2), pipeline stage {}, without {} of the "
             "framework\n",
             stage.stage, bytes_text(stage.memory.framework_bytes)) +
         grid("<level|<block|runs|storages|alive|planned|gap|<by", rows) +
         fmt::format(
             "  planned {}: {} kept all step long, {} of the step; at most {} are alive at once\n"
             "  PyTorch's caching allocator reserves {}, with expandable segments {}\n",
             text(plan.bytes()), text(plan.resident_bytes), text(plan.step.bytes), text(plan.alive_bytes),
             reserved(false), reserved(true)) +
         (found_best ? "" : "  best fit: the solver found nothing smaller within its limits, but did not prove it\n");
}

std::string memory_trace(const Simulation& simulation, bool expandable_segments) {
  check_size(simulation);
  const AllocationTrace trace = allocations(simulation);
  const CachingAllocator::Options options = allocator_options(simulation, expandable_segments);
  return memory_snapshot(*simulation.program, trace, replay(trace, options, kAllocatorSteps), options);
}

std::string planned_memory_trace(const Simulation& simulation) {
  check_size(simulation);
  const AllocationTrace trace = allocations(simulation);
  const Replay planned = replay(trace, plan_of(simulation, trace), CachingAllocator::kLeastBlock);
  return memory_snapshot(*simulation.program, trace, planned, {});
}

}  // namespace orrery
