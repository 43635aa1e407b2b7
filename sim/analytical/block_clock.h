// The clock of straight-line code: list scheduling of a rank's streams over the blocks that one slot of the schedule
// runs, e.g. the forwards of all layers of a chunk.
//
// A block is first compiled. Each op's seconds are computed once, only dependencies across streams are kept, and
// neighbouring kernels that nothing else waits for are merged into one node. A line of blocks is then walked instance
// by instance until its state advances by the same amounts, and jumps to the end (or to where the regime changes). Its
// cost therefore does not grow with equal layers.
//
// Rules for one op, in the order of issue:
//  - The host issues it `host_seconds` after the previous one (CUDA graphs: a whole block at the cost of one). Host and
//    device start a line together: the host, too, waits for the tensors that another stage hands on (Megatron-LM's
//    batch_p2p_sync).
//  - It starts when its stream is free, the host has issued it, its operands are ready, and, on a stream other than
//    compute and unless free_running, the kernels issued before it have finished.
//  - For ops that are issued ahead and for buckets see sim/program/issue.h.
//  - Kernels wait for copies from the buffers that their instance takes over (Op::buffers).
//  - If an op of count n waits for an op of count n on another stream, its first part waits for the other's first part,
//    and its last part for the other's last part.
//  - Kernels are slowed by `overlap_slowdown` while a collective that was issued before them runs on another stream.
//  - If collectives of two streams of the line meet on a level of the fabric, those that run at the same time share the
//    level (fabric_share.h).
// A line ends when its kernels, its output, and all streams but the asynchronous ones (sim/program/stream.h) have
// ended.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "sim/analytical/fabric_share.h"
#include "sim/analytical/op_cost.h"
#include "sim/program/issue.h"
#include "sim/program/program.h"
#include "sim/program/step_end.h"
#include "sim/report/report.h"

namespace orrery {

// The use of a second of the compute stream. From kExposed on: waiting, by the account of the stream that it waited
// for.
enum Account : std::uint8_t {
  kMatmul,
  kAttention,
  kMemoryBound,
  kRecompute,
  kOptimizer,
  kSlowestDevice,  // OpCost::waiting, for kernels of any of the accounts above
  kHostIssue,
  kExposed
};
inline constexpr int kAccounts = kExposed + kStreams;
using Accounts = std::array<double, kAccounts>;
void add(TimeBreakdown& to, const Accounts& from);

constexpr Account waiting_for(Stream stream) {
  return static_cast<Account>(kExposed + static_cast<int>(row_of(stream).account));
}

// One op, or several neighbouring kernels of the compute stream.
struct ClockNode {
  double seconds = 0;       // seconds on its stream
  double last_seconds = 0;  // seconds of the last of `count` launches
  double host_first = 0;    // seconds until the host has issued the first op
  double host = 0;          // seconds until the host has issued all ops
  double host_bound = 0;    // seconds from the host's time before the node to its end, if the host is the bound
  std::uint16_t first_dep = 0, deps = 0;
  std::uint16_t op = 0;  // index of the first op
  std::uint16_t every = 1, count = 1, prefetch = 0, buffers = 0;
  Stream stream = Stream::compute;
  WhenSet when = kUsual;  // runs if the line's set contains it
  Covers covers = Covers::own;
  bool waits_for_compute = false;
  bool host_waits = false;    // the host issues it only after all earlier work on the compute stream
  bool once = false;          // runs only in the last instance that has such nodes
  bool moves = false;         // a collective: slows down kernels that run at the same time
  Account account = kMatmul;  // account of seconds that are not in BlockCode::busy
  bool counted = false;       // whether its seconds are in BlockCode::busy
  // Seconds of the merged kernels by account; a slow-down is booked in these proportions.
  std::array<double, kHostIssue> kernel_seconds{};
};

// Facts that each compilation of a block finds anew.
struct BlockFacts {
  static constexpr std::uint16_t kNone = 0xffff;

  double graph_host_seconds = 0;                           // host seconds to issue the whole block as one graph
  std::array<Accounts, 3> busy{};                          // by When: kernel seconds of an instance
  std::array<StreamsByLevel, 3> on_level{};                // by When: streams whose collectives use each level
  std::uint16_t exit_compute = kNone, exit_other = kNone;  // the nodes that finish the block's output
  std::uint16_t issues_ahead_from = 0;                     // index of an op (issue.h); a node begins with it
  std::array<std::uint16_t, 2> cuts{};                     // the nodes that begin at CompileContext::cuts
  WhenSet conditions = 0;                                  // of its ops: tells in which micro-batches they differ
  bool once = false;                                       // has ops that run once for all instances of the line
  bool takes_turns = false;                                // has ops with Op::buffers
  std::int64_t period = 1;                                 // least common multiple of `every`
};
struct BlockCode : BlockFacts {
  static constexpr std::uint16_t kEntry = 0xfffe;  // as a dependency: the block's input, from the previous instance

  std::vector<ClockNode> nodes;
  std::vector<std::uint16_t> deps;        // indices of nodes of this block, or kEntry
  std::vector<std::uint16_t> prefetched;  // indices of nodes with prefetch > 0
  std::vector<OpCost> costs;              // by op of the block
  std::vector<double> host;               // by op of the block: host seconds to issue one launch
  const Piece* piece = nullptr;
  std::span<const Op> ops;
  const OpCostModel* model = nullptr;
};

// The context in which the blocks of a piece are compiled.
struct CompileContext {
  // `storage`: by tensor, its storage (Liveness). `sums_over_stages`: whether any piece of the program has such a sum.
  CompileContext(const Piece& piece, const OpCostModel& model, const Runtime& of_program,
                 std::span<const TensorId> storage, bool sums_over_stages)
      : costs(&model), runtime(&of_program), root(storage), update(piece, storage, sums_over_stages) {}

  const OpCostModel* costs;
  const Runtime* runtime;
  std::span<const TensorId> root;
  UpdateParts update;
  const std::array<std::size_t, 2>* cuts = nullptr;  // ops at which a node must begin, ascending (PairCuts)
};

// Kinds of compiled blocks. The update block is compiled in parts (UpdatePart).
enum class BlockKind : std::uint8_t { forward, backward, weight_gradient, gradients, stages, norm, update };
inline constexpr int kBlockKinds = 7;
constexpr bool is_of_update(BlockKind kind) { return kind >= BlockKind::gradients; }
constexpr BlockKind block_of(UpdatePart part) {
  return static_cast<BlockKind>(static_cast<int>(BlockKind::gradients) + static_cast<int>(part));
}
// The name of the kind in the names of the report's ops.
constexpr const char* name_of(BlockKind kind) {
  return kBlockNames[is_of_update(kind) ? kUpdateBlock : static_cast<std::size_t>(kind)];
}

// Compiles blocks; keeps its working storage between calls.
class BlockCompiler {
 public:
  // REQUIRES: `piece` outlives `code`.
  void compile(const Piece& piece, BlockKind kind, const CompileContext& context, BlockCode& code);

 private:
  struct Link {
    std::uint16_t from, to;  // ops; from may be BlockCode::kEntry
  };
  void link(std::size_t to, const CompileContext& context, TensorId entry, BlockCode& code);
  void build_nodes(BlockKind kind, const CompileContext& context, BlockCode& code);

  std::vector<std::int32_t> last_compute_, last_other_;  // by storage: its last writer; -1: none
  std::vector<std::uint16_t> node_of_;
  std::vector<Link> links_;
  std::vector<std::uint8_t> needed_;   // by kernel: whether another stream waits for its end
  std::vector<std::uint8_t> ahead_;    // by op: whether it is issued ahead of its instance; empty: none
  std::vector<std::uint16_t> waited_;  // by op: the streams that have waited for it already
  std::uint16_t entry_waited_ = 0;
  std::size_t once_from_ = 0;
};

// `count` equal instances of a block. Buckets are filled over a stretch of items; an item alone is a stretch of its
// own.
struct LineItem {
  const BlockCode* code = nullptr;
  std::int64_t count = 1;
  std::int64_t before = 0;   // instances of the stretch that run before these
  std::int64_t stretch = 0;  // instances of the stretch; 0: `count`

  PositionInStretch place(std::int64_t at) const { return {before + at, stretch > 0 ? stretch : count}; }
};

// Appends the runs of a chunk in the order in which blocks of this kind run. `code_of(piece)`: the compiled block.
template <class CodeOf>
void append_line(const std::vector<Piece>& pieces, std::span<const PieceRun> runs, BlockKind kind, CodeOf code_of,
                 std::vector<LineItem>& line) {
  const bool reversed = kind == BlockKind::backward || kind == BlockKind::weight_gradient;
  for_each_in_line(pieces, runs, reversed, [&](const PieceRun& run, PositionInStretch place) {
    line.push_back({&code_of(run.piece), run.count, place.before, place.count});
  });
}

// Whether all ops that a line issues ahead run only in the first micro-batch. A stage of several chunks then gathers
// for its next chunk while the chunk before runs its first forwards.
inline bool gathers_a_chunk_ahead(std::span<const LineItem> line) {
  constexpr WhenSet kAdded = bit(When::first_micro_batch);
  bool any = false;
  for (const LineItem& item : line)
    for (const ClockNode& node : item.code->nodes) {
      if (node.prefetch == 0) continue;
      if (node.when != kAdded) return false;
      any = true;
    }
  return any;
}

// The result of clocking a line. Times are in seconds from the line's start.
struct LineResult {
  double seconds = 0;
  Accounts accounts{};                         // add up to `seconds`
  std::array<double, kStreams> stream_end{};   // ends of asynchronous streams; 0: idle
  std::array<double, kStreams> stream_work{};  // work on every stream, each by itself
  std::array<double, kStreams> carried{};      // seconds of LineStart::backlog, had the streams nothing else
  double host = 0;                             // when the host has issued all, from the line's end: usually negative
  std::int32_t origin = -1;                    // index into AnalyticalEngine::Rep::origins, if these are kept
};

// An op of a line, or a wait of the kernels, in seconds from the line's start (LineStart::waits_seconds before its
// input). Entries of a stream are in order and do not overlap. On the compute stream they have no gaps from the input
// on.
struct LineOp {
  const BlockCode* code = nullptr;  // null: a wait
  std::uint16_t op = 0;
  std::int64_t instances = 1;  // number of instances that the op covers
  Stream stream = Stream::compute;
  Account account = kHostIssue;  // for a wait: its cause
  double begin = 0, end = 0;
};

// The state in which a line starts.
struct LineStart {
  // Seconds until the line's input is there and its first kernel may start; times in `result` then count from there.
  // Ops that are issued ahead start at once. When the host has issued them, it waits for the input.
  double waits_seconds = 0;
  // The work that the slots before have left on the fabric's asynchronous streams. Replaced by the work that this line
  // leaves.
  FabricBacklog* backlog = nullptr;
  double host_seconds = 0;  // when the host begins to issue; below 0 if it runs ahead of the device
};

class LineClock {
 public:
  // Clocks a line. `drain`: the line also waits for its asynchronous streams to end. `ops`: is replaced by all ops in
  // the order of issue; this walks every instance, without jumps.
  void run(std::span<const LineItem> line, WhenSet when, double overlap_slowdown, bool drain, LineResult& result,
           const LineStart& start = {}, std::vector<LineOp>* ops = nullptr);
  // Whether streams share levels of the fabric; true by default.
  void shares_levels(bool value) { shares_levels_ = value; }
  bool shares_levels() const { return shares_levels_; }
  // A flow that never ends beside the lines; none by default.
  void run_beside(const EndlessFlow& flow) {
    beside_ = any(flow);
    fabric_.run_beside(flow);
  }
  // Number of instances walked since construction.
  std::int64_t walked() const { return walked_; }

 private:
  struct State {
    std::array<double, kStreams> free{}, work{}, busy_begin{};  // busy_begin: start of the last pauseless work
    Accounts accounts{};
    double host = 0;
    double entry = 0;  // when the output of the previous instance was ready
    // When the buffers that instances use in turn have been copied from (Op::buffers): those of the next instance, and
    // of the ones after it; 0: they are free.
    std::array<double, kMostBuffers> copied{};
  };
  static constexpr std::size_t kStateSize = sizeof(State) / sizeof(double);

  template <bool Shared, bool Traced>
  void walk(const LineItem& item, std::int64_t base);
  template <bool Record, bool Shared, bool Traced>
  void instance(const LineItem& item, std::int64_t at, std::int64_t base);
  // Parts of instance(), inlined because evaluation spends its time in them.
  struct Start;
  template <bool Record, bool Shared>
  Start start_of(const BlockCode& code, const ClockNode& node, bool queued);
  template <bool Record, bool Shared>
  double run_on_compute(const BlockCode& code, const ClockNode& node, std::int64_t instances, Start& start,
                        double& seconds);
  template <bool Record, bool Shared>
  void hand_on(const BlockCode& code);
  template <bool Shared, bool Traced>
  void issue_prefetched(std::int64_t target, int least_distance, int most_distance, double time);
  template <bool Shared, bool Traced>
  void walk_line();
  // For `ops` of run(): a node of the compute stream, a wait, and a node that is queued on the shared fabric.
  void trace_kernels(const BlockCode& code, std::size_t k, std::int64_t instances, double begin, double end,
                     double seconds);
  void trace_wait(double begin, double end, Account account);
  void trace_queued(const BlockCode& code, const ClockNode& node, std::int64_t instances, SharedFabric::Ticket last);
  // Issues a node to the shared fabric: its parts one after the other, from the release of the first to the release of
  // the last.
  SharedFabric::Ticket issue(const BlockCode& code, const ClockNode& node, std::int64_t instances, double release,
                             double last_release);
  template <bool Shared>
  double end_of(const ClockNode& node, std::size_t k, bool first_part = false);
  const BlockCode& code_of(std::int64_t index) const;
  double* ahead_slot(std::int64_t index) { return ahead_end_.data() + index % (order_.longest + 1) * ahead_nodes_; }
  void snapshot(std::int64_t index, std::vector<double>& x, std::vector<double>& same) const;
  void restore(std::int64_t index, const std::vector<double>& x);
  // The number of periods for which the state may advance by x2 - x1 each before another operand of some maximum takes
  // over; 0 if the last two periods differ.
  std::int64_t steady_periods(std::int64_t most) const;
  template <bool Record, bool Shared>
  double overlap_seconds(double start, double seconds);

  std::span<const LineItem> line_;
  WhenSet when_ = kUsual;
  double slowdown_ = 0;
  IssueAhead order_;
  std::int64_t once_at_ = 0;  // index of the last instance with ops that run once
  Stream entry_stream_ = Stream::compute;
  Stream copying_stream_ = Stream::device_to_host;  // stream of the last copy from a buffer used in turn
  bool takes_turns_ = false;                        // whether any block of the line has Op::buffers
  double buffer_free_ = 0;                          // State::copied of the current instance
  State s_;
  std::vector<double> end_, first_part_;  // by node of the current instance; shared fabric: its ticket, from 1
  std::int64_t ahead_nodes_ = 0;          // largest number of prefetched nodes in a block
  std::vector<double> ahead_end_;         // [instance % (longest + 1)][index among the prefetched nodes]
  bool shares_levels_ = true;
  bool beside_ = false;      // whether a flow that never ends runs beside the lines
  bool all_ahead_ = false;   // whether all ops of the line are issued ahead at its start
  bool shared_ = false;      // whether streams of the line meet on a level of the fabric
  bool found_work_ = false;  // whether LineStart::backlog has any work
  SharedFabric fabric_;
  // By operand of each maximum, in the last period and the one before: how far it lay below the maximum.
  std::vector<double> slacks_, last_slacks_;
  std::vector<double> x0_, x1_, x2_;   // the state after the last three periods
  std::vector<double> same1_, same2_;  // the fabric's state that must not change
  std::int64_t walked_ = 0;
  std::vector<LineOp>* traced_ = nullptr;
  struct TracedTickets {
    std::size_t at;  // index into `traced_`
    SharedFabric::Ticket first, last;
  };
  std::vector<TracedTickets> traced_tickets_;
};

// Collects the ops that a timeline's slices and intervals refer to, and lists each of them once. Internal to the
// engines.
class TimelineOps {
 public:
  // Appends to `timeline.ops`. Keeps references to both arguments.
  TimelineOps(const Program& program, Timeline& timeline) : program_(program), ops_(timeline.ops) {}

  // Returns the index of the op in `timeline.ops`. The first time it appends the op there.
  std::uint32_t operator()(BlockKind kind, const LineOp& op);

 private:
  const Program& program_;
  std::vector<TimelineOp>& ops_;
  std::map<std::tuple<const BlockCode*, std::uint16_t, std::int64_t, int>, std::uint32_t> known_;
};

}  // namespace orrery
