// The analytical engine: puts a clock on a Program in microseconds of CPU time. Kernels by roofline, collectives by
// latency-bandwidth models, streams by list scheduling of one instance of each block, stages by walking the schedule
// until it repeats. Cost does not grow with the data-parallel replicas, nor with equal layers.
//
// The step: the pipeline's slots (sim/analytical/block_clock.h gives their seconds, pipeline_walk.h their order); what
// is left on asynchronous streams (gradient reduction); the parts of the update blocks (sim/program/step_end.h): sums
// over stages, whose ranks wait for each other, the gradient norm, at which all stages meet, the optimizer. It ends
// when the slowest stage ends.
//
// Conventions of the report:
//  - The bounding stage is the one that waits least for others; every stage's terms add up to step_seconds.
//  busy_seconds
//    is all but the bubble.
//  - hfu counts the FLOPs of the kernels that run (stored scores unmasked) plus those of matmuls and attention of
//    Phase::recompute. What a fused attention backward recomputes inside is not counted.
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

// A slot of a timeline takes some 3 KB while it becomes a trace, and 0.6 KB in its file.
inline constexpr std::int64_t kMostTimelineSlots = 100'000;

struct AnalyticalOptions {
  // Fill Report::timeline: walks every slot, of at most kMostTimelineSlots.
  bool timeline = false;
  bool ops = false;       // fill Report::ops and ::unmeasured
  // Streams that meet on a level of the fabric share it (fabric_share.h); false: each collective has its links to
  // itself, and the step is one without contention.
  bool shares_levels = true;
};

class AnalyticalEngine {
 public:
  // Keeps references; all must outlive the engine. Not thread-safe: one engine a thread.
  AnalyticalEngine(const Cluster& cluster, const Calibration& kernels, const CollectiveCalibration& collectives);
  ~AnalyticalEngine();
  AnalyticalEngine(const AnalyticalEngine&) = delete;
  AnalyticalEngine& operator=(const AnalyticalEngine&) = delete;

  // REQUIRES: program.mesh.ranks() <= cluster.devices(). Throws InputError when the program needs a rate that the
  // cluster lacks (copies without PCIe, host kernels without a host memory rate), or when a timeline would have too many
  // slots, before any work. `report` may be that of an earlier program: nothing of it stays.
  void evaluate(const Program& program, Dtype mfu_dtype, const AnalyticalOptions& options, Report& report);

  // Of the last program: which Report::stages each pipeline stage belongs to.
  std::span<const std::int32_t> stage_classes() const;

  // For searches, which want all figures of few plans only. evaluate_memory() fills the report's memory and empties the
  // rest of it. After it, least_pipeline_seconds() returns, for the same program, the least that the pipeline takes:
  // without contention, and without what the streams of a stage have left when it ends.
  void evaluate_memory(const Program& program, Report& report);
  double least_pipeline_seconds(const Program& program);

  // Of the last program, what a search bounds plans by: a device's bytes that are there all step long, on the stage
  // that has most of them, with the driver's context; seconds of an instance's matrix products and attention in all its
  // passes, on a device of the usual rate that does nothing else, what is recomputed left out.
  double resting_bytes(const Program& program) const;
  double product_seconds(std::uint16_t piece) const;
  // Of a micro-batch in all its slots on all stages, none of which waits for another: the first, a usual one or the
  // last, whichever takes a slot the least; half of it where slots pair.
  double micro_batch_seconds(const Program& program) const;

  // Instances of blocks walked so far: for tests and benchmarks of the promise that equal layers cost nothing.
  std::int64_t instances_walked() const;

 private:
  struct Rep;
  std::unique_ptr<Rep> rep_;
};

}  // namespace orrery
