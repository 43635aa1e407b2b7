// What the engine keeps between evaluations, and what one evaluation finds on its way to the report. Internal.
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

// A piece's forward beside its backward (sim/program/pair.h).
struct PairedPiece {
  bool any = false;
  Piece piece;
  Liveness lives;
  std::vector<BlockCode> code;  // [Layouts]
};

struct PieceData {
  bool used = false;
  std::unique_ptr<PairedPiece> pair;  // of Schedule::pairs
  std::int64_t most_instances = 0;    // in one stretch of runs
  PieceMemory memory;
  // [Layouts][BlockKind]; only costs of collectives differ from the first.
  std::vector<std::array<BlockCode, kBlockKinds>> blocks = std::vector<std::array<BlockCode, kBlockKinds>>(1);
  double recompute_flops = 0;  // of an instance and micro-batch

  const BlockCode& block(BlockKind kind, std::size_t layout = 0) const { return blocks[layout][index(kind)]; }
};

class TimelineOps;

// One kind of slot of a chunk, in the first, a usual, and the last micro-batch; of a class of micro-batches.
struct SlotLines {
  LineResult first, usual, last;

  const LineResult& of(std::uint32_t micro_batch, std::int64_t micro_batches) const {
    if (micro_batch == 0) return first;
    return micro_batch + 1 == micro_batches ? last : usual;
  }
};

inline SlotSeconds seconds_of(const SlotLines& l) { return {l.first.seconds, l.usual.seconds, l.last.seconds}; }

// What a line was clocked with, for a timeline that shows its ops.
struct LineOrigin {
  std::span<const Chunk> chunks;
  std::size_t layout = 0;
  BlockKind kind = BlockKind::forward;
  WhenSet when = kUsual;
  bool drain = false;
  LineStart start;
  FabricBacklog backlog;  // where `start` had one
};

// Bytes of a chunk: a micro-batch's, and the transient of a slot on top of what is in flight.
struct ChunkMemory {
  PlacedBytes saved{}, kept{};
  PlacedBytes side{};           // the part of `saved` that is inputs of side streams
  double backward_buffers = 0;  // the part of the backward's transient that is StageBuffers::backward
  std::array<PlacedBytes, kSlotKinds> transient{};
};

// Over Program::stage_groups[group].
struct StageSum {
  std::size_t group = 0;
  double seconds = 0;
  const BlockCode* code = nullptr;  // the block that has the op, and the op's place in it
  std::uint16_t op = 0;
};

// Stages with equal chunks that lie alike on their nodes.
struct StageClass {
  std::int32_t first_stage = 0, stages = 0;
  std::size_t layout = 0;               // of `layouts`
  LineResult gradients, norm, update;   // parts of the end of the step
  std::vector<StageSum> sums;           // and the part between the first two of them
  bool synchronises = false;            // the gradient norm is one of all stages
  bool carries = false;                 // its slots are clocked behind what the slots before have left
  bool followed = false;                // slot by slot: what `left` has is behind the last one
  std::array<double, kStreams> left{};  // seconds until the fabric's asynchronous streams have ended
  std::array<double, kStreams> tail{};  // work left on asynchronous streams when the last slot ends
  double tail_seconds = 0;
  Stream tail_stream = Stream::compute;
  Accounts slots{};            // all micro-batches
  double recompute_flops = 0;  // of a step
  PlacedBytes resident{}, update_transient{};
};

struct StageEnd {
  double drained = 0;       // slots are done, and what they left on asynchronous streams
  double reduced = 0;       // and all reductions of gradients
  double sums = 0;          // of which: those over stages, without the waits for each other
  double synchronised = 0;  // and the gradient norm of all stages is known
  double end = 0;           // parameters are updated
  double bubble = 0;
};

// A stretch of time in which a stage uses the network for `part` of it.
struct NetworkUse {
  BlockKind kind = BlockKind::forward;
  double begin = 0, end = 0, part = 0;
};

struct AnalyticalEngine::Rep {
  Rep(const Cluster& cluster_, const Calibration& kernels_, const CollectiveCalibration& collectives_)
      : cluster(cluster_), kernels(kernels_), collectives(collectives_), costs(cluster_, kernels_, collectives_) {}

  // The steps of evaluate(), in order.
  void find_layouts(const Program& program);
  void find_classes(const Program& program);
  void find_network_use(const Program& program);
  bool share_nics(const Program& program, int round);
  void prepare_pieces(const Program& program);
  void find_hops(const Program& program);
  void count_turns(const Program& program);
  void gather_while_waiting(const Program& program);
  void find_waits(const Program& program);
  void carry_backlogs(const Program& program, std::size_t stage_class);
  bool slows_itself(const Program& program, std::size_t stage_class) const;
  void follow_backlogs(const Program& program, std::size_t stage_class);
  void settle_backlogs(const Program& program, std::size_t stage_class, std::size_t of_class);
  void hold_memory(const Program& program);
  void slow_behind_last(const Program& program);
  void slow_hops(const Program& program);
  void clock_lines(const Program& program);
  void clock_slots(const Program& program);
  void find_pair_saves(const Program& program);
  void spare_pairs_backlogs(const Program& program);
  void account_pairs(const Program& program);
  void walk_pipeline(const Program& program);
  void sum_over_stages(const Program& program);
  void finish_stages(const Program& program);
  void fill_time(const Program& program, Dtype mfu_dtype, Report& report);
  void fill_memory(const Program& program, Report& report);
  // On request.
  void fill_ops(const Program& program, Report& report) const;
  void fill_timeline(const Program& program, Report& report);
  void fill_op_slices(const Program& program, const PipelineTimeline& slots, TimelineOps& op_of, Report& report);
  // The ops of a line, clocked anew as it was.
  LineResult trace_line(const Program& program, const LineOrigin& origin, std::vector<LineOp>& ops);
  // Of a class the stage that waits the least for its neighbours: it speaks for it.
  std::size_t speaker_of(std::size_t stage_class_of) const;

  // Where micro-batches differ, `lines`, `seconds`, `memory` and the like have a row for each class of stages and of
  // micro-batches.
  std::size_t at(const Program& program, std::size_t stage_class_of, std::size_t of_class,
                 std::size_t chunk = 0) const {
    return (stage_class_of * program.micro_batch_classes() + of_class) *
               static_cast<std::size_t>(program.schedule.chunks) +
           chunk;
  }
  std::size_t at(const Program& program, std::size_t stage_class_of, const Slot& slot) const {
    return at(program, stage_class_of, program.class_of(slot.micro_batch), slot.chunk);
  }
  std::size_t rows(const Program& program) const { return at(program, classes.size(), 0); }
  struct Row {
    std::size_t stage_class = 0, of_class = 0;  // of micro-batches
    const Chunk& chunk;
  };
  Row row(const Program& program, std::size_t at) const {
    const auto chunks = static_cast<std::size_t>(program.schedule.chunks);
    const std::size_t of_class = at / chunks % program.micro_batch_classes(),
                      of_stages = at / chunks / program.micro_batch_classes();
    const auto stage = static_cast<std::size_t>(classes[of_stages].first_stage);
    return {of_stages, of_class, program.stages_of(of_class)[stage][at % chunks]};
  }
  PipelineCosts pipeline_costs(const Program& program) const {
    PipelineCosts paired = unpaired_costs(program);
    paired.pair_saves = pair_saves;
    paired.behind_last = behind_last;
    paired.slots_behind = program.stages.size();
    return paired;
  }
  // Where the two halves of a pair take their times one after the other.
  PipelineCosts unpaired_costs(const Program& program) const {
    return {.stage_class = stage_class,
            .seconds = seconds,
            .hop_seconds = hops,
            .micro_batch_class = program.micro_batch_class,
            .micro_batch_classes = program.micro_batch_classes()};
  }

  auto code_of(BlockKind kind, std::size_t layout) const {
    return [this, kind, layout](std::uint16_t piece) -> const BlockCode& { return pieces[piece].block(kind, layout); };
  }
  void clock_line(const Program& program, const Chunk& chunk, std::size_t layout, BlockKind kind, WhenSet when,
                  LineResult& result, const LineStart& start = {}) {
    clock_line(program, {&chunk, 1}, layout, kind, when, false, result, start);
  }
  void clock_line(const Program& program, std::span<const Chunk> chunks, std::size_t layout, BlockKind kind,
                  WhenSet when, bool drain, LineResult& result, const LineStart& start);
  void append_chunks(const Program& program, std::span<const Chunk> chunks, std::size_t layout, BlockKind kind);
  void clock_chunk(const Program& program, const Chunk& chunk, std::size_t layout, WhenSet has,
                   std::array<SlotLines, kSlotKinds>& lines);
  void clock_update(const Program& program, StageClass& c);
  void find_tail(const Program& program, std::size_t stage_class);
  // Of a slot of the class, by its place in the order, before it begins; 0 where it was not looked for.
  double wait(std::size_t stage_class_of, std::size_t slot) const {
    return waits.empty() ? 0 : waits[stage_class_of * (waits.size() / classes.size()) + slot];
  }
  // PieceMemory::lent_gradients of a chunk: the run that lends them, and the last one that shares them, with which the
  // backward begins to.
  struct LentGradients {
    std::size_t lender = 0, begins = 0;
  };
  LentGradients lent_gradients(const Chunk& chunk) const;
  template <class Visit>
  void visit_backward(const Chunk& chunk, LentGradients of, std::size_t run, const Visit& visit) const;
  ChunkMemory chunk_memory(const Chunk& chunk, double sent) const;
  // `forward` and `backward` are rows of `memory`.
  PlacedBytes pair_transient(const Program& program, std::size_t forward, std::size_t backward) const;
  const PlacedBytes& pair_of(const Program& program, std::size_t forward, std::size_t backward);
  bool find_peaks(const Program& program, Place place);
  CategoryBytes bytes_at_peak(const Program& program, std::size_t stage, Place place);
  void fill_shared(const Program& program, Place place, SharedMemory& shared, Report& report);
  double framework_bytes(const Program& program);

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

  // Ways in which stages lie on their nodes; none: all lie alike.
  struct Layout {
    std::int64_t stage = 0;  // the first that lies so
    struct Block {
      std::unique_ptr<OpCostModel> costs;
      std::vector<double> others_busy;  // [stage]: see OpCostModel::set_stage
    };
    std::array<Block, kBlockKinds> blocks;  // by BlockKind: stages meet in some of their blocks
  };
  std::vector<Layout> layouts, spare_layouts;
  std::vector<std::size_t> stage_layout;
  StageSpans stage_spans;
  std::vector<std::vector<NetworkUse>> network_use;  // [stage], in order
  std::vector<std::int32_t> stage_class;
  std::vector<std::uint32_t> at_position;  // [stage]
  std::vector<std::int64_t> turns;         // [stage * chunks + chunk]: count_turns()
  // When two forwards end: that of the first micro-batch, and the last before the first one of the stage's next chunk.
  struct FirstEnds {
    double issued = 0, gathered = 0;  // the gathers that the first micro-batch issues ahead: their issue, their end
    double first = 0, last = 0;       // the first micro-batch's forward; the last before the stage's next chunk
  };
  std::vector<FirstEnds> first_ends;       // [position]: when forwards end
  std::vector<char> gathers_alone;         // [at()]: whether the first micro-batch alone gathers ahead
  std::vector<double> gather_seconds;      // [at()]: what a first forward gathers
  std::vector<double> first_waits;         // [at()]: the wait with which a first forward was clocked; 0: none
  std::vector<StageClass> classes;
  std::vector<std::array<SlotLines, kSlotKinds>> lines;  // [at()][SlotKind]
  std::vector<ChunkSeconds> seconds;                     // the same, for the walk
  std::vector<double> pair_saves;                        // PipelineCosts::pair_saves
  std::vector<LineResult> pair_lines;                    // [at()]: a pair; its accounts: what it takes more
  std::vector<double> behind_last;                       // PipelineCosts::behind_last
  std::vector<std::int32_t> slot_before;                 // [chunk * kSlotKinds + SlotKind]
  std::vector<FabricBacklog> backlogs;                   // the same
  std::vector<double> waits;                             // [class][slot in order]: before it; none: not looked for
  SharedFabric fabric;                                   // while a stage waits
  PipelineTimeline walked;                               // where waits were looked for
  std::vector<ChunkMemory> memory;                       // [at()]
  std::vector<ChunkBytes> chunk_bytes;
  // [at()]: bytes of gradients that last from a chunk's first backward to its last. Empty: none do.
  std::vector<double> gradients;
  std::map<std::pair<std::size_t, std::size_t>, PlacedBytes> pair_memory;
  Borders borders;
  std::vector<std::uint8_t> leaves_node;  // [stage]: the next one's ranks are in another node
  std::vector<double> hops;               // [position]
  PipelineClock pipeline;
  std::vector<StagePeak> peaks;                      // by stage
  std::vector<HeldMicroBatches> held_micro_batches;  // as a row of `memory`: at the peak of the stage asked for last
  std::vector<StageEnd> ends;
  std::vector<MeshGroup> communicators;
  double step_seconds = 0;
  std::int32_t bounding_stage = 0;
};

}  // namespace orrery
