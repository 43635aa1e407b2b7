// A run in progress: rank classes, their streams and what they wait for. Internal to sim/des; pulls in SimGrid. Its
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
inline constexpr int kHostCause = kStreams;   // as the cause of a wait
inline constexpr int kController = kStreams;  // as a waiter: the compute stream's process

struct Work {
  const ClockNode* node = nullptr;
  const BlockCode* code = nullptr;
  Work* instance = nullptr;                            // the first node of the same instance of the block
  Work *compute_before = nullptr, *trigger = nullptr;  // to be done; to have started
  Work *entry = nullptr, *other_entry = nullptr;       // the previous instance's output
  Work* buffer = nullptr;  // the copy from the buffer that the instance takes over (Op::buffers), to be done
  double seconds = 0;
  double issued = -1, host_end = -1;  // by the host; -1: whenever
  std::uint32_t name = 0;             // into JobPlan::ops
  std::uint32_t exchange = kNoExchange;
  std::uint32_t event = EventRecord::kNoCause;  // once done
  std::uint32_t cause = EventRecord::kNoCause;  // once started: the event that let it
  std::uint16_t waiters = 0;                    // streams' bits
  std::uint16_t parts_done = 0;
  std::uint16_t covered = 1;  // instances that it stands for
  bool started = false, done = false;
};

struct Line {
  double begin = 0;
  std::uint32_t cause = EventRecord::kNoCause;  // the event that let it begin
  std::vector<Work> works;
  std::int64_t left = 0;  // on streams other than compute
  bool ahead = false;     // it has not begun, but for what is issued ahead
  bool held = false;      // by who runs it
};

// How a line is run.
struct LineRun {
  bool drain_all = false;  // it also ends with its asynchronous streams
  double host_ahead = 0;   // by so much earlier the host begins
  // Until its input is there. What is issued ahead is issued before, all else behind it. None: it is there.
  const std::function<Task<>()>* wait_for_input = nullptr;
  // Once all is issued that is issued before the input, or without one all: begins the line of the chunk behind.
  const std::function<void()>* issue_next = nullptr;
};

struct ClassRun;

struct StreamRun : Self {
  std::deque<std::pair<Work*, Line*>> queue;
  std::int64_t pending = 0;
  std::int64_t ahead = 0;  // of them, of the line that has not begun
  bool drain_awaited = false;
  bool has_process = false;
  std::uint32_t last_event = EventRecord::kNoCause;
  double last_end = 0;
  const Work* current = nullptr;
};

struct Arrival {
  bool there = false;
  bool received = false;   // blocking transfers: and moved
  Self* sender = nullptr;  // that waits for it to have moved
  std::uint32_t cause = EventRecord::kNoCause;
};

struct Message {
  std::uint32_t exchange = 0, to = 0;
  std::uint16_t chunk = 0;
  std::uint32_t micro_batch = 0, cause = 0;
  double time = 0;  // when it was handed over
};
struct Sender : Self {
  std::deque<Message> queue;
  bool has_process = false;
};

// Of the members of a group, for one exchange.
struct Meeting {
  std::vector<std::pair<std::uint32_t, double>> arrived;  // class, when
  std::vector<Self*> waiting;
  std::uint32_t cause = EventRecord::kNoCause;
  std::uint32_t exchange = 0;
  double begin = 0;
  bool done = false;
  std::size_t left = 0;
};
// Those of a group class on a stream, in order of issue.
struct Meetings {
  std::deque<Meeting*> queue;
  std::size_t first = 0;  // of the queue, since the run began
};

// A message's way, step by step.
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

struct ClassRun : Self {
  std::uint32_t id = 0;
  std::int32_t job = 0;
  std::size_t stage = 0;
  std::int64_t first_rank = 0;
  Region* region = nullptr;
  const JobPlan* plan = nullptr;
  std::array<StreamRun, kStreams> streams;
  std::array<Sender, 2> senders;               // forwards, backwards
  std::array<std::vector<Arrival>, 2> inputs;  // by SlotKind, see input_of(): [chunk * micro_batches + micro_batch]
  std::vector<std::unique_ptr<Line>> lines;    // reused
  std::uint32_t gate_event = EventRecord::kNoCause;
  double host_ahead = 0;  // of the end of the last line: by so much earlier the host had issued all of it
  double rate = 1;        // of kernels
  int collectives = 0;    // under way beside the kernels
  bool in_kernel = false;
  bool finished = false;
  std::vector<std::pair<std::uint64_t, std::size_t>> met;                       // by group class and stream: how often
  std::vector<std::uint32_t> exchange_rows;                                     // by exchange: of its record, from 1
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> wait_rows;  // by exchange: for whom, its record
  std::vector<std::mt19937_64> jitter;                                          // by perturbation that has it
  std::vector<const Perturbation*> jitter_of;
  ClassOutcome out;
  std::vector<std::pair<double, double>> stage_waits;  // from, until: a collective waited for another stage; apart
  const Arrival* awaited = nullptr;                    // the input that the controller waits for
  std::string waits_for;                               // in words, while the controller waits for another stage
};

class SimgridRun {
 public:
  explicit SimgridRun(const RunPlan& plan) : plan_(plan), network_(plan, clock_) { prepare(); }

  Outcome run_steps();
  Outcome run_exchange(std::uint32_t exchange);

 private:
  const Traffic& traffic() const { return plan_.traffic; }
  double now() const { return clock_.now(); }
  void prepare();
  // Ranks that meet all the time, over links that are theirs, get a region of the clock.
  void find_local_communicators();
  void make_regions();
  void perturb();
  void apply(const ResolvedPerturbation& r, std::span<ClassRun* const> hit, bool begin);
  Process perturb_while(const ResolvedPerturbation& r, std::vector<ClassRun*> hit);
  Process send_background(const Perturbation& p, std::uint32_t flow_class);
  // Runs the processes that were started until so many have set `ended_`.
  void run(std::size_t processes);
  [[noreturn]] void stall(const std::string& why);
  std::string who_waits() const;
  std::string words(const ClassRun& c) const;

  // The schedule.
  Process control(ClassRun& c);
  void append_items(const ClassRun& c, const Chunk& chunk, BlockKind kind, std::vector<LineItem>& items) const;
  Task<> end_step(ClassRun& c, UpdatePart part);
  Task<> sum_over_stages(ClassRun& c, std::span<const LineItem> items);
  Task<> meet_at_norm(ClassRun& c);
  struct Host;
  class LineIssue;
  struct IssuedLine;
  std::unique_ptr<IssuedLine> new_line(ClassRun& c, std::vector<LineItem> items, WhenSet when);
  // Issues now what the chunk gathers in its first forward alone.
  std::unique_ptr<IssuedLine> issue_chunk_ahead(ClassRun& c, std::uint16_t chunk);
  Task<> run_line(ClassRun& c, std::unique_ptr<IssuedLine> own, LineRun run);
  Task<> perform_line(ClassRun& c, const Line& line, bool drain_all, const Host& host);
  Task<> await_output(ClassRun& c, Work* w);
  // `next`: the slot behind them, if any.
  Task<> run_pair(ClassRun& c, const Slot& forward, const Slot& backward, const Slot* next);
  void record_slot(ClassRun& c, const Slot& slot, double begin, double end);
  static Line& free_line(ClassRun& c);
  Task<> drain(ClassRun& c, bool all);
  // What the compute stream has waited since then. While a collective waited for another stage nothing is booked: what
  // remains of the step is the pipeline's bubble.
  void book_wait(ClassRun& c, Account account, double since);
  Task<> await_input(ClassRun& c, const Slot& slot, std::size_t position);
  Task<> post_output(ClassRun& c, const Slot& slot, std::size_t position, const Slot* next);
  bool receives(const ClassRun& c, const Slot& slot, std::int32_t& from_stage) const;
  // The ranks at the same place of another stage.
  ClassRun& counterpart(const ClassRun& c, std::int32_t stage);
  Arrival& input_of(ClassRun& c, std::size_t direction, std::uint16_t chunk, std::uint32_t micro_batch) {
    const auto micro_batches = static_cast<std::size_t>(c.plan->program->schedule.micro_batches);
    return c.inputs[direction][chunk * micro_batches + micro_batch];
  }

  // Streams.
  void enqueue(ClassRun& c, Line& line, Work& w);
  Process serve(ClassRun& c, std::size_t stream);
  Process send(ClassRun& c, std::size_t direction);
  Task<> perform(ClassRun& c, std::size_t stream, Work& w, const Line& line);
  Task<> await(ClassRun& c, std::size_t stream, Work& w, int& cause, std::uint32_t& cause_event);
  enum class Until : std::uint8_t { started, first_part, done };
  static bool holds(const Work& w, Until until) {
    return until == Until::started ? w.started : w.done || (until == Until::first_part && w.parts_done > 0);
  }
  Task<> await_work(Self& self, std::size_t stream, Work& other, Until until, int& cause, std::uint32_t& cause_event);
  // `kernels`: seconds of those it is made of, for jitter; none: of itself.
  Task<> kernel(ClassRun& c, double seconds, const std::vector<double>& kernels);
  double jittered(ClassRun& c, double seconds, const std::vector<double>& kernels);
  void interrupt(ClassRun& c);
  void finish(ClassRun& c, Work& w);
  void wake_waiters(ClassRun& c, Work& w);
  Self& waiter(ClassRun& c, int stream) {
    return stream == kController || stream == static_cast<int>(kComputeStream)
               ? static_cast<Self&>(c)
               : c.streams[static_cast<std::size_t>(stream)];
  }

  // Communication. `cause` in: what let this class come; out: what let the exchange begin. Returns its begin.
  Task<double> exchange(ClassRun& c, Self& self, std::uint32_t x, std::size_t stream, std::uint32_t name, bool meet,
                        bool moves, std::uint32_t& cause);
  // Whether it concerns nobody beyond a region of the clock.
  bool is_local(const Exchange& x) const { return local_[static_cast<std::size_t>(x.communicator)] != 0; }
  Task<> run_exchange_of(const Exchange& x, std::uint32_t group_class, bool moves);
  void count_exchange(ClassRun& c, std::uint32_t x, std::uint32_t name, double begin, double end);
  void count_wait(ClassRun& c, const ClassRun& for_whom, std::uint32_t x, std::uint32_t name, double seconds);
  Task<> flows(const Exchange& x, std::uint32_t group_class);
  Task<> flows_exactly(const Exchange& x, std::uint32_t group_class);
  Process exact_edge(const Exchange& x, ExactPhase& phase, std::uint32_t flow_class);
  Process transmit_alone(const Exchange& x, std::uint32_t group_class, double& end);
  // A collective on one of its streams has waited until now for another stage.
  void note_stage_wait(ClassRun& c, double from) const;
  // What an exchange of one group class takes, by the run's fidelity.
  Task<> transmit(const Exchange& x, std::uint32_t group_class);
  // Until none of the flight's flows is left. `self`: who waits.
  Task<> wait(Flight& flight, Self& self);
  std::uint32_t record(const EventRecord& e) {
    out_.events.push_back(e);
    return static_cast<std::uint32_t>(out_.events.size() - 1);
  }

  const RunPlan& plan_;
  Clock clock_;
  Network network_;
  std::size_t running_ = 0;  // processes that the run waits for
  std::deque<Region> regions_;
  std::vector<char> local_;  // communicators whose groups are within regions
  std::vector<std::unique_ptr<ClassRun>> classes_;
  std::vector<Meetings> meetings_;  // [group class * kStreams + stream]
  std::deque<Meeting> all_meetings_;
  std::vector<Meeting*> free_meetings_;
  struct Barrier {
    std::size_t expected = 0, arrived = 0;
    std::vector<Self*> waiting;
    std::uint32_t last_event = EventRecord::kNoCause;
    bool open = false;
  };
  std::vector<Barrier> barriers_;  // by job
  struct OrderedSlot {
    Slot slot;
    bool pairs;  // runs beside the next, its backward
  };
  std::vector<std::vector<std::vector<OrderedSlot>>> orders_;  // [job][stage]
  std::string failed_;                                         // a link or node that failed, and when
  Outcome out_;
};

}  // namespace orrery
