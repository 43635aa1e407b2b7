// The clock of straight-line code: list scheduling of a rank's streams over the blocks that one slot of the schedule
// runs, e.g. the forwards of all layers of a chunk.
//
// A block is first compiled: each op's seconds once, dependencies across streams only, and neighbouring kernels that
// nothing else waits for merged into one node. A line of blocks is then walked instance by instance until its state
// advances by the same amounts, and jumps to the end (or to where the regime changes), so its cost does not grow with
// equal layers.
//
// Rules of one op, in the order of issue:
//  - The host issues it `host_seconds` after the previous one (CUDA graphs: all of a block at the cost of one). Host
//    and device start a line together: the host, too, waits for what another stage hands on (Megatron-LM's
//    batch_p2p_sync).
//  - It starts when its stream is free, the host has issued it, what it reads is there, and, on a stream other than
//    compute and unless free_running, the kernels issued before it have finished.
//  - What is issued ahead, and buckets: sim/program/issue.h.
//  - Kernels wait for copies from the buffers that their instance takes over (Op::buffers).
//  - An op of count n that waits for one of count n streams: its first part waits for the other's first part, its last
//    for the other's last.
//  - Kernels are slowed by `overlap_slowdown` while a collective that was issued before them runs on another stream.
//  - Where collectives of two streams of the line meet on a level of the fabric, those under way at once share it
//    (fabric_share.h): what is said above of a collective's seconds is then its part's.
// The line ends with its kernels, its output, and all streams but the asynchronous ones (sim/program/stream.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "sim/analytical/fabric_share.h"
#include "sim/analytical/op_cost.h"
#include "sim/program/issue.h"
#include "sim/program/step_end.h"
#include "sim/report/report.h"

namespace orrery {

// Where a second of the compute stream goes; from kExposed on, by the account of the stream it waited for.
enum Account : std::uint8_t {
  kMatmul,
  kAttention,
  kMemoryBound,
  kRecompute,
  kOptimizer,
  kSlowestDevice,  // OpCost::waiting, of kernels of any of the accounts above
  kHostIssue,
  kExposed
};
inline constexpr int kAccounts = kExposed + kStreams;
using Accounts = std::array<double, kAccounts>;
void add(TimeBreakdown& to, const Accounts& from);

constexpr Account waiting_for(Stream stream) {
  return static_cast<Account>(kExposed + static_cast<int>(row_of(stream).account));
}

// One op, or neighbouring kernels of the compute stream.
struct ClockNode {
  double seconds = 0;       // on its stream
  double last_seconds = 0;  // of the last of `count` launches
  double host_first = 0;    // until the host has issued the first op
  double host = 0;          // until it has issued all
  double host_bound = 0;    // from the host's time before the node to its end if the host bounds it
  std::uint16_t first_dep = 0, deps = 0;
  std::uint16_t op = 0;  // the first op's index
  std::uint16_t every = 1, count = 1, prefetch = 0, buffers = 0;
  Stream stream = Stream::compute;
  WhenSet when = kUsual;  // runs if the line's set contains it
  Covers covers = Covers::own;
  bool waits_for_compute = false;
  bool once = false;          // in the last instance only that has such nodes
  bool moves = false;         // a collective: slows kernels beside it
  Account account = kMatmul;  // of what is not in BlockCode::busy
  bool counted = false;       // its seconds are in BlockCode::busy
  // Seconds by account of the kernels it merges: by which a slow-down is booked.
  std::array<double, kHostIssue> kernel_seconds{};
};

struct BlockCode {
  static constexpr std::uint16_t kNone = 0xffff;
  static constexpr std::uint16_t kEntry = 0xfffe;  // as a dependency: the block's input, from the previous instance

  std::vector<ClockNode> nodes;
  std::vector<std::uint16_t> deps;                         // nodes of this block, or kEntry
  std::vector<std::uint16_t> prefetched;                   // nodes with prefetch > 0
  std::vector<OpCost> costs;                               // by op of the block
  std::vector<double> host;                                // the same: issue of one launch
  double graph_host_seconds = 0;                           // issue of the whole block as one graph
  std::array<Accounts, 3> busy{};                          // kernel seconds of an instance, by When
  std::array<StreamsByLevel, 3> on_level{};                // of its collectives, by When
  std::uint16_t exit_compute = kNone, exit_other = kNone;  // the nodes that finish the block's output
  std::uint16_t issues_ahead_from = 0;                     // op (sim/program/issue.h); a node begins with it
  std::array<std::uint16_t, 2> cuts{};                     // nodes that begin at CompileContext::cuts
  WhenSet conditions = 0;                                  // of its ops: which micro-batches differ
  bool once = false;                                       // has ops that run once for all instances of the line
  bool takes_turns = false;                                // has ops with Op::buffers
  std::int64_t period = 1;                                 // least common multiple of `every`
  const Piece* piece = nullptr;
  std::span<const Op> ops;
  const OpCostModel* model = nullptr;
};

// What the blocks of a piece are compiled with.
struct CompileContext {
  // `storage`: of each tensor (Liveness). `sums_over_stages`: of any piece of the program.
  CompileContext(const Piece& piece, const OpCostModel& model, const Runtime& of_program,
                 std::span<const TensorId> storage, bool sums_over_stages)
      : costs(&model), runtime(&of_program), root(storage), update(piece, storage, sums_over_stages) {}

  const OpCostModel* costs;
  const Runtime* runtime;
  std::span<const TensorId> root;
  UpdateParts update;
  const std::array<std::size_t, 2>* cuts = nullptr;  // ops at which a node begins, ascending (PairCuts)
};

// The update block is compiled part by part (UpdatePart).
enum class BlockKind : std::uint8_t { forward, backward, weight_gradient, gradients, stages, norm, update };
inline constexpr int kBlockKinds = 7;
constexpr bool is_of_update(BlockKind kind) { return kind >= BlockKind::gradients; }
constexpr BlockKind block_of(UpdatePart part) {
  return static_cast<BlockKind>(static_cast<int>(BlockKind::gradients) + static_cast<int>(part));
}
// As ops of the report are named.
const char* name_of(BlockKind kind);

// Compiles blocks; keeps its working storage between calls.
class BlockCompiler {
 public:
  // `piece` must outlive the code.
  void compile(const Piece& piece, BlockKind kind, const CompileContext& context, BlockCode& code);

 private:
  struct Link {
    std::uint16_t from, to;  // ops; from may be BlockCode::kEntry
  };
  void link(std::size_t to, const CompileContext& context, TensorId entry, BlockCode& code);
  void build_nodes(BlockKind kind, const CompileContext& context, BlockCode& code);

  std::vector<std::int32_t> last_compute_, last_other_;  // writer of each storage, -1: none
  std::vector<std::uint16_t> node_of_;
  std::vector<Link> links_;
  std::vector<std::uint8_t> needed_;      // a kernel whose end another stream waits for
  FindAhead find_ahead_;
  std::vector<std::uint8_t> ahead_;       // issued ahead of its instance
  std::vector<std::uint16_t> waited_;     // streams that have waited for the op already
  std::uint16_t entry_waited_ = 0;
  std::size_t once_from_ = 0;
};

// `count` equal instances of a block. Buckets are filled over a stretch of items; one alone is a stretch of its own.
struct LineItem {
  const BlockCode* code = nullptr;
  std::int64_t count = 1;
  std::int64_t before = 0;   // instances of the stretch that come first
  std::int64_t stretch = 0;  // all of them; 0: `count`

  std::int64_t in_stretch() const { return stretch > 0 ? stretch : count; }
  PlaceInStretch place(std::int64_t at) const { return {before + at, in_stretch()}; }
};

// Appends the runs of a chunk; backwards for blocks that run so. `code_of(piece)`: the compiled block.
template <class CodeOf>
void append_line(const std::vector<Piece>& pieces, std::span<const Run> runs, bool reversed, CodeOf code_of,
                 std::vector<LineItem>& line) {
  for_each_in_line(pieces, runs, reversed, [&](const Run& run, PlaceInStretch place) {
    line.push_back({&code_of(run.piece), run.count, place.before, place.count});
  });
}

// Whether all that a line issues ahead is done in the first micro-batch alone: a stage of several chunks gathers so for the
// next chunk while the one before runs its first forwards.
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

struct LineResult {
  double seconds = 0;
  Accounts accounts{};                         // add up to `seconds`
  std::array<double, kStreams> stream_end{};   // of asynchronous streams, from the line's start; 0: idle
  std::array<double, kStreams> stream_work{};  // seconds of work on every stream, alone
  std::array<double, kStreams> carried{};      // of LineStart::backlog: seconds of it, had the streams nothing else
  double host = 0;                             // when the host has issued all, from the line's end: usually before
  std::int32_t origin = -1;                    // of AnalyticalEngine::Rep::origins, if those are kept
};

// An op of a line, or the kernels' wait before one, in seconds from the line's start (LineStart::waits_seconds before
// its input). On each stream in order and without overlap; on the compute stream without gaps from the input on.
struct LineOp {
  const BlockCode* code = nullptr;  // none: a wait
  std::uint16_t op = 0;
  std::int64_t instances = 1;  // that it covers
  Stream stream = Stream::compute;
  Account account = kHostIssue;  // of a wait: what for
  double begin = 0, end = 0;
};

// What a line finds at its start.
struct LineStart {
  // Until its input is there, and its first kernel may start; what `result` says is then from there on. Ops that are
  // issued ahead start at once; when the host has issued them it waits for the input.
  double waits_seconds = 0;
  // Of the fabric: what the slot before it has left on asynchronous streams. Replaced by what the line leaves.
  FabricBacklog* backlog = nullptr;
  double host_seconds = 0;  // when the host begins to issue: before the line if it has run ahead
};

class LineClock {
 public:
  // `drain`: the line also ends with its asynchronous streams.
  // `jump`: false walks every instance, as a check.
  // `ops`: replaced by all ops in the order of issue; walks every instance, too.
  void run(std::span<const LineItem> line, WhenSet when, double overlap_slowdown, bool drain, LineResult& result,
           bool jump = true, const LineStart& start = {}, std::vector<LineOp>* ops = nullptr);
  // Whether streams share levels of the fabric. They do unless told otherwise.
  void shares_levels(bool value) { shares_levels_ = value; }
  bool shares_levels() const { return shares_levels_; }
  // Instances walked since construction.
  std::int64_t walked() const { return walked_; }

 private:
  struct State {
    std::array<double, kStreams> free{}, work{}, busy_begin{};  // busy: the last stretch of work without a pause
    Accounts accounts{};
    double host = 0;
    double entry = 0;  // when the previous instance's output was there
    // When buffers that instances take in turn have been copied from: those of the next instance, and of the ones
    // behind it (Op::buffers); 0: they are free.
    std::array<double, kMostBuffers> copied{};
  };
  static constexpr std::size_t kStateSize = sizeof(State) / sizeof(double);

  template <bool Shared, bool Traced>
  void walk(const LineItem& item, std::int64_t base);
  template <bool Record, bool Shared, bool Traced>
  void instance(const LineItem& item, std::int64_t at, std::int64_t base);
  // Parts of it, inlined: it is what evaluation consists of.
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
  // For `ops` of run(): a node of the compute stream, of another that is not queued, and one that is.
  void trace_kernels(const BlockCode& code, std::size_t k, std::int64_t instances, double begin, double end,
                     double seconds);
  void trace_wait(double begin, double end, Account account);
  void trace_queued(const BlockCode& code, const ClockNode& node, std::int64_t instances, SharedFabric::Ticket last);
  // To the fabric whose levels are shared; its parts one after the other, from the release of the first to that of the
  // last.
  SharedFabric::Ticket issue(const BlockCode& code, const ClockNode& node, std::int64_t instances, double release,
                             double last_release);
  template <bool Shared>
  double end_of(const ClockNode& node, std::size_t k);
  template <bool Shared>
  double first_part_of(const ClockNode& node, std::size_t k);
  const BlockCode& code_of(std::int64_t index) const;
  double* ahead_slot(std::int64_t index) { return ahead_end_.data() + index % (order_.longest + 1) * ahead_nodes_; }
  void snapshot(std::int64_t index, std::vector<double>& x, std::vector<double>& same) const;
  void restore(std::int64_t index, const std::vector<double>& x);
  // Periods that the state may be advanced by x2 - x1 each before another operand of some maximum takes over; 0 when
  // the last two periods differ.
  std::int64_t steady_periods(std::int64_t most) const;
  template <bool Record, bool Shared>
  double overlap_seconds(double start, double seconds);

  std::span<const LineItem> line_;
  WhenSet when_ = kUsual;
  double slowdown_ = 0;
  bool jump_ = true;
  IssueAhead order_;
  std::int64_t once_at_ = 0;  // the last instance with ops that run once
  Stream entry_stream_ = Stream::compute;
  Stream copying_stream_ = Stream::device_to_host;  // of the last copy from such a buffer
  bool takes_turns_ = false;                        // any block of the line
  double buffer_free_ = 0;                          // State::copied of the current instance
  State s_;
  std::vector<double> end_, first_part_;  // by node of the current instance; of the fabric's: its ticket from 1
  std::int64_t ahead_nodes_ = 0;          // most prefetched nodes in a block
  std::vector<double> ahead_end_;         // [instance % (longest + 1)][node's place among the prefetched]
  bool shares_levels_ = true;
  bool all_ahead_ = false;  // what is issued ahead was, at the line's start
  bool shared_ = false;     // streams of the line meet on a level of the fabric
  bool found_work_ = false;  // LineStart::backlog has any
  SharedFabric fabric_;
  // Of the last period and the one before: how far each operand of each maximum lay below it.
  std::vector<double> slacks_, last_slacks_;
  std::vector<double> x0_, x1_, x2_;  // the state after the last three periods
  std::vector<double> same1_, same2_;  // and of the fabric what must not change
  std::int64_t walked_ = 0;
  std::vector<LineOp>* traced_ = nullptr;
  struct TracedTickets {
    std::size_t at;  // in `traced_`
    SharedFabric::Ticket first, last;
  };
  std::vector<TracedTickets> traced_tickets_;
};

}  // namespace orrery
