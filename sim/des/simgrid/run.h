// A run in progress: rank classes, their streams, and what these wait for. Internal to sim/des; includes SimGrid. Its
// parts: simulation.cpp (set-up, perturbations, stalls), run_schedule.cpp (slots and lines), run_streams.cpp (ops of a
// stream), run_exchange.cpp (communication).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/des/simgrid/network.h"
#include "sim/des/simulation.h"

namespace orrery {

inline constexpr auto kComputeStream = static_cast<std::size_t>(Stream::compute);
inline constexpr int kHostCause = kStreams;   // the cause of a wait for the host
inline constexpr int kController = kStreams;  // as a waiter: the process of the compute stream

// A node of a block (an op, or ops that run as one) in one instance of the block in a line.
struct Work {
  const ClockNode* node = nullptr;
  const BlockCode* code = nullptr;
  Work* instance = nullptr;                            // the first node of the same instance of the block
  Work *compute_before = nullptr, *trigger = nullptr;  // must be done before this; must have started before this
  Work *entry = nullptr, *other_entry = nullptr;       // works that write the previous instance's output; null: none
  Work* buffer = nullptr;  // the copy from the buffer that it takes over (Op::buffers); must be done before
  double seconds = 0;
  // Seconds at which the host has issued the work's first part, and all of it, if it never waited for the device; -1:
  // no constraint. When the work starts, both grow by `late`: the seconds that the host has waited for the device so
  // far (ClockNode::host_waits). `waited`: the last work before this one for which it waited; null: there is none.
  double issued = -1, host_end = -1;
  Work* waited = nullptr;
  double late = 0;
  std::uint32_t name = 0;  // index into JobSimulation::ops
  std::uint32_t exchange = kNoExchange;
  std::uint32_t event = EventRecord::kNoCause;  // set once it is done
  std::uint32_t cause = EventRecord::kNoCause;  // set once it has started: the event that let it start
  std::uint16_t waiters = 0;                    // bit s: stream s waits for it; bit kController: the controller does
  std::uint16_t parts_done = 0;
  std::uint16_t covered = 1;  // number of instances that it covers
  bool started = false, done = false;
};

struct Line {
  double begin = 0;
  std::uint32_t cause = EventRecord::kNoCause;  // the event that let the line begin
  std::vector<Work> works;
  std::int64_t left = 0;  // works left on streams other than compute
  bool ahead = false;     // only ops that are issued ahead have begun
  bool held = false;      // its owner still uses it
};

// How to run a line.
struct LineRun {
  bool drain_all = false;  // the line also waits for its asynchronous streams
  double host_ahead = 0;   // seconds by which the host begins earlier
  // Waits for the line's input. Ops that are issued ahead are issued before it, all others after it. Null: the input is
  // there.
  const std::function<Routine()>* wait_for_input = nullptr;
  // Begins the line of the next chunk. It is called when everything that is issued before the input has been issued;
  // without an input to wait for, when everything has.
  const std::function<void()>* issue_next = nullptr;
};

struct SimulatedClass;

struct StreamRun : Self {
  std::deque<std::pair<Work*, Line*>> queue;
  std::int64_t pending = 0;
  std::int64_t ahead = 0;  // of `pending`: works of the line that has not begun
  bool drain_awaited = false;
  bool has_process = false;
  std::uint32_t last_event = EventRecord::kNoCause;
  double last_end = 0;
  const Work* current = nullptr;
};

struct Arrival {
  bool there = false;
  bool received = false;   // blocking transfers: it has also been transferred
  Self* sender = nullptr;  // the sender that waits for the end of the transfer
  std::uint32_t cause = EventRecord::kNoCause;
};

struct Message {
  std::uint32_t exchange = 0, to = 0;
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0, cause = 0;
  std::int64_t repeat = 0;
  double time = 0;  // when the sender handed it over
};
struct Sender : Self {
  std::deque<Message> queue;
  bool has_process = false;
};

// One exchange of a group: the meeting of its members.
struct Meeting {
  std::vector<std::pair<std::uint32_t, double>> arrived;  // (class, time)
  std::vector<Self*> waiting;
  std::uint32_t cause = EventRecord::kNoCause;
  std::uint32_t exchange = 0;
  double begin = 0;
  bool done = false;
  std::size_t left = 0;
};

// Progress of one edge of a step-exact exchange, message by message.
struct ExactEdge {
  std::vector<double> arrivals;
  std::vector<Self*> waiting;
};
struct ExactPhase {
  std::vector<ExactEdge> edges;  // by flow class, from `first`
  std::uint32_t first = 0;
  std::int64_t running = 0;
  double last = 0;
  Self caller;
};

struct SimulatedClass final : Self {
  std::uint32_t id = 0;
  std::int32_t job = 0;
  std::size_t stage = 0;
  std::int64_t first_rank = 0;
  Region* region = nullptr;
  const JobSimulation* plan = nullptr;
  std::array<StreamRun, kStreams> streams;
  std::array<Sender, 2> senders;               // forward, backward
  std::int64_t repeat = 0;                     // of JobSimulation::repeats
  std::array<std::vector<Arrival>, 2> inputs;  // by SlotKind, see input_of()
  std::vector<std::unique_ptr<Line>> lines;    // reused
  std::uint32_t gate_event = EventRecord::kNoCause;
  double host_ahead = 0;  // seconds before the end of the last line at which the host had issued all of it
  double rate = 1;        // rate of kernels, relative to the undisturbed one
  int collectives = 0;    // number of collectives that run beside the kernels
  bool in_kernel = false;
  bool finished = false;
  std::vector<std::uint32_t> exchange_rows;  // by exchange: its record's index from 1; 0: none
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> wait_rows;  // by exchange: (for whom, record)
  std::vector<std::mt19937_64> jitter;                                          // by perturbation with jitter
  std::vector<const Perturbation*> jitter_of;
  ClassOutcome out;
  // Intervals (from, until), disjoint, in which a collective waited for another stage.
  std::vector<std::pair<double, double>> stage_waits;
  const Arrival* awaited = nullptr;  // the input that the controller waits for
  std::string waits_for;             // in words, while the controller waits for another stage
};

class SimgridRun {
 public:
  explicit SimgridRun(const SimulationPlan& plan) : plan_(plan), network_(plan, clock_) { prepare(); }

  Outcome run_steps();
  Outcome run_exchange(std::uint32_t exchange);

 private:
  const Traffic& traffic() const { return plan_.traffic; }
  double now() const { return clock_.now(); }
  void prepare();
  // Ranks that often meet, over links that only they use, get a region of the clock.
  void find_local_communicators();
  void make_regions();
  void perturb();
  void apply(const ResolvedPerturbation& r, std::span<SimulatedClass* const> hit, bool begin);
  Process perturb_while(const ResolvedPerturbation& r, std::vector<SimulatedClass*> hit);
  Process send_background(const Perturbation& p, std::uint32_t flow_class);
  // Runs the started processes until `processes` of them have ended.
  void run(std::size_t processes);
  [[noreturn]] void stall(const std::string& why);
  std::string who_waits() const;
  std::string words(const SimulatedClass& c) const;

  // The schedule.
  Process control(SimulatedClass& c);
  Routine run_step(SimulatedClass& c);
  // Tasks that run beside others have begun (+1), or one of them has ended (-1).
  void run_beside(int tasks);
  void append_items(const SimulatedClass& c, const Chunk& chunk, BlockKind kind, std::vector<LineItem>& items) const;
  Routine end_step(SimulatedClass& c, UpdatePart part);
  Routine sum_over_stages(SimulatedClass& c, std::span<const LineItem> items);
  Routine meet_at_norm(SimulatedClass& c);
  struct Host;
  class LineIssue;
  struct IssuedLine;
  std::unique_ptr<IssuedLine> new_line(SimulatedClass& c, std::vector<LineItem> items, WhenSet when);
  // Issues now the gathers of the chunk that only its first forward has.
  std::unique_ptr<IssuedLine> issue_chunk_ahead(SimulatedClass& c, std::uint16_t chunk);
  Routine run_line(SimulatedClass& c, std::unique_ptr<IssuedLine> own, LineRun run);
  Routine perform_line(SimulatedClass& c, const Line& line, bool drain_all, const Host& host);
  Routine await_output(SimulatedClass& c, Work* w);
  // `next`: the slot after the pair; null: none.
  Routine run_pair(SimulatedClass& c, const Slot& forward, const Slot& backward, const Slot* next);
  void record_slot(SimulatedClass& c, const Slot& slot, double begin, double end);
  Line& begin_line(SimulatedClass& c, std::size_t works) const;
  Routine drain(SimulatedClass& c, bool all);
  // Books the time for which the compute stream has waited since `since`. Time in which a collective waited for another
  // stage is not booked: it remains as the pipeline's bubble.
  void book_wait(SimulatedClass& c, Account account, double since);
  Routine await_input(SimulatedClass& c, const Slot& slot, std::size_t position);
  Routine post_output(SimulatedClass& c, const Slot& slot, std::size_t position, const Slot* next);
  bool receives(const SimulatedClass& c, const Slot& slot, std::int32_t& from_stage) const;
  // The class of the ranks at the same place in another stage.
  SimulatedClass& counterpart(const SimulatedClass& c, std::int32_t stage);
  Arrival& input_of(SimulatedClass& c, std::size_t direction, std::uint16_t chunk, std::uint32_t micro_batch,
                    std::int64_t repeat) {
    const Schedule& schedule = c.plan->program->schedule;
    const auto in_repeat = static_cast<std::size_t>(chunk * schedule.micro_batches + micro_batch);
    return c.inputs[direction][static_cast<std::size_t>(repeat * schedule.chunks * schedule.micro_batches) + in_repeat];
  }

  // Streams.
  void enqueue(SimulatedClass& c, Line& line, Work& w);
  Process serve(SimulatedClass& c, std::size_t stream);
  Process send(SimulatedClass& c, std::size_t direction);
  Routine perform(SimulatedClass& c, std::size_t stream, Work& w, const Line& line);
  Routine await(SimulatedClass& c, std::size_t stream, Work& w, int& cause, std::uint32_t& cause_event);
  enum class Until : std::uint8_t { started, first_part, done };
  static bool holds(const Work& w, Until until) {
    return until == Until::started ? w.started : w.done || (until == Until::first_part && w.parts_done > 0);
  }
  Routine await_work(Self& self, std::size_t stream, Work& other, Until until, int& cause, std::uint32_t& cause_event);
  // `kernels`: seconds of the kernels that it consists of, for jitter; empty: a single kernel.
  Routine kernel(SimulatedClass& c, double seconds, const std::vector<double>& kernels);
  double jittered(SimulatedClass& c, double seconds, const std::vector<double>& kernels);
  void interrupt(SimulatedClass& c);
  void finish(SimulatedClass& c, Work& w);
  void wake_waiters(SimulatedClass& c, Work& w);
  Self& waiter(SimulatedClass& c, int stream) {
    return stream == kController || stream == static_cast<int>(kComputeStream)
               ? static_cast<Self&>(c)
               : c.streams[static_cast<std::size_t>(stream)];
  }

  // How an exchange began.
  struct Beginning {
    std::uint32_t cause = EventRecord::kNoCause;  // the event that let this class arrive, then that let it begin
    double time = 0;
  };
  Routine exchange(SimulatedClass& c, Self& self, std::uint32_t x, std::size_t stream, std::uint32_t name, bool meet,
                   bool moves, Beginning& beginning);
  // Whether the exchange involves only ranks of one region of the clock.
  bool is_local(const Exchange& x) const { return local_[static_cast<std::size_t>(x.communicator)] != 0; }
  Routine run_exchange_of(const Exchange& x, std::uint32_t group_class, bool moves);
  void count_exchange(SimulatedClass& c, std::uint32_t x, std::uint32_t name, double begin, double end);
  void count_wait(SimulatedClass& c, const SimulatedClass& for_whom, std::uint32_t x, std::uint32_t name,
                  double seconds);
  Routine flows(const Exchange& x, std::uint32_t group_class);
  Routine flows_exactly(const Exchange& x, std::uint32_t group_class);
  Process exact_edge(const Exchange& x, ExactPhase& phase, std::uint32_t flow_class);
  Process transmit_alone(const Exchange& x, std::uint32_t group_class, double& end);
  // Records that a collective on a stream of this class has waited for another stage from `from` until now.
  void note_stage_wait(SimulatedClass& c, double from) const;
  // Runs the flows of an exchange for one group class, in the run's fidelity.
  Routine transmit(const Exchange& x, std::uint32_t group_class);
  // Waits until all flows of the flight have ended. `self`: the waiting process.
  Routine wait(Flight& flight, Self& self);
  // Records a transfer between stages that has just ended. `from`, `to`: rank classes.
  std::uint32_t record_transfer(std::uint32_t from, std::uint32_t to, std::uint16_t chunk, double begin,
                                std::uint32_t cause) {
    return record({.begin = begin,
                   .end = now(),
                   .cause = cause,
                   .rank_class = from,
                   .name = to,
                   .chunk = chunk,
                   .stream = static_cast<std::uint8_t>(Stream::pipeline_communication),
                   .kind = EventRecord::transfer});
  }
  std::uint32_t record(const EventRecord& e) {
    out_.events.push_back(e);
    return static_cast<std::uint32_t>(out_.events.size() - 1);
  }

  const SimulationPlan& plan_;
  Clock clock_;
  Network network_;
  std::size_t running_ = 0;  // number of processes that the run waits for
  std::deque<Region> regions_;
  std::vector<char> local_;  // by communicator: whether its groups lie within regions
  std::vector<std::unique_ptr<SimulatedClass>> classes_;
  // [group class * kStreams + stream]: the meetings of a group class on one stream, in order of issue.
  std::vector<std::deque<Meeting*>> meetings_;
  std::deque<Meeting> all_meetings_;
  std::vector<Meeting*> free_meetings_;
  struct Barrier {
    std::size_t expected = 0, arrived = 0;
    std::vector<Self*> waiting;
    std::uint32_t last_event = EventRecord::kNoCause;
    std::int64_t opened = 0;  // how often
  };
  std::vector<Barrier> barriers_;             // by job
  std::vector<std::size_t> running_classes_;  // by job
  struct OrderedSlot {
    Slot slot;
    bool pairs;  // runs at the same time as the next slot, its backward
  };
  std::vector<std::vector<std::vector<OrderedSlot>>> orders_;  // [job][stage]
  std::string failed_;                                         // the link or node that failed, and when
  Outcome out_;
};

}  // namespace orrery
