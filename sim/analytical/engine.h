// The analytical engine: gives a Program a clock in microseconds of CPU time. Kernels take their time from a roofline,
// collectives from latency-bandwidth models, streams from list scheduling of one instance of each block, and stages
// from walking the schedule until it repeats. The cost grows neither with data-parallel replicas nor with equal layers.
//
// A step consists of the pipeline's slots (sim/analytical/block_clock.h gives their seconds, pipeline_walk.h their
// order), the work that is left on asynchronous streams (gradient reduction), and the parts of the update blocks
// (sim/program/step_end.h): sums over stages, whose ranks wait for each other; the gradient norm, at which all stages
// meet; and the optimizer. It ends when the slowest stage ends.
//
// Conventions of the report:
//  - The bounding stage is the one that waits least for others; every stage's terms add up to step_seconds.
//    busy_seconds is everything but the bubble.
//  - hfu counts the FLOPs of the kernels that run (stored scores unmasked) plus those of matmuls and attention of
//    Phase::recompute. It does not count what a fused attention backward recomputes inside.
//  - in_flight_micro_batches counts chunks: a micro-batch in flight in two chunks of a stage counts two.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "sim/cost/collective_cost.h"
#include "sim/cost/kernel_cost.h"
#include "sim/hardware/cluster.h"
#include "sim/program/program.h"
#include "sim/report/report.h"

namespace orrery {

// A slot of a timeline takes about 3 KB of memory while it becomes a trace, and 0.6 KB in the trace's file.
inline constexpr std::int64_t kMostTimelineSlots = 100'000;

struct AnalyticalOptions {
  // Fill Report::timeline. Walks every slot; at most kMostTimelineSlots.
  bool timeline = false;
  bool ops = false;  // fill Report::ops and ::unmeasured
  // True: streams that meet on a level of the fabric share it (fabric_share.h). False: each collective has its links to
  // itself, so that the step is without contention.
  bool shares_levels = true;
};

class AnalyticalEngine {
 public:
  // Keeps references; all must outlive the engine. Not thread-safe: one engine a thread.
  AnalyticalEngine(const Cluster& cluster, const Calibration& kernels, const CollectiveCalibration& collectives);
  ~AnalyticalEngine();
  AnalyticalEngine(const AnalyticalEngine&) = delete;
  AnalyticalEngine& operator=(const AnalyticalEngine&) = delete;

  // REQUIRES: program.mesh.ranks() <= cluster.devices(). Throws InputError if the program needs a rate that the cluster
  // lacks (copies without PCIe, host kernels without a host memory rate), or, before any work, if a timeline would have
  // too many slots. `report` may hold an earlier program's report: nothing of it remains. If the program has tasks
  // beside the step (sim/program/task.h), the report is of a step on average; its ops and its timeline are of the step
  // alone.
  void evaluate(const Program& program, Dtype mfu_dtype, const AnalyticalOptions& options, Report& report);

  // For the last program: by pipeline stage, its index into Report::stages.
  std::span<const std::int32_t> stage_classes() const;

  // For searches, which need all figures of few plans only. evaluate_memory() fills the report's memory and clears
  // everything else. After it, least_pipeline_seconds() returns a lower bound of the pipeline's seconds for the same
  // program: without contention, and without the work that the streams of a stage have left at the end.
  void evaluate_memory(const Program& program, Report& report);
  double least_pipeline_seconds(const Program& program);

  // Lower bounds for searches, for the last program. resting_bytes(): device bytes held for the whole step on the stage
  // with the most of them, with the driver's context. product_seconds(): seconds of an instance's matrix products and
  // attention in all its passes, without recomputation, on a device of the usual rate that does nothing else.
  double resting_bytes(const Program& program) const;
  double product_seconds(std::uint16_t piece) const;
  // Seconds of one micro-batch in all its slots on all stages, without waiting. For each slot it takes the shortest of
  // the first, a usual and the last micro-batch. Slots that pair count half.
  double micro_batch_seconds(const Program& program) const;

  // Number of block instances walked so far. Tests and benchmarks check with it that equal layers cost nothing.
  std::int64_t instances_walked() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
