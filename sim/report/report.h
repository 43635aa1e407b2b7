// The result of simulating (or really running) a step. Engines fill it; the writers in this folder turn it into a
// table, JSON, CSV or a trace. Seconds, bytes, FLOPs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/program/program.h"

namespace orrery {

// A figure is a number about a step that only some reports have. A strategy, an engine or a real run adds it and brings
// its texts along. So tables, JSON and trainings can show every figure without knowing who added it.
enum class FigureUnit : std::uint8_t { number, count, share, times };  // "1.88", "12", "2.1 %", "1.33x"

// What all figures of a kind have in common: where and how they are shown.
struct FigureKind {
  const char* group = "";  // the object of the report's JSON that holds it: "routing"
  const char* key = "";    // its name there
  FigureUnit unit = FigureUnit::number;
  const char* explanation = "";  // for --explain: what is counted
  const char* label = "";        // of its line in the table; empty: the table has no line for it
  // For the table of a training's steps: the column's name in CSV and JSON, and its heading for people. An empty name:
  // no column. `otherwise` is the value of steps without the figure. Unless `always`, the table for people leaves the
  // column out if all steps have that value.
  const char* column = "";
  const char* heading = "";
  double otherwise = 0;
  bool always = false;
};

struct Figure {
  const FigureKind* kind = nullptr;  // must outlive the report
  double value = 0;
  std::string remark{};   // text that follows the value in the table
  std::string caution{};  // a sentence for the notes on MFU: how this value distorts it; empty: it does not
};

std::string figure_text(const Figure& figure);  // the value as text in its unit

// Where the step's seconds go on the stage that bounds it. The terms add up to step_seconds.
struct TimeBreakdown {
  double matmul = 0;
  double attention = 0;
  double memory_bound = 0;    // norms, activations, dropouts, casts
  double recompute = 0;       // all compute that repeats forward work
  double slowest_device = 0;  // extra time of products and attention until the slowest of all devices is done
  double host_issue = 0;      // the compute stream waits for the CPU to launch
  std::array<double, kStreams> exposed{};  // the compute stream waits for this stream (communication or copies)
  double bubble = 0;                       // the stage waits for its neighbours
  double optimizer = 0;                    // update kernels after the last backward
  double production = 0;                   // loss on a shared production cluster, if it is one
  double total() const;
};

struct MemoryBreakdown {
  PlacedBytes bytes{};         // each place at its own peak
  double framework_bytes = 0;  // context, communicator buffers
  double peak_bytes = 0;       // device bytes plus framework_bytes
};

// Memory that the devices of a node share.
struct SharedMemory {
  double peak_bytes = 0;      // of one device, on the stage that uses the most
  double node_bytes = 0;      // of all devices of a node of that stage, and of their ranks' processes
  double capacity_bytes = 0;  // of a node; 0: unknown and not checked
  double process_bytes = 0;   // part of node_bytes that the processes use beside tensors
  bool fits() const { return capacity_bytes <= 0 || node_bytes <= capacity_bytes; }
};

// A class of pipeline stages that do the same.
struct StageReport {
  std::int64_t stage = 0;   // first stage of the class
  std::int64_t stages = 1;  // number of stages in the class
  double busy_seconds = 0;
  double in_flight_micro_batches = 0;  // at the memory peak
  TimeBreakdown time;
  MemoryBreakdown memory;
  // Discrete-event engine: the ranks whose times these are, those of the class that wait least. Otherwise empty.
  std::string who;
};

// A kernel for which no efficiency was measured at a similar shape.
struct UnmeasuredShape {
  std::string op;     // "layer.fc1"
  std::string shape;  // "m=2048 n=3072 k=12288 bf16"
  double share_of_step = 0;
};

// One op of the program with its cost, for --explain and the op table.
struct OpReport {
  std::string name;  // "layer.forward.fc1"
  // `piece` is an index into Program::pieces, `block` an index into kBlocks (sim/program/liveness.h). Reports that were
  // read from JSON do not have them.
  std::uint16_t piece = 0;
  std::uint8_t block = 0;
  Stream stream = Stream::compute;
  double seconds = 0;         // of one run
  double times_per_step = 0;  // on the bounding stage
  double flops = 0, bytes = 0;
  std::string bound;  // "compute", "memory", "launch", "NVLink ring Simple", ...
};

inline constexpr std::uint32_t kNoOp = 0xffffffff;
// One interval of a stream, for traces.
struct TimelineSpan {
  std::int32_t stage = 0;
  Stream stream = Stream::compute;
  std::uint8_t kind = 0;  // SlotKind, or 3: update
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0;
  double begin_seconds = 0, end_seconds = 0;
  const char* name = "";
  // The op that it runs, an index into Timeline::ops; kNoOp: a slot, or a part of the step's end.
  std::uint32_t op = kNoOp;
};
// A message from one stage's slot to another's.
struct Arrow {
  std::int32_t from_stage = 0, to_stage = 0;
  double from_seconds = 0, to_seconds = 0;
};
// Memory of one stage over time: the bytes that it holds from `seconds` on.
struct MemorySample {
  std::int32_t stage = 0;
  double seconds = 0;
  PlacedBytes bytes{};
};
// The timeline of ranks that do something else than the ranks that represent their stage.
struct RankTrack {
  std::string who;
  std::vector<TimelineSpan> intervals;
};
// One run of an op on a stream, or a stretch in which the compute stream waits.
struct OpSlice {
  std::int32_t stage = 0;
  Stream stream = Stream::compute;
  std::uint32_t op = 0;  // index into Timeline::ops
  double begin_seconds = 0, end_seconds = 0;
};
// The op or wait that a slice shows.
struct TimelineOp {
  std::string name;         // "layer.forward.fc1"; for a wait "wait: gradient reduction"
  std::string kind, bound;  // as in OpReport; for a wait "wait" and empty
  double flops = 0, bytes = 0;
};
struct Timeline {
  std::vector<TimelineSpan> intervals;
  // Analytical engine: the ops of some slots (slots_with_ops counts them) and of the step's end, on the stages in
  // `op_stages`, one of each kind of stage. Sorted by stage, then slot, then stream.
  std::vector<OpSlice> op_slices;
  std::vector<TimelineOp> ops;
  std::vector<std::int32_t> op_stages;
  std::int64_t slots_with_ops = 0;
  // Discrete-event engine: by stage, the ranks whose intervals these are: "every rank", "stage 3, rank 13".
  std::vector<std::string> stages;
  std::vector<RankTrack> ranks;  // discrete-event: other named ranks, at most kMostRankTracks
  std::vector<Arrow> arrows;
  std::vector<MemorySample> memory;
};

// Results that only the discrete-event engine has. `who` names ranks that do the same at the same time: "stage 3",
// "stage 3 with device 17".
struct LinkReport {  // links of one kind, or a single one
  std::string name;  // "nic", "node3.nic2.out"
  std::int64_t links = 1;
  double bytes_per_second = 0;    // of each link; for a slowed link its mean rate
  double bytes = 0;               // bytes carried in the step, mean over the links
  double busiest_bytes = 0;       // bytes carried by the busiest link
  double busy_seconds = 0;        // of the busiest link: time for which it carried anything
  double utilisation = 0;         // of the busiest link: mean share of its rate, protocol overheads included
  std::vector<double> over_time;  // of the busiest link: `utilisation` in kLinkBins equal parts of the step
};
inline constexpr std::size_t kLinkBins = 100;
inline constexpr std::size_t kMostRankTracks = 64;
// Collectives that took longer than alone on undisturbed links. Several may run at the same time.
struct ContentionReport {
  std::string who, op;  // "stage 0", "layer.backward.gradients.reduce_scatter"
  std::string link;     // the busiest link on their route while they ran
  double times_per_step = 0;
  double seconds_alone = 0, seconds = 0;  // of all of them together
};
// A part of the chain of events that ends with the step. Consecutive kernels are one part.
struct CriticalPathPart {
  std::string who, what;  // "stage 3", "layer.forward.input_norm .. qkv", "host issue"
  double times = 0, seconds = 0;
};
// Ranks that arrive early at an exchange and wait for others. Many may wait at the same time.
struct WaitReport {
  std::string who, for_whom, op;
  double times = 0, seconds = 0;
  // Number of further waits at the same op that are as frequent and as long, of other ranks or for other ranks. They
  // have no row of their own.
  std::int64_t alike = 0;
};
struct DiscreteEventReport {
  std::string fidelity;                      // "steady-flow" or "step-exact"
  std::string network_model;                 // in words
  std::int64_t ranks = 0, rank_classes = 0;  // after folding
  std::int64_t flows = 0, flow_classes = 0;
  std::int64_t links = 0, link_classes = 0;
  std::int64_t events = 0;                      // kernels, waits and flows simulated
  double uncontended_step_seconds = 0;          // the analytical engine's: links are not shared, nothing is disturbed
  std::vector<LinkReport> link_kinds;           // by kind, all that carry anything
  std::vector<LinkReport> busiest_links;        // single links, busiest first; of like links only the first
  std::vector<ContentionReport> contention;     // most time lost first
  std::vector<CriticalPathPart> critical_path;  // longest first; adds up to the step
  std::vector<WaitReport> waits;                // longest first
};

// The interval in which a measurement of the step is expected: four of five comparable published steps lay inside.
struct ExpectedStep {
  double low_seconds = 0, high_seconds = 0;
  std::string comparable;  // "megatron-core on measured devices"
  std::int64_t points = 0, sources = 0;
};

// A task of an iteration (sim/program/task.h).
struct TaskReport {
  std::string name;
  std::int64_t repeats = 1;    // in an iteration
  double seconds = 0;          // of one run when nothing runs beside it
  double waiting_seconds = 0;  // for which it waits for others, in an iteration
  bool beside = false;         // it runs beside other tasks
  // From the begin of an iteration: when its first run begins, and when its last one ends. A task beside others may end
  // in a later iteration.
  double begin_seconds = 0, end_seconds = 0;
};

struct Report {
  std::string engine;  // "analytical", "des"
  double step_seconds = 0;
  std::optional<ExpectedStep> expected;  // for predictions; none if no published steps are comparable
  // The tasks of a Program that has others than the step. Then step_seconds, the rates, the stages' terms and the sums
  // of these describe a step on average over an iteration, and all else the step alone. Empty, and iteration_seconds 0:
  // there are no other tasks, or the report was measured.
  std::vector<TaskReport> tasks;
  double iteration_seconds = 0;
  double pipeline_seconds = 0;  // first forward to last backward
  double tokens_per_second = 0;
  double tokens_per_second_per_device = 0;
  double sequences_per_second = 0;
  double model_flops_per_second_per_device = 0;  // causal attention halved
  double mfu = 0;                                // relative to the device's peak in the plan's precision
  double mfu_full_attention = 0;                 // the same with attention counted in full (PaLM's convention)
  double hfu = 0;
  double bubble_fraction = 0;
  double exposed_communication_seconds = 0;
  std::string bound_by;  // the largest term, in words
  std::int64_t devices = 0;
  std::int64_t bounding_stage = 0;  // index into `stages`

  std::vector<StageReport> stages;  // one per class
  double memory_peak_bytes = 0;     // of the device, on the fullest stage
  double memory_capacity_bytes = 0;
  SharedMemory host_memory, storage;
  bool memory_fits = false;       // the device's memory, and the memory and storage that nodes share
  std::int64_t memory_stage = 0;  // index into `stages` of the fullest one

  std::vector<UnmeasuredShape> unmeasured;
  double unmeasured_share = 0;
  std::vector<Figure> figures;     // those of a group together
  std::vector<std::string> notes;  // assumptions: borrowed calibration, ...

  std::optional<DiscreteEventReport> discrete_event;  // of the discrete-event engine only

  // Filled on request only.
  std::vector<OpReport> ops;
  Timeline timeline;

  // The class of stages that bounds the step, the one with the fullest memory, and the one at an index; a class of
  // zeros if there are no stages.
  const StageReport& bounding() const { return stage_at(bounding_stage); }
  const StageReport& fullest() const { return stage_at(memory_stage); }
  const StageReport& stage_at(std::int64_t index) const;

  // Returns the figure of that group and key, or without a key the group's first; nullptr if the report has none.
  const Figure* figure(std::string_view group, std::string_view key = {}) const;
};

}  // namespace orrery
