// The way of a rank class through its schedule.
#include <fmt/format.h>

#include <algorithm>

#include "sim/des/simgrid/run.h"

namespace orrery {

// The host that issues a rank's kernels one after the other. The two lines of a pair share one host.
struct SimgridRun::Host {
  double begin = 0, seconds = 0;  // seconds of issuing since `begin`
  Work* last_compute = nullptr;
  Work* waited = nullptr;  // the last work for which it waited for the device

  double time() const { return begin + seconds; }  // when it has issued everything so far, but for its waits
  // The same with its waits. REQUIRES: `waited` has started.
  double end() const { return time() + (waited == nullptr ? 0 : waited->late); }
};

// The progress of the host through a line. It issues works in program order and keeps its own clock. The rules are
// those of sim/analytical/block_clock.h.
class SimgridRun::LineIssue {
 public:
  // REQUIRES: `works` has as many elements as works_of() returns.
  LineIssue(SimgridRun& simulation, SimulatedClass& c, Line& line, Work* works, std::span<const LineItem> items,
            WhenSet when, Host& host);
  static std::size_t works_of(std::span<const LineItem> items);

  // Issues all ops that are issued ahead, of any distance: everything that can run before the input is there. The host
  // continues when it is.
  void issue_all_ahead();
  void input_has_come() { host_.seconds = std::max(host_.seconds, simulation_.now() - host_.begin); }
  // Issues the remaining ops.
  void issue();
  // Issues both lines: each layer of one beside a layer of the other (sim/program/pair.h). Ops before and after the
  // layers, and layers without a counterpart, are issued by themselves.
  static void issue_pair(LineIssue& forward, LineIssue& backward);

  // The works that produce the line's output; null: none.
  std::array<Work*, 2> output() const { return {entry_, other_entry_}; }
  double kernel_seconds() const;

 private:
  struct Instance {
    const LineItem* item;
    std::int64_t at;
    Work* works;
  };
  void lay_out(std::span<const LineItem> items, Work* next);
  void prepare(Work& w, std::int64_t covered) const;
  // For an instance; `trigger`: the work whose start issues them.
  void issue_prefetched(std::int64_t target, int least, int most, Work* trigger);
  void issue_ahead(std::int64_t index, Work* trigger);
  void issue_instance(std::int64_t index);
  // Parts of these functions.
  void issue_first_ahead();
  void begin_instance() {
    began_ = false;
    host_.seconds += code_of(next_).graph_host_seconds;
  }
  void issue_nodes(std::int64_t index, std::size_t from, std::size_t to);
  void end_instance(std::int64_t index);
  bool ended() const { return next_ == order_.length; }
  const BlockCode& code_of(std::int64_t index) const { return *instances_[static_cast<std::size_t>(index)].item->code; }
  bool is_layer(std::int64_t index) const { return code_of(index).piece->layers > 0; }
  // Number of instances that the node covers in this one; 0: it does not run here.
  std::int64_t covered_by(const ClockNode& node, std::int64_t index) const;

  SimgridRun& simulation_;
  SimulatedClass& c_;
  Line& line_;
  const WhenSet when_;
  Host& host_;
  IssueAhead order_;
  std::int64_t next_ = 0;      // index of the next instance
  bool began_ = false;         // whether its kernels have begun
  std::int64_t once_at_ = -1;  // index of the last instance with ops that run once
  bool all_ahead_ = false;     // whether all ops that are issued ahead have been issued
  std::vector<Instance> instances_;
  Work *entry_ = nullptr, *other_entry_ = nullptr;
  // The last copies that instances must wait for (Work::buffer): those of the current instance and of the ones after
  // it, in a ring by instance.
  std::array<Work*, kMostBuffers + 1> copied_{};
};

SimgridRun::LineIssue::LineIssue(SimgridRun& simulation, SimulatedClass& c, Line& line, Work* works,
                                 std::span<const LineItem> items, WhenSet when, Host& host)
    : simulation_(simulation), c_(c), line_(line), when_(when), host_(host) {
  for (const LineItem& item : items) {
    order_.length += item.count;
    if (item.code->once) once_at_ = order_.length - 1;
    for (const std::uint16_t k : item.code->prefetched)
      order_.longest = std::max(order_.longest, static_cast<std::int64_t>(item.code->nodes[k].prefetch));
  }
  lay_out(items, works);
}

std::size_t SimgridRun::LineIssue::works_of(std::span<const LineItem> items) {
  std::size_t works = 0;
  for (const LineItem& item : items) works += item.code->nodes.size() * static_cast<std::size_t>(item.count);
  return works;
}

void SimgridRun::LineIssue::lay_out(std::span<const LineItem> items, Work* next) {
  instances_.reserve(static_cast<std::size_t>(order_.length));
  for (const LineItem& item : items) {
    const std::uint32_t first_op = item.code->nodes.empty() ? 0 : c_.plan->first_op.at(item.code);
    for (std::int64_t at = 0; at < item.count; ++at) {
      instances_.push_back({&item, at, next});
      std::uint32_t name = first_op;
      for (const ClockNode& node : item.code->nodes) {
        next->name = name++;
        next->node = &node;
        next->code = item.code;
        next->instance = instances_.back().works;
        ++next;
      }
    }
  }
}

void SimgridRun::LineIssue::prepare(Work& w, std::int64_t covered) const {
  const ClockNode& node = *w.node;
  w.seconds = node.seconds;
  w.covered = static_cast<std::uint16_t>(covered);
  if (node.every > 1 && covered != node.every)
    w.seconds = w.code->model->cost(w.code->ops[node.op], w.code->piece->tensors, covered).seconds;
  if (const OpName& name = c_.plan->ops[w.name]; name.seconds_by_rows > 0)
    w.seconds -= name.seconds_by_rows * (1 - c_.plan->rows_of(name.load, c_.first_rank));
  if (const OpName& name = c_.plan->ops[w.name]; !name.seconds_less.empty())
    w.seconds -= name.seconds_less[c_.plan->document_place(c_.first_rank)];
  w.exchange = c_.plan->exchange_of(w.name, covered);
}

void SimgridRun::LineIssue::issue_prefetched(std::int64_t target, int least, int most, Work* trigger) {
  const Instance& instance = instances_[static_cast<std::size_t>(target)];
  for (const std::uint16_t k : instance.item->code->prefetched) {
    Work& w = instance.works[k];
    if (w.node->prefetch < least || w.node->prefetch > most) continue;
    if ((w.node->when & when_) == 0) {
      w.done = true;
      continue;
    }
    prepare(w, 1);
    w.trigger = trigger;
    host_.seconds += w.node->host;
    simulation_.enqueue(c_, line_, w);
  }
}

void SimgridRun::LineIssue::issue_all_ahead() {
  all_ahead_ = true;
  for (std::int64_t i = 0; i < order_.length; ++i) issue_prefetched(i, 1, IssueAhead::kAny, nullptr);
}

void SimgridRun::LineIssue::issue_ahead(std::int64_t index, Work* trigger) {
  if (all_ahead_) return;
  order_.when_starts(index,
                     [&](std::int64_t target, int least, int most) { issue_prefetched(target, least, most, trigger); });
}

std::int64_t SimgridRun::LineIssue::covered_by(const ClockNode& node, std::int64_t index) const {
  if ((node.when & when_) == 0 || (node.once && index != once_at_)) return 0;
  if (node.every == 1 && node.covers == Covers::own) return 1;
  const Instance& instance = instances_[static_cast<std::size_t>(index)];
  const std::int64_t covered = instances_covered(node.every, instance.item->place(instance.at), node.covers);
  return node.once ? std::min<std::int64_t>(covered, 1) : covered;
}

void SimgridRun::LineIssue::issue_nodes(std::int64_t index, std::size_t from, std::size_t to) {
  Work* const first = instances_[static_cast<std::size_t>(index)].works;
  const BlockCode& code = code_of(index);
  for (std::size_t k = from; k < to; ++k) {
    const ClockNode& node = code.nodes[k];
    if (node.prefetch > 0) continue;
    Work& w = first[k];
    const std::int64_t covered = covered_by(node, index);
    if (covered == 0) {
      w.done = w.started = true;
      continue;
    }
    prepare(w, covered);
    w.waited = host_.waited;
    if (node.host_waits) host_.waited = &w;
    if (node.host_first > 0 || code.graph_host_seconds > 0) w.issued = host_.time() + node.host_first;
    if (node.waits_for_compute) w.compute_before = host_.last_compute;
    if (node.stream == Stream::compute) w.buffer = copied_[static_cast<std::size_t>(index) % copied_.size()];
    if (node.buffers > 0) copied_[static_cast<std::size_t>(index + node.buffers) % copied_.size()] = &w;
    w.entry = entry_;
    w.other_entry = other_entry_;
    const bool begins = node.stream == Stream::compute && !began_ && node.op >= code.issues_ahead_from;
    simulation_.enqueue(c_, line_, w);
    if (node.stream == Stream::compute) host_.last_compute = &w;
    if (begins) {
      began_ = true;
      issue_ahead(index, &w);
    }
    // The host's time after those; a rank with fewer rows than the busiest finishes them sooner.
    if (node.host > node.host_first)
      w.host_end = host_.time() + std::max(node.host, node.host_bound - (node.seconds - w.seconds));
    host_.seconds += node.host;
  }
}

void SimgridRun::LineIssue::end_instance(std::int64_t index) {
  Work* const first = instances_[static_cast<std::size_t>(index)].works;
  const BlockCode& code = code_of(index);
  ++next_;
  copied_[static_cast<std::size_t>(index) % copied_.size()] = nullptr;
  if (!began_) issue_ahead(index, host_.last_compute);
  if (code.exit_compute == BlockCode::kNone && code.exit_other == BlockCode::kNone) return;
  entry_ = code.exit_compute != BlockCode::kNone ? &first[code.exit_compute] : nullptr;
  other_entry_ = code.exit_other != BlockCode::kNone ? &first[code.exit_other] : nullptr;
}

void SimgridRun::LineIssue::issue_instance(std::int64_t index) {
  begin_instance();
  issue_nodes(index, 0, code_of(index).nodes.size());
  end_instance(index);
}

void SimgridRun::LineIssue::issue_first_ahead() {
  if (!all_ahead_)
    order_.at_beginning(
        [&](std::int64_t target, int least, int most) { issue_prefetched(target, least, most, nullptr); });
}

void SimgridRun::LineIssue::issue() {
  issue_first_ahead();
  while (!ended()) issue_instance(next_);
}

void SimgridRun::LineIssue::issue_pair(LineIssue& forward, LineIssue& backward) {
  for (LineIssue* line : {&forward, &backward}) line->issue_first_ahead();
  const auto sends_tokens = [](const BlockCode& code) {
    return std::ranges::any_of(code.nodes,
                               [](const ClockNode& n) { return n.moves && n.stream == Stream::expert_communication; });
  };
  for (;;) {
    for (LineIssue* line : {&backward, &forward})
      while (!line->ended() && !line->is_layer(line->next_)) line->issue_instance(line->next_);
    if (forward.ended() || backward.ended()) break;
    const BlockCode &f = forward.code_of(forward.next_), &b = backward.code_of(backward.next_);
    if (!sends_tokens(f) && !sends_tokens(b)) {
      forward.issue_instance(forward.next_);
      backward.issue_instance(backward.next_);
      continue;
    }
    const std::int64_t at_f = forward.next_, at_b = backward.next_;
    forward.begin_instance();
    backward.begin_instance();
    backward.issue_nodes(at_b, 0, b.cuts[0]);
    forward.issue_nodes(at_f, 0, f.cuts[0]);
    backward.issue_nodes(at_b, b.cuts[0], b.cuts[1]);
    forward.issue_nodes(at_f, f.cuts[0], f.cuts[1]);
    backward.issue_nodes(at_b, b.cuts[1], b.nodes.size());
    forward.issue_nodes(at_f, f.cuts[1], f.nodes.size());
    backward.end_instance(at_b);
    forward.end_instance(at_f);
  }
  for (LineIssue* line : {&backward, &forward})
    while (!line->ended()) line->issue_instance(line->next_);
}

double SimgridRun::LineIssue::kernel_seconds() const {
  double seconds = 0;
  for (const Instance& instance : instances_)
    for (std::size_t k = 0; k < instance.item->code->nodes.size(); ++k)
      if (const Work& w = instance.works[k]; w.node->stream == Stream::compute && w.exchange == kNoExchange)
        seconds += w.seconds;
  return seconds;
}

Line& SimgridRun::begin_line(SimulatedClass& c, std::size_t works) const {
  const auto free = std::ranges::find_if(c.lines, [](const auto& line) { return line->left == 0 && !line->held; });
  Line& line = free != c.lines.end() ? **free : *c.lines.emplace_back(std::make_unique<Line>());
  line.begin = now();
  line.cause = c.gate_event;
  line.works.assign(works, {});
  return line;
}

// A line, and the state of its issuing.
struct SimgridRun::IssuedLine {
  IssuedLine(SimgridRun& simulation, SimulatedClass& c, Line& line_, std::vector<LineItem> items_, WhenSet when)
      : line(line_), items(std::move(items_)), issue(simulation, c, line, line.works.data(), items, when, host) {}

  Line& line;
  std::vector<LineItem> items;
  Host host;
  LineIssue issue;
};

std::unique_ptr<SimgridRun::IssuedLine> SimgridRun::new_line(SimulatedClass& c, std::vector<LineItem> items,
                                                             WhenSet when) {
  Line& line = begin_line(c, LineIssue::works_of(items));
  line.held = true;
  auto issued = std::make_unique<IssuedLine>(*this, c, line, std::move(items), when);
  issued->host.begin = now();
  return issued;
}

std::unique_ptr<SimgridRun::IssuedLine> SimgridRun::issue_chunk_ahead(SimulatedClass& c, std::uint16_t chunk) {
  const Program& program = *c.plan->program;
  std::vector<LineItem> items;
  append_items(c, program.stages_of(program.class_of(0))[c.stage][chunk], BlockKind::forward, items);
  if (!gathers_a_chunk_ahead(items)) return nullptr;
  auto issued = new_line(c, std::move(items), conditions_of(0, program.schedule.micro_batches));
  issued->line.ahead = true;
  issued->issue.issue_all_ahead();
  return issued;
}

Routine SimgridRun::run_line(SimulatedClass& c, std::unique_ptr<IssuedLine> own, LineRun run) {
  Line& line = own->line;
  LineIssue& issue = own->issue;
  const auto begin = [&] {
    line.begin = now();
    line.cause = c.gate_event;
  };
  begin();
  own->host = {.begin = now() - run.host_ahead};
  const bool ahead = std::exchange(line.ahead, false);
  if (ahead)
    for (StreamRun& s : c.streams) s.ahead = 0;
  if (run.wait_for_input != nullptr) {
    if (!ahead) issue.issue_all_ahead();
    if (run.issue_next != nullptr) (*run.issue_next)();
    co_await (*run.wait_for_input)();
    issue.input_has_come();
    begin();
  }
  issue.issue();
  if (run.wait_for_input == nullptr && run.issue_next != nullptr) (*run.issue_next)();
  co_await perform_line(c, line, run.drain_all, own->host);
  for (Work* w : issue.output()) co_await await_output(c, w);
  line.held = false;
}

// Runs everything that has been issued, up to the line's end without its output.
Routine SimgridRun::perform_line(SimulatedClass& c, const Line& line, bool drain_all, const Host& host) {
  StreamRun& compute = c.streams[kComputeStream];
  compute.last_event = c.gate_event;
  while (!compute.queue.empty()) {
    Work* w = compute.queue.front().first;
    compute.queue.pop_front();
    co_await perform(c, kComputeStream, *w, line);
  }
  c.gate_event = compute.last_event;
  co_await drain(c, drain_all);
  c.host_ahead = std::max(0.0, now() - host.end());
}

// Waits for the output, if an asynchronous stream produces it.
Routine SimgridRun::await_output(SimulatedClass& c, Work* w) {
  if (w == nullptr || w->done) co_return;
  const double since = now();
  while (!w->done) {
    w->waiters |= static_cast<std::uint16_t>(1u << kController);
    co_await clock_.block(c);
  }
  book_wait(c, waiting_for(w->node->stream), since);
  c.gate_event = w->event;
}

// Both slots begin when both inputs are there, and end together.
Routine SimgridRun::run_pair(SimulatedClass& c, const Slot& forward, const Slot& backward, const Slot* next) {
  const Program& program = *c.plan->program;
  const Schedule& schedule = program.schedule;
  const std::array<const Slot*, 2> slots{&forward, &backward};
  std::array<std::size_t, 2> positions{};
  std::array<std::vector<LineItem>, 2> items;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    positions[i] = static_cast<std::size_t>(schedule.position_of(c.stage, slots[i]->chunk));
    co_await await_input(c, *slots[i], positions[i]);
    const auto code_of = [&](std::uint16_t piece) -> const BlockCode& {
      return program.pieces[piece].layers > 0 ? c.plan->paired_codes[piece][i] : c.plan->codes[piece][i];
    };
    const auto& stages = program.stages_of(program.class_of(slots[i]->micro_batch));
    append_line(program.pieces, stages[c.stage][slots[i]->chunk].runs,
                i == 1 ? BlockKind::backward : BlockKind::forward, code_of, items[i]);
  }
  const std::size_t of_forward = LineIssue::works_of(items[0]);
  Line& line = begin_line(c, of_forward + LineIssue::works_of(items[1]));
  Host host{.begin = now()};
  LineIssue f(*this, c, line, line.works.data(), items[0], conditions_of(forward.micro_batch, schedule.micro_batches),
              host);
  LineIssue b(*this, c, line, line.works.data() + of_forward, items[1],
              conditions_of(backward.micro_batch, schedule.micro_batches), host);
  LineIssue::issue_pair(f, b);
  const double begin = line.begin;
  co_await perform_line(c, line, false, host);
  for (const LineIssue* issue : {&f, &b})
    for (Work* w : issue->output()) co_await await_output(c, w);
  // For pictures: one after the other.
  const double kernels = f.kernel_seconds() + b.kernel_seconds();
  const double middle = begin + (kernels > 0 ? f.kernel_seconds() / kernels : 0.5) * (now() - begin);
  record_slot(c, forward, begin, middle);
  record_slot(c, backward, middle, now());
  co_await post_output(c, forward, positions[0], nullptr);
  co_await post_output(c, backward, positions[1], next);
}

void SimgridRun::record_slot(SimulatedClass& c, const Slot& slot, double begin, double end) {
  c.gate_event = record({.begin = begin,
                         .end = end,
                         .cause = c.gate_event,
                         .rank_class = c.id,
                         .name = slot.micro_batch,
                         .chunk = slot.chunk,
                         .stream = 0,
                         .kind = EventRecord::slot,
                         .slot_kind = static_cast<std::uint8_t>(slot.kind)});
}

// Waits for the streams' work. `all`: also for the asynchronous streams.
Routine SimgridRun::drain(SimulatedClass& c, bool all) {
  for (;;) {
    const double since = now();
    std::size_t last = kStreams;
    for (std::size_t s = 1; s < kStreams; ++s) {
      if (!all && kStreamRows[s].asynchronous) continue;
      while (c.streams[s].pending > c.streams[s].ahead) {
        c.streams[s].drain_awaited = true;
        co_await clock_.block(c);
        last = s;
      }
      c.streams[s].drain_awaited = false;
    }
    if (last == kStreams) co_return;
    book_wait(c, waiting_for(static_cast<Stream>(last)), since);
    c.gate_event = c.streams[last].last_event;
  }
}

bool SimgridRun::receives(const SimulatedClass& c, const Slot& slot, std::int32_t& from_stage) const {
  const JobSimulation& plan = *c.plan;
  const auto q = static_cast<std::size_t>(plan.program->schedule.position_of(c.stage, slot.chunk));
  if (slot.kind == SlotKind::weight_gradient) return false;
  if (slot.kind == SlotKind::forward ? q == 0 : q + 1 == plan.stage_at.size()) return false;
  from_stage = plan.stage_at[slot.kind == SlotKind::forward ? q - 1 : q + 1];
  return from_stage != static_cast<std::int32_t>(c.stage);
}

SimulatedClass& SimgridRun::counterpart(const SimulatedClass& c, std::int32_t stage) {
  const std::int64_t stages_away = stage - static_cast<std::int64_t>(c.stage);
  const std::int64_t rank = c.first_rank + stages_away * c.plan->program->mesh.stride(MeshAxis::pp);
  return *classes_[traffic().rank_class(c.job, rank)];
}

// Waits until the slot's input is there.
Routine SimgridRun::await_input(SimulatedClass& c, const Slot& slot, std::size_t position) {
  std::int32_t from_stage = 0;
  if (!receives(c, slot, from_stage)) co_return;
  const JobSimulation& plan = *c.plan;
  const Schedule& schedule = plan.program->schedule;
  const bool forward = slot.kind == SlotKind::forward;
  Arrival& input = input_of(c, forward ? 0 : 1, slot.chunk, slot.micro_batch, c.repeat);
  if (!input.there) {
    c.waits_for = fmt::format("the {} of micro-batch {} from stage {} (chunk {})",
                              forward ? "activations" : "gradients", slot.micro_batch, from_stage, slot.chunk);
    c.awaited = &input;
    const double since = now();
    clock_.wait_outside();
    while (!input.there) co_await clock_.block(c);
    clock_.leave_outside();
    c.awaited = nullptr;
    c.waits_for.clear();
    // A rank whose clock was ahead may learn only now of an earlier arrival.
    if (now() > since || out_.events[input.cause].end >= since) c.gate_event = input.cause;
  }
  if (schedule.blocking_transfers) {
    const std::uint32_t x = forward ? plan.forward[position - 1] : plan.backward[position + 1];
    if (x != kNoExchange) {
      const double begin = now();
      Beginning beginning{c.gate_event};
      co_await exchange(c, c, x, kComputeStream, kTransferName, false, false, beginning);
      c.out.transfers += now() - begin;
      input.received = true;
      if (input.sender != nullptr) clock_.wake(*input.sender);
      c.gate_event = record_transfer(counterpart(c, from_stage).id, c.id, slot.chunk, begin, beginning.cause);
    }
  }
}

Process SimgridRun::send(SimulatedClass& c, std::size_t direction) {
  Sender& sender = c.senders[direction];
  for (;;) {
    while (sender.queue.empty()) co_await clock_.block(sender);
    const Message m = sender.queue.front();
    sender.queue.pop_front();
    co_await clock_.sleep_until(m.time);  // its rank's clock may be ahead
    Beginning beginning{m.cause};
    co_await exchange(c, sender, m.exchange, static_cast<std::size_t>(Stream::pipeline_communication), kTransferName,
                      false, false, beginning);
    SimulatedClass& to = *classes_[m.to];
    Arrival& input = input_of(to, direction, m.chunk, m.micro_batch, m.repeat);
    input.cause = record_transfer(c.id, m.to, m.chunk, beginning.time, beginning.cause);
    input.there = true;
    if (to.awaited == &input) clock_.wake(to);
  }
}

Routine SimgridRun::post_output(SimulatedClass& c, const Slot& slot, std::size_t position, const Slot* next) {
  if (slot.kind == SlotKind::weight_gradient) co_return;
  const JobSimulation& plan = *c.plan;
  const Schedule& schedule = plan.program->schedule;
  const bool forward = slot.kind == SlotKind::forward;
  if (forward ? position + 1 == plan.stage_at.size() : position == 0) co_return;
  const std::size_t to_position = forward ? position + 1 : position - 1;
  const std::int32_t to_stage = plan.stage_at[to_position];
  if (to_stage == static_cast<std::int32_t>(c.stage)) co_return;
  const std::size_t direction = forward ? 0 : 1;
  const std::uint32_t x = forward ? plan.forward[position] : plan.backward[position];
  // The chunk of the receiving stage at that position.
  std::uint16_t chunk = 0;
  while (schedule.position_of(static_cast<std::size_t>(to_stage), chunk) != static_cast<std::int64_t>(to_position))
    ++chunk;
  SimulatedClass& to = counterpart(c, to_stage);
  Arrival& input = input_of(to, direction, chunk, slot.micro_batch, c.repeat);
  if (x == kNoExchange || schedule.blocking_transfers) {
    const bool at_once = to.awaited == &input;
    input.there = true;
    input.cause = c.gate_event;
    clock_.wake(to);
    if (x == kNoExchange) co_return;
    // The stream itself sends, unless its next slot receives from the same stage: then both directions are one exchange
    // (Megatron-LM's send_forward_recv_backward).
    std::int32_t from_stage = -1;
    if (next != nullptr && receives(c, *next, from_stage) && from_stage == to_stage) co_return;
    // A late receiver takes the message from a buffer, as in the analytical engine.
    const double since = now();
    if (at_once) {
      input.sender = &c;
      while (!input.received) co_await clock_.block(c);
    } else {
      co_await clock_.sleep(plan_.exchanges[x].cost.seconds);
    }
    c.out.transfers += now() - since;
    co_return;
  }
  Sender& sender = c.senders[direction];
  sender.queue.push_back({x, to.id, chunk, slot.micro_batch, c.gate_event, c.repeat, now()});
  if (!sender.has_process) {
    sender.has_process = true;
    clock_.start(send(c, direction), clock_.outside());
  } else if (clock_.is_outside()) {
    clock_.wake(sender);
  } else {
    clock_.at_outside(now(), sender);
  }
}

void SimgridRun::append_items(const SimulatedClass& c, const Chunk& chunk, BlockKind kind,
                              std::vector<LineItem>& items) const {
  const auto code_of = [&](std::uint16_t piece) -> const BlockCode& {
    return c.plan->codes[piece][static_cast<std::size_t>(kind)];
  };
  append_line(c.plan->program->pieces, chunk.runs, kind, code_of, items);
}

// The ranks of these stages wait for each other and do nothing else.
Routine SimgridRun::sum_over_stages(SimulatedClass& c, std::span<const LineItem> items) {
  for (const LineItem& item : items)
    for (const ClockNode& node : item.code->nodes) {
      Beginning beginning{c.gate_event};
      const auto name = c.plan->first_op.at(item.code) + static_cast<std::uint32_t>(&node - item.code->nodes.data());
      co_await exchange(c, c, c.plan->exchange_of(name, 1), kComputeStream, name, true, false, beginning);
      c.out.accounts[waiting_for(Stream::pipeline_communication)] += now() - beginning.time;
      c.gate_event = record({.begin = beginning.time,
                             .end = now(),
                             .cause = beginning.cause,
                             .rank_class = c.id,
                             .name = name,
                             .chunk = 1,
                             .stream = static_cast<std::uint8_t>(Stream::pipeline_communication),
                             .kind = EventRecord::op});
    }
}

Routine SimgridRun::meet_at_norm(SimulatedClass& c) {
  if (!c.plan->synchronises) co_return;
  co_await clock_.enter_outside();
  Barrier& barrier = barriers_[static_cast<std::size_t>(c.job)];
  const double since = now();
  if (++barrier.arrived == barrier.expected) {
    ++barrier.opened;
    barrier.arrived = 0;
    barrier.last_event = c.gate_event;
    for (Self* s : barrier.waiting) clock_.wake(*s);
    barrier.waiting.clear();
    clock_.leave_outside();
    co_return;
  }
  barrier.waiting.push_back(&c);
  c.waits_for = "the gradient norm of all stages";
  const std::int64_t opened = barrier.opened;
  while (barrier.opened == opened) co_await clock_.block(c);
  clock_.leave_outside();
  c.waits_for.clear();
  if (now() > since) c.gate_event = barrier.last_event;
}

Routine SimgridRun::end_step(SimulatedClass& c, UpdatePart part) {
  std::vector<LineItem> items;
  for (const Chunk& chunk : c.plan->program->stages[c.stage]) append_items(c, chunk, block_of(part), items);
  if (part == UpdatePart::stages) {
    co_await sum_over_stages(c, items);
    co_return;
  }
  // Nothing waits for the host after the reductions: it continues to issue.
  LineRun run;
  run.drain_all = true;
  if (part == UpdatePart::norm) run.host_ahead = c.host_ahead;
  co_await run_line(c, new_line(c, std::move(items), kOnly), run);
  if (part == UpdatePart::norm) co_await meet_at_norm(c);
}

Process SimgridRun::control(SimulatedClass& c) {
  for (c.repeat = 0; c.repeat < c.plan->repeats; ++c.repeat) co_await run_step(c);
  c.out.end = now();
  c.out.last_event = c.gate_event;
  c.finished = true;
  --running_;
  if (--running_classes_[static_cast<std::size_t>(c.job)] == 0 && c.plan->beside) run_beside(-1);
}

Routine SimgridRun::run_step(SimulatedClass& c) {
  const Program& program = *c.plan->program;
  const Schedule& schedule = program.schedule;
  const auto& order = orders_[static_cast<std::size_t>(c.job)][c.stage];
  std::unique_ptr<IssuedLine> chunk_ahead;  // for the chunk whose first forward comes next
  for (std::size_t i = 0; i < order.size(); ++i) {
    const Slot& slot = order[i].slot;
    if (order[i].pairs) {
      const Slot& backward = order[++i].slot;
      co_await run_pair(c, slot, backward, i + 1 < order.size() ? &order[i + 1].slot : nullptr);
      continue;
    }
    const auto position = static_cast<std::size_t>(schedule.position_of(c.stage, slot.chunk));
    std::vector<LineItem> items;
    const auto& chunks = program.stages_of(program.class_of(slot.micro_batch))[c.stage];
    append_items(c, chunks[slot.chunk], static_cast<BlockKind>(slot.kind), items);
    const WhenSet when = conditions_of(slot.micro_batch, schedule.micro_batches);
    // The first forward's gathering of parameters needs no input: it runs while the pipeline fills.
    std::int32_t from_stage = 0;
    const bool early = slot.kind == SlotKind::forward && slot.micro_batch == 0 && receives(c, slot, from_stage);
    double begin = 0;
    const std::function<Routine()> wait_for_input = [&]() -> Routine {
      co_await await_input(c, slot, position);
      begin = now();
    };
    LineRun run;
    if (early)
      run.wait_for_input = &wait_for_input;
    else
      co_await wait_for_input();
    const bool first = slot.kind == SlotKind::forward && slot.micro_batch == 0;
    std::unique_ptr<IssuedLine> own =
        first && chunk_ahead ? std::move(chunk_ahead) : new_line(c, std::move(items), when);
    // Megatron-Core launches the next chunk's gathers with the first forward of the one before
    // (forward_backward_pipelining_with_interleaving, param_sync_func).
    const std::function<void()> issue_next = [&] {
      const auto next =
          std::find_if(order.begin() + static_cast<std::ptrdiff_t>(i) + 1, order.end(),
                       [](const auto& o) { return o.slot.kind == SlotKind::forward && o.slot.micro_batch == 0; });
      if (next != order.end()) chunk_ahead = issue_chunk_ahead(c, next->slot.chunk);
    };
    if (first && schedule.chunks > 1 && !schedule.pairs) run.issue_next = &issue_next;
    co_await run_line(c, std::move(own), run);
    record_slot(c, slot, begin, now());
    co_await post_output(c, slot, position, i + 1 < order.size() ? &order[i + 1].slot : nullptr);
  }
  c.out.slots_end = now();
  co_await drain(c, true);

  for (const UpdatePart part : kStepEnd) co_await end_step(c, part);
}

}  // namespace orrery
