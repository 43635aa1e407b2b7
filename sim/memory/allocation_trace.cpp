#include "sim/memory/allocation_trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "sim/memory/memory.h"
#include "sim/program/issue.h"
#include "sim/program/rewrite.h"

namespace orrery {
namespace {

constexpr std::uint32_t kNothing = 0xffffffffu;

// By op of a block: the storages of a piece whose lives begin and end there.
struct PieceLives {
  explicit PieceLives(const Piece& piece) {
    lives.find(piece);
    for (std::size_t b = 0; b < kBlocks.size(); ++b) {
      const std::span<const Op> ops = (piece.*kBlocks[b]).ops;
      begins[b].resize(ops.size());
      ends[b].resize(ops.size());
      ahead[b] = find_ahead(ops, lives.storage(), boundary_of(piece, b).input);
    }
    for (const TensorId id : lives.storages()) {
      const Life& life = lives.of(id);
      if (piece.tensors[id].place != Place::device) continue;
      if (life.keeper == Keeper::step) resident.push_back(id);
      if (life.keeper != Keeper::blocks) continue;
      for (std::size_t b = 0; b < kBlocks.size(); ++b) {
        if (!life.touches(b)) continue;
        if (!life.enters_block(b)) begins[b][life.first[b]].push_back(id);
        if (!life.outlives(b)) ends[b][life.last[b]].push_back(id);
      }
    }
  }
  bool is_passing(const Piece& piece, TensorId storage) const {
    return piece.tensors[storage].place == Place::device && lives.of(storage).keeper == Keeper::blocks;
  }

  Liveness lives;
  std::array<std::vector<std::vector<TensorId>>, kBlocks.size()> begins, ends;  // by op
  std::array<std::vector<std::uint8_t>, kBlocks.size()> ahead;                  // by op; empty: none
  std::vector<TensorId> resident;
};

class Tracer {
 public:
  Tracer(const Program& program, std::size_t stage) : program_(program), stage_(stage) {
    for (const Piece& piece : program.pieces) lives_.emplace_back(piece);
  }

  AllocationTrace run() {
    const std::vector<Chunk>& chunks = program_.stages[stage_];
    const StageBuffers buffers = stage_buffers(program_, chunks);
    allocate_buffer(device_bytes(buffers.resident), "stack's buffers");
    for (const Chunk& chunk : chunks)
      for (const PieceRun& run : chunk.runs)
        for (std::int64_t i = 0; i < run.count; ++i)
          for (const TensorId id : lives_[run.piece].resident) allocate_resident(run.piece, id);
    for (std::size_t c = 0; c < program_.micro_batch_classes(); ++c) {
      std::int64_t instances = 0;
      first_instance_.emplace_back();
      for (const Chunk& chunk : program_.stages_of(c)[stage_]) {
        first_instance_.back().push_back(instances);
        for (const PieceRun& run : chunk.runs) instances += run.count;
      }
    }
    trace_.step_begin = trace_.events.size();
    const StageOrder order = program_.schedule.order(stage_);
    whole_gradients_.resize(chunks.size());
    order.for_each([&](const Slot& slot) { whole_gradients_[slot.chunk].slots += is_backward(slot) ? 1 : 0; });
    order.for_each_turn(
        program_.schedule.pairs, [&](const Slot& slot) { run_slots({slot}, slot, buffers); },
        [&](const Slot& forward, const Slot& backward) {
          run_slots({forward, backward}, backward, buffers);
        });
    const std::uint32_t copies = allocate_buffer(buffers.update, "gradients of the update in fp32");
    for (std::size_t c = 0; c < chunks.size(); ++c) {
      Line line = line_of(chunks[c].runs, first_instance_.front()[c], kUpdateBlock, kUpdate, kOnly);
      for (std::size_t i = 0; i < line.instances.size(); ++i) step(line, i);
      end(line);
    }
    release(copies);
    return std::move(trace_);
  }

 private:
  static constexpr std::uint32_t kUpdate = 0xffffffffu;  // stands for the update instead of a micro-batch

  using Held = std::vector<std::uint32_t>;  // by storage: its allocation
  struct Instance {
    std::uint16_t piece = 0;
    std::int64_t number = 0;  // number within the stage
    PositionInStretch place;
  };

  std::uint32_t allocate(const Allocation& allocation) {
    const auto number = static_cast<std::uint32_t>(trace_.allocations.size());
    trace_.allocations.push_back(allocation);
    owners_.push_back(1);
    trace_.events.push_back({number, false});
    return number;
  }
  std::uint32_t allocate(std::uint16_t piece, TensorId storage, int stream) {
    return allocate({program_.pieces[piece].tensors[storage].bytes(), stream, piece, storage, ""});
  }
  // Returns kNothing for 0 bytes.
  std::uint32_t allocate_buffer(double bytes, const char* name) {
    return bytes > 0 ? allocate({.bytes = static_cast<std::int64_t>(bytes), .buffer = name}) : kNothing;
  }
  void release(std::uint32_t allocation) {
    if (allocation == kNothing || --owners_[allocation] > 0) return;
    trace_.events.push_back({allocation, true});
  }

  Held& held_of(const Instance& instance, std::uint32_t micro_batch) {
    Held& held = held_[{instance.number, micro_batch}];
    if (held.empty()) held.assign(program_.pieces[instance.piece].tensors.size(), kNothing);
    return held;
  }

  static bool is_backward(const Slot& slot) { return slot.kind != SlotKind::forward; }

  // If whole gradients come and go (Runtime::releases_gradients), only the rank's part of them is resident.
  void allocate_resident(std::uint16_t piece, TensorId id) {
    const std::uint32_t allocation = allocate(piece, id, 0);
    const Piece& of = program_.pieces[piece];
    if (program_.runtime.releases_gradients && of.tensors[id].category == Category::gradient)
      for (const ParameterSet& set : of.sets)
        if (!set.frozen() && set.own_gradients != set.gradients && storage_of(of, set.gradients) == id)
          trace_.allocations[allocation].bytes = of.tensors[set.own_gradients].bytes();
  }

  // Runs slots that alternate instance by instance. `last`: the last of them, the only one that may be a backward.
  void run_slots(std::initializer_list<Slot> slots, const Slot& last, const StageBuffers& buffers) {
    const std::uint32_t buffer = begin_backward(last, buffers);
    std::vector<Line> lines;
    std::size_t most = 0;
    for (const Slot& slot : slots) most = std::max(most, lines.emplace_back(line_of(slot)).instances.size());
    for (std::size_t i = 0; i < most; ++i)
      for (Line& line : lines)
        if (i < line.instances.size()) step(line, i);
    for (Line& line : lines) end(line);
    end_backward(last, buffer);
  }

  // Allocates the buffers that a backward (or the weight gradients of a split one) needs beside tensors. Returns the
  // buffer that end_backward() frees.
  std::uint32_t begin_backward(const Slot& slot, const StageBuffers& buffers) {
    if (!is_backward(slot)) return kNothing;
    WholeGradients& whole = whole_gradients_[slot.chunk];
    if (whole.met++ == 0)
      for (const PieceRun& run : program_.stages[stage_][slot.chunk].runs)
        for (std::int64_t i = 0; i < run.count; ++i)
          whole.allocations.push_back(
              allocate_buffer(released_gradient_bytes(program_, program_.pieces[run.piece]), "whole gradients"));
    return allocate_buffer(buffers.backward, "reduction buffers");
  }
  void end_backward(const Slot& slot, std::uint32_t buffer) {
    release(buffer);
    if (!is_backward(slot)) return;
    if (slot.kind == SlotKind::backward) {
      const auto sent = sent_.find({slot.chunk, slot.micro_batch});
      if (sent != sent_.end()) {
        release(sent->second);
        sent_.erase(sent);
      }
    }
    WholeGradients& whole = whole_gradients_[slot.chunk];
    if (whole.met < whole.slots) return;
    for (const std::uint32_t allocation : whole.allocations) release(allocation);
    whole.allocations.clear();
  }

  // The state of a line that runs instance by instance.
  struct Line {
    std::vector<Instance> instances;
    std::size_t block = 0;
    std::uint32_t micro_batch = 0;
    WhenSet conditions = kOnly;
    IssueAhead ahead{0, 0};
    std::uint32_t carried = kNothing;  // the storage that an instance hands on to the next one
    std::map<std::size_t, std::vector<std::uint32_t>> postponed;  // by op: allocations to be freed later
    double kept_output = 0;                                       // bytes that live beyond the line
    std::uint16_t chunk = 0;
  };

  Line line_of(const Slot& slot) {
    const auto block = static_cast<std::size_t>(slot.kind);  // kBlocks begins with the kinds of slots
    const std::size_t of_class = program_.class_of(slot.micro_batch);
    const Chunk& chunk = program_.stages_of(of_class)[stage_][slot.chunk];
    Line line = line_of(chunk.runs, first_instance_[of_class][slot.chunk], block, slot.micro_batch,
                        conditions_of(slot.micro_batch, program_.schedule.micro_batches));
    line.chunk = slot.chunk;
    if (block == kForwardBlock)
      line.kept_output = sent_output_bytes(program_, chunk, program_.schedule.position_of(stage_, slot.chunk));
    return line;
  }

  Line line_of(std::span<const PieceRun> runs, std::int64_t first, std::size_t block, std::uint32_t micro_batch,
               WhenSet conditions) {
    const bool reversed = block == kBackwardBlock || block == kWeightGradientBlock;
    Line line;
    line.block = block;
    line.micro_batch = micro_batch;
    line.conditions = conditions;
    std::int64_t all = 0;
    for (const PieceRun& run : runs) all += run.count;
    for_each_in_line(program_.pieces, runs, reversed, [&](const PieceRun& run, PositionInStretch place) {
      for (std::int64_t i = 0; i < run.count; ++i, ++place.before) {
        const auto at = static_cast<std::int64_t>(line.instances.size());
        line.instances.push_back({run.piece, first + (reversed ? all - 1 - at : at), place});
      }
    });
    line.ahead = {static_cast<std::int64_t>(line.instances.size()), 0};
    for (const PieceRun& run : runs)
      if (!lives_[run.piece].ahead[block].empty())
        for (const Op& op : (program_.pieces[run.piece].*kBlocks[block]).ops)
          line.ahead.longest = std::max<std::int64_t>(line.ahead.longest, op.prefetch);
    if (line.ahead.longest > 0)
      line.ahead.at_beginning([&](std::int64_t i, int least, int most) { issue(line, i, least, most); });
    return line;
  }

  void issue(const Line& line, std::int64_t i, int least, int most) {
    const Instance& instance = line.instances[static_cast<std::size_t>(i)];
    const PieceLives& lives = lives_[instance.piece];
    if (lives.ahead[line.block].empty()) return;
    const std::span<const Op> ops = (program_.pieces[instance.piece].*kBlocks[line.block]).ops;
    for (std::size_t p = 0; p < ops.size(); ++p)
      if (lives.ahead[line.block][p] != 0 && ops[p].prefetch >= least && ops[p].prefetch <= most &&
          (bit(ops[p].when) & line.conditions) != 0)
        begin(instance, held_of(instance, line.micro_batch), line.block, p);
  }

  void end(Line& line) {
    if (line.kept_output > 0) {
      const bool whole =
          line.carried != kNothing && static_cast<double>(trace_.allocations[line.carried].bytes) == line.kept_output;
      sent_[{line.chunk, line.micro_batch}] =
          whole ? std::exchange(line.carried, kNothing) : allocate_buffer(line.kept_output, "sent output");
    }
    release(line.carried);
    for (auto& [op, waiting] : line.postponed)
      for (const std::uint32_t allocation : waiting) release(allocation);
  }

  // Allocates the storages that op `p` touches first.
  void begin(const Instance& instance, Held& held, std::size_t block, std::size_t p) {
    const Op& op = (program_.pieces[instance.piece].*kBlocks[block]).ops[p];
    const int stream = op.prefetch > 0 || op.free_running ? static_cast<int>(op.stream) : 0;
    for (const TensorId id : lives_[instance.piece].begins[block][p])
      if (held[id] == kNothing) held[id] = allocate(instance.piece, id, stream);
  }

  // Runs instance i of the line.
  void step(Line& line, std::size_t i) {
    const Instance& instance = line.instances[i];
    const std::size_t block = line.block;
    std::uint32_t carried = std::exchange(line.carried, kNothing);
    auto& postponed = line.postponed;
    const Piece& piece = program_.pieces[instance.piece];
    const PieceLives& lives = lives_[instance.piece];
    const std::span<const Op> ops = (piece.*kBlocks[block]).ops;
    Held& held = held_of(instance, line.micro_batch);
    const std::size_t first_event = trace_.events.size();
    const Boundary boundary = boundary_of(piece, block);
    if (boundary.input != kNoTensor) {
      const TensorId input = lives.lives.storage(boundary.input);
      if (lives.is_passing(piece, input) && lives.lives.of(input).enters_block(block) && held[input] == kNothing)
        held[input] = carried == kNothing ? allocate(instance.piece, input, 0) : std::exchange(carried, kNothing);
    }
    const std::size_t starts_at = issues_ahead_from(ops);
    for (std::size_t p = 0; p < ops.size(); ++p) {
      if (p == starts_at && line.ahead.longest > 0)
        line.ahead.when_starts(static_cast<std::int64_t>(i),
                               [&](std::int64_t other, int least, int most) { issue(line, other, least, most); });
      const Op& op = ops[p];
      const bool is_meant = (bit(op.when) & line.conditions) != 0;
      const bool runs = is_meant && instances_covered(op.every, instance.place, op.covers) > 0;
      if (runs) begin(instance, held, block, p);
      for (const TensorId id : lives.ends[block][p]) {
        const std::uint32_t allocation = std::exchange(held[id], kNothing);
        if (is_meant && !runs && op.every > 1 && allocation != kNothing)
          postponed[p].push_back(allocation);  // until its bucket is full
        else
          release(allocation);
      }
      if (!runs) continue;
      if (const auto waiting = postponed.find(p); waiting != postponed.end()) {
        for (const std::uint32_t allocation : waiting->second) release(allocation);
        postponed.erase(waiting);
      }
    }
    release(carried);  // its storage belongs to another piece
    if (boundary.output != kNoTensor) {
      const TensorId output = lives.lives.storage(boundary.output);
      const Life& life = lives.lives.of(output);
      if (held[output] != kNothing && (life.handed_on & bit_of_block(block)) != 0) {
        line.carried = held[output];
        if ((life.kept & bit_of_block(block)) != 0)
          ++owners_[line.carried];
        else
          held[output] = kNothing;
      }
    }
    const bool is_last = block == kUpdateBlock || block == kWeightGradientBlock ||
                         (block == kBackwardBlock && piece.weight_gradient.ops.empty());
    if (is_last) {
      for (const std::uint32_t allocation : held) release(allocation);
      held_.erase({instance.number, line.micro_batch});
    }
    trace_.blocks.push_back({first_event, trace_.events.size(), instance.piece, static_cast<std::uint8_t>(block)});
  }

  struct WholeGradients {
    std::int64_t slots = 0, met = 0;  // slots that add to them
    std::vector<std::uint32_t> allocations;
  };

  const Program& program_;
  const std::size_t stage_;
  std::vector<PieceLives> lives_;
  AllocationTrace trace_;
  std::vector<std::uint8_t> owners_;                                       // by allocation: number of its owners
  std::vector<std::vector<std::int64_t>> first_instance_;                  // by class of micro-batches and chunk
  std::map<std::pair<std::int64_t, std::uint32_t>, Held> held_;            // by instance and micro-batch
  std::vector<WholeGradients> whole_gradients_;                            // by chunk
  std::map<std::pair<std::uint16_t, std::uint32_t>, std::uint32_t> sent_;  // by chunk and micro-batch
};

}  // namespace

double allocation_events(const Program& program, std::size_t stage) {
  double events = 0;
  for (std::size_t c = 0; c < program.micro_batch_classes(); ++c) {
    double of_micro_batch = 0;
    for (const Chunk& chunk : program.stages_of(c)[stage])
      for (const PieceRun& run : chunk.runs) {
        const Piece& piece = program.pieces[run.piece];
        Liveness lives;
        lives.find(piece);
        std::int64_t passing = 0;  // allocated and freed once, or in each block that it does not outlive
        for (const TensorId id : lives.storages())
          if (piece.tensors[id].place == Place::device && lives.of(id).keeper == Keeper::blocks) ++passing;
        of_micro_batch += 2 * static_cast<double>(run.count * passing);
      }
    events += static_cast<double>(program.micro_batches_of(c)) * of_micro_batch;
  }
  return events;
}

AllocationTrace allocation_trace(const Program& program, std::size_t stage) { return Tracer(program, stage).run(); }

Replay replay(const AllocationTrace& trace, const CachingAllocator::Options& options, int steps) {
  Replay result;
  CachingAllocator allocator(options);
  std::vector<std::int64_t> addresses(trace.allocations.size());
  // Returns false if there is no room.
  const auto play = [&](std::size_t first, std::size_t end) {
    for (std::size_t i = first; i < end; ++i) {
      const auto [number, frees] = trace.events[i];
      const Allocation& a = trace.allocations[number];
      if (frees) {
        allocator.free(addresses[number]);
        continue;
      }
      const std::optional<std::int64_t> address = allocator.allocate(a.bytes, a.stream, number);
      if (!address) {
        result.out_of_memory = true;
        result.failed = number;
        return false;
      }
      addresses[number] = *address;
    }
    return true;
  };
  allocator.record_events(&result.events);
  if (play(0, trace.step_begin))
    for (int step = 0; step < steps; ++step) {
      if (step > 0) result.events.clear();
      if (!play(trace.step_begin, trace.events.size())) break;
    }
  result.statistics = allocator.statistics();
  result.segments = allocator.segments();
  return result;
}

}  // namespace orrery
