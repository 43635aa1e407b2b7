// The state that the engine keeps between evaluations, and the intermediate results of one evaluation. Internal.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "sim/analytical/block_clock.h"
#include "sim/analytical/engine.h"
#include "sim/analytical/op_cost.h"
#include "sim/analytical/pipeline_walk.h"
#include "sim/memory/memory.h"
#include "sim/program/borders.h"
#include "sim/program/liveness.h"

namespace orrery {

constexpr std::size_t index(BlockKind kind) { return static_cast<std::size_t>(kind); }
constexpr std::size_t index(SlotKind kind) { return static_cast<std::size_t>(kind); }

// A piece's forward together with its backward (sim/program/pair.h).
struct PairedPiece {
  bool any = false;
  Piece piece;
  Liveness lives;
  std::vector<BlockCode> code;  // by layout
};

struct PieceData {
  bool used = false;
  std::unique_ptr<PairedPiece> pair;  // for Schedule::pairs
  std::int64_t most_instances = 0;    // largest number of instances in one stretch of runs
  PieceMemory memory;
  // [layout][BlockKind]; layouts differ only in the costs of collectives.
  std::vector<std::array<BlockCode, kBlockKinds>> blocks = std::vector<std::array<BlockCode, kBlockKinds>>(1);
  double recompute_flops = 0;  // of one instance and micro-batch

  const BlockCode& block(BlockKind kind, std::size_t layout = 0) const { return blocks[layout][index(kind)]; }
};

class TimelineOps;

// The lines of one kind of slot of a chunk: in the first, a usual, and the last micro-batch of one class of
// micro-batches.
struct SlotLines {
  LineResult first, usual, last;

  const LineResult& of(std::uint32_t micro_batch, std::int64_t micro_batches) const {
    if (micro_batch == 0) return first;
    return micro_batch + 1 == micro_batches ? last : usual;
  }
};

inline SlotSeconds seconds_of(const SlotLines& l) { return {l.first.seconds, l.usual.seconds, l.last.seconds}; }

// The inputs with which a line was clocked, for a timeline that shows its ops.
struct LineOrigin {
  std::span<const Chunk> chunks;
  std::size_t layout = 0;
  BlockKind kind = BlockKind::forward;
  WhenSet when = kUsual;
  bool drain = false;
  LineStart start;
  FabricBacklog backlog;  // a copy, if `start` had a backlog
};

// Bytes of a chunk: held by a micro-batch, and held by a slot in addition to everything in flight.
struct ChunkMemory {
  PlacedBytes saved{}, kept{};
  PlacedBytes side{};           // the part of `saved` that is inputs of side streams
  double backward_buffers = 0;  // the part of the backward's transient that is StageBuffers::backward
  std::array<PlacedBytes, kSlotKinds> transient{};
};

// The sum over the stages Program::stage_groups[group].
struct StageSum {
  std::size_t group = 0;
  double seconds = 0;
  const BlockCode* code = nullptr;  // the block that has the op, and the op's index in it
  std::uint16_t op = 0;
};

// Stages with equal chunks that lie in the same way on their nodes.
struct StageClass {
  std::int32_t first_stage = 0, stages = 0;
  std::size_t layout = 0;                    // index into `layouts`
  LineResult gradients{}, norm{}, update{};  // parts of the end of the step
  std::vector<StageSum> sums{};              // the part between `gradients` and `norm`
  bool synchronises = false;                 // all stages compute one gradient norm together
  bool carries = false;                      // its slots are clocked with the work that the slots before have left
  bool followed = false;                     // its slots are clocked one by one: `left` is the state after the last one
  std::array<double, kStreams> left{};       // seconds until the fabric's asynchronous streams have ended
  std::array<double, kStreams> tail{};       // work left on asynchronous streams when the last slot ends
  double tail_seconds = 0;
  Stream tail_stream = Stream::compute;
  Accounts slots{};            // all micro-batches
  double recompute_flops = 0;  // of a step
  PlacedBytes resident{}, update_transient{};
};

// The instants at which the parts of a stage's end of the step are done.
struct StageEnd {
  double drained = 0;       // the slots are done, and the work they left on asynchronous streams
  double reduced = 0;       // all gradient reductions are done, too
  double sums = 0;          // seconds of this for sums over stages, without waiting for each other
  double synchronised = 0;  // the gradient norm of all stages is known, too
  double end = 0;           // the parameters are updated
  double bubble = 0;
};

// A time interval in which a stage uses the network for the share `part` of the time.
struct NetworkUse {
  BlockKind kind = BlockKind::forward;
  double begin = 0, end = 0, part = 0;
};

struct AnalyticalEngine::Rep {
  Rep(const Cluster& cluster_, const Calibration& kernels_, const CollectiveCalibration& collectives_)
      : cluster(cluster_), kernels(kernels_), collectives(collectives_), costs(cluster_, kernels_, collectives_) {}

  // Evaluates the step alone, beside a flow that never ends.
  void evaluate_step(const Program& of, Dtype mfu_dtype, const AnalyticalOptions& options, const EndlessFlow& beside,
                     Report& report);
  // Adds the tasks of the program (sim/program/task.h) to the report of its step.
  void add_tasks(Dtype mfu_dtype, bool shares_levels, Report& report);
  // The parts of evaluate_step(), in order.
  void find_layouts();
  void find_classes();
  std::vector<std::vector<NetworkUse>> network_use();  // by stage, in order of time
  bool share_nics(int round);
  void prepare_pieces();
  void find_hops();
  std::vector<std::int64_t> count_turns() const;  // [stage * chunks + chunk]
  void gather_while_waiting();
  void find_waits();
  void carry_backlogs(std::size_t stage_class);
  bool slows_itself(std::size_t stage_class) const;
  void follow_backlogs(std::size_t stage_class);
  void settle_backlogs(std::size_t stage_class, std::size_t of_class);
  void hold_memory();
  void slow_behind_last();
  void slow_hops();
  void clock_lines();
  void clock_slots();
  void find_pair_saves();
  void spare_pairs_backlogs();
  void account_pairs();
  void take_seconds();
  double stage_sum_seconds(std::size_t group, bool& crosses_nodes) const;
  void sum_over_stages();
  // By how much what the flow beside the step meets on the network takes longer, over its time alone.
  double beside_on_network() const {
    const double share = endless[static_cast<std::size_t>(FabricLevel::network)];
    return share < 0.5 ? share / (1 - share) : 1;
  }
  void finish_stages();
  // Seconds for which the bounding stage's collectives, and on the network what it sends to other stages, would use the
  // level if each had it to itself.
  double seconds_on(FabricLevel level);
  void fill_time(Dtype mfu_dtype, Report& report);
  void fill_memory(Report& report);
  // On request.
  void fill_ops(Report& report) const;
  void fill_timeline(Report& report);
  void fill_op_slices(const PipelineTimeline& slots, TimelineOps& op_of, Report& report);
  // Clocks a line again with the inputs that it had, and returns its ops.
  LineResult trace_line(const LineOrigin& origin, std::vector<LineOp>& ops);
  // The stage of a class that waits least for its neighbours. It represents the class.
  std::size_t speaker_of(std::size_t stage_class_of) const;

  // The index of a row. If micro-batches differ, `lines`, `seconds`, `memory` and others have rows for each pair of a
  // class of stages and a class of micro-batches, and for each chunk.
  std::size_t at(std::size_t stage_class_of, std::size_t of_class, std::size_t chunk = 0) const {
    return (stage_class_of * program->micro_batch_classes() + of_class) *
               static_cast<std::size_t>(program->schedule.chunks) +
           chunk;
  }
  std::size_t at(std::size_t stage_class_of, const Slot& slot) const {
    return at(stage_class_of, program->class_of(slot.micro_batch), slot.chunk);
  }
  std::size_t rows() const { return at(classes.size(), 0); }
  struct Row {
    std::size_t stage_class = 0, of_class = 0;  // `of_class`: the class of micro-batches
    const Chunk& chunk;
  };
  Row row(std::size_t at) const {
    const auto chunks = static_cast<std::size_t>(program->schedule.chunks);
    const std::size_t of_class = at / chunks % program->micro_batch_classes(),
                      of_stages = at / chunks / program->micro_batch_classes();
    const auto stage = static_cast<std::size_t>(classes[of_stages].first_stage);
    return {of_stages, of_class, program->stages_of(of_class)[stage][at % chunks]};
  }
  PipelineCosts pipeline_costs() const {
    PipelineCosts paired = unpaired_costs();
    paired.pair_saves = pair_saves;
    paired.behind_last = behind_last;
    paired.slots_behind = program->stages.size();
    return paired;
  }
  // The costs when the two halves of a pair run one after the other.
  PipelineCosts unpaired_costs() const {
    return {.stage_class = stage_class,
            .seconds = seconds,
            .hop_seconds = hops,
            .micro_batch_class = program->micro_batch_class,
            .micro_batch_classes = program->micro_batch_classes()};
  }

  auto code_of(BlockKind kind, std::size_t layout) const {
    return [this, kind, layout](std::uint16_t piece) -> const BlockCode& { return pieces[piece].block(kind, layout); };
  }
  void clock_line(const Chunk& chunk, std::size_t layout, BlockKind kind, WhenSet when, LineResult& result,
                  const LineStart& start = {}) {
    clock_line({&chunk, 1}, layout, kind, when, false, result, start);
  }
  void clock_line(std::span<const Chunk> chunks, std::size_t layout, BlockKind kind, WhenSet when, bool drain,
                  LineResult& result, const LineStart& start);
  // Fills and returns `items`.
  std::vector<LineItem>& line_items(std::span<const Chunk> chunks, std::size_t layout, BlockKind kind,
                                    std::vector<LineItem>& items) const;
  void clock_chunk(const Chunk& chunk, std::size_t layout, WhenSet has, std::array<SlotLines, kSlotKinds>& lines);
  void clock_update(StageClass& c);
  void find_tail(std::size_t stage_class);
  // Seconds for which a stage of the class waits before its slot number `slot`; 0 if not computed.
  double wait(std::size_t stage_class_of, std::size_t slot) const {
    return waits.empty() ? 0 : waits[stage_class_of * (waits.size() / classes.size()) + slot];
  }
  // For PieceMemory::lent_gradients of a chunk: `lender` is the run that lends them; `begins` is the last run that
  // shares them, with which the backward begins to hold them.
  struct LentGradients {
    std::size_t lender = 0, begins = 0;
  };
  LentGradients lent_gradients(const Chunk& chunk) const;
  template <class Visit>
  void visit_backward(const Chunk& chunk, LentGradients of, std::size_t run, const Visit& visit) const;
  ChunkMemory chunk_memory(const Chunk& chunk, double sent) const;
  // `forward` and `backward` are row indices of `memory`.
  PlacedBytes pair_transient(std::size_t forward, std::size_t backward) const;
  const PlacedBytes& pair_of(std::size_t forward, std::size_t backward);
  std::vector<StagePeak> find_peaks(Place place);
  // The bytes at the peak, and how many micro-batches are in flight then, counted in each of their chunks.
  std::pair<PlacedBytes, double> at_peak(std::size_t stage, const StagePeak& peak);
  void fill_shared(Place place, SharedMemory& shared, Report& report);
  double framework_bytes();

  const Program* program = nullptr;  // the one that is evaluated
  EndlessFlow endless{};             // what runs beside it
  const Cluster& cluster;
  const Calibration& kernels;
  const CollectiveCalibration& collectives;
  OpCostModel costs;

  MemoryScratch scratch;
  BlockCompiler compiler;
  LineClock clock;
  PipelineWalker walker;
  std::vector<PieceData> pieces;
  std::vector<LineItem> line;
  bool keeps_origins = false;
  std::vector<LineOrigin> origins;

  // The ways in which stages lie on their nodes; empty: all lie alike.
  struct Layout {
    std::int64_t stage = 0;  // the first stage that lies in this way
    struct Block {
      std::unique_ptr<OpCostModel> costs;
      std::vector<double> others_busy;  // by stage: see OpCostModel::set_stage
    };
    std::array<Block, kBlockKinds> blocks;  // by BlockKind: stages share NICs only in some of their blocks
  };
  std::vector<Layout> layouts, spare_layouts;
  std::vector<std::size_t> stage_layout;
  StageSpans stage_spans;
  std::vector<std::int32_t> stage_class;
  std::vector<StageClass> classes;
  std::vector<std::array<SlotLines, kSlotKinds>> lines;  // [at()][SlotKind]
  std::vector<ChunkSeconds> seconds;                     // [at()]: the seconds of `lines`, for the walk
  std::vector<double> pair_saves;                        // PipelineCosts::pair_saves
  std::vector<LineResult> pair_lines;                    // [at()]: a pair; its accounts hold the additional time
  std::vector<double> behind_last;                       // PipelineCosts::behind_last
  std::vector<double> waits;        // [class][slot in order]: wait before the slot; empty: not computed
  SharedFabric fabric;              // the fabric while a stage waits
  PipelineTimeline walked;          // the timeline from which waits were computed
  std::vector<ChunkMemory> memory;  // [at()]
  // [at()]: bytes of gradients held from a chunk's first backward to its last one. Empty: none are.
  std::vector<double> gradients;
  std::map<std::pair<std::size_t, std::size_t>, PlacedBytes> pair_memory;
  Borders borders;
  std::vector<std::uint8_t> leaves_node;  // by stage: whether the next stage's ranks are on another node
  std::vector<double> hops, hops_alone;   // by position; alone: when nothing else uses the network
  PipelineClock pipeline;
  std::vector<StageEnd> ends;
  double step_seconds = 0;
  std::int32_t bounding_stage = 0;
};

}  // namespace orrery
