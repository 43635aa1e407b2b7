// A rank's steps: the schedule's slots, the blocks of its pieces, the update.
#include "realrun/rank/rank.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "realrun/rank/background.h"
#include "realrun/rank/initial_values.h"
#include "realrun/rank/op_runner.h"
#include "realrun/rank/rank_results.h"
#include "realrun/rank/streams.h"

namespace orrery::realrun {
namespace {

Program program_of_block(const Program& of, std::uint16_t block) {
  Program program;
  task_program(of, block, program);
  return program;
}

// A block of tasks beside the step (sim/program/task.h). Its Program has the step's pieces and tensors, so that both
// work on the same memory.
struct RankTask {
  // REQUIRES: everything outlives it; they are the step's.
  RankTask(std::uint16_t block, const RunSetup& of_step, const Position& position, TensorMemory& memory,
           Communicator& communicator, StepClock& clock, StepResults& results)
      : program(program_of_block(of_step.program, block)),
        setup{of_step.scenario, program, of_step.options, of_step.parameters, of_step.sequences},
        model(setup, position),
        shared(setup, position, model, memory, communicator),
        norm(shared),
        ops(shared, clock, norm, results) {}

  Program program;
  RunSetup setup;
  RankModel model;
  RankShared shared;
  GradientNorm norm;
  OpRunner ops;
};

class Rank {
 public:
  // Begins with the state in `carried`, which it completes from other ranks.
  Rank(const RunSetup& setup, Backend& backend, Communicator& communicator, CarriedState carried = {})
      : setup_(setup),
        program_(setup.program),
        backend_(backend),
        communicator_(communicator),
        position_(position_of(communicator.rank(), setup.program, setup.sequences.whole)),
        model_(setup, position_),
        memory_(setup, position_, model_, backend),
        shared_(setup, position_, model_, memory_, communicator),
        clock_(shared_),
        norm_(shared_),
        results_(shared_),
        ops_(shared_, clock_, norm_, results_),
        streams_(memory_),
        messages_(shared_, clock_),
        held_(shared_) {
    for (std::size_t b = 1; b <= program_.pieces.front().tasks.size(); ++b)
      tasks_.emplace_back(static_cast<std::uint16_t>(b), setup_, position_, memory_, communicator_, clock_, results_);
    if (!setup.carried.empty()) {
      std::vector<CarriedState::Stretch> lacks;
      model_.for_each_instance([&](const Instance& instance) {
        const auto own = lacking(setup, position_, instance, carried);
        lacks.insert(lacks.end(), own.begin(), own.end());
      });
      carried.complete(communicator, backend, lacks);
    }
    model_.for_each_instance(
        [&](const Instance& instance) { initialise(setup, position_, instance, carried, memory_); });
  }

  // Runs all steps. `result` holds the results of earlier parts and is extended. Call it once.
  void run(RankResult& result) {
    const ExecutionOptions& options = setup_.options;
    result_ = std::move(result);
    result_.step_seconds.clear();  // the members below are of this Program only
    result_.marked_step_seconds.clear();
    result_.ops.clear();
    result_.intervals.clear();
    result_.time = {};
    if (program_.begin > 0) run_task(program_.begin);
    run_tasks_until_step(0);
    for (std::int64_t step = 0; step < options.warmup_steps + options.steps; ++step) {
      const Backend::Mark begin = begin_step(step);
      run_step();
      if (!program_.tasks.empty() && ++repeated_ == program_.tasks[task_].repeats) run_tasks_until_step(task_ + 1);
      end_step(step, begin);
    }
    if (background_ && last_beside_ >= 0) background_->wait(last_beside_);
    result_.rank = position_.rank;
    result_.stage = position_.pp;
    if (const double peak = memory_.ledger().peak_bytes(); peak >= result_.peak_bytes) {
      result_.peak_bytes = peak;
      result_.bytes_at_peak = memory_.ledger().at_peak();
    }
    result_.rows = ops_.routed();
    if (options.keep_tensors) result_.parts = held_.parts();
    backend_.synchronize();
    result = std::move(result_);
  }

  // Returns the state for the next Program and frees the memory. Call it once, after run().
  CarriedState leave() {
    CarriedState carried;
    model_.for_each_instance([&](const Instance& instance) { keep(setup_, position_, instance, memory_, carried); });
    backend_.synchronize();
    memory_.forget();
    return carried;
  }

 private:
  // An op that runs once for several instances (Op::every) waits until the last of them is reached. `number`: of the
  // bucket in its block, the same in all variants of a piece.
  struct Waiting {
    const Instance* instance = nullptr;
    std::size_t op = 0;  // index in the block
  };
  struct Bucket {
    std::size_t block, number;
    std::vector<Waiting> ops;
  };

  Backend::Mark begin_step(std::int64_t step) {
    const ExecutionOptions& options = setup_.options;
    const std::int64_t measured = step - options.warmup_steps;
    ops_.begin_step(setup_.first_step + step);
    // Marks around every op would slow the steps that give the step time.
    clock_.set_marking(options.measure && measured >= options.steps / 2);
    if (!options.measure) return 0;
    if (measured == 0) memory_.ledger().forget_peak();
    backend_.synchronize();
    backend_.forget_marks();
    communicator_.gather_values(communicator_.everyone(), "the start of a step", {});
    return backend_.mark(Stream::compute);
  }

  void end_step(std::int64_t step, Backend::Mark begin) {
    if (setup_.options.measure && step >= setup_.options.warmup_steps) {
      for (int s = 1; s < kStreams; ++s) {  // the step ends when all streams have ended
        const auto stream = static_cast<Stream>(s);
        backend_.wait(Stream::compute, backend_.record(stream));
      }
      const Backend::Mark end = backend_.mark(Stream::compute);
      backend_.synchronize();
      clock_.add_step(begin, end, result_);
    }
    const StepResults::Sums sums = results_.take();
    result_.losses.push_back(sums.loss);
    result_.active_experts.push_back(sums.active_experts);
    result_.routed_tokens.push_back(sums.routed_tokens);
    if (setup_.options.after_step) setup_.options.after_step(position_.rank, setup_.first_step + step);
  }

  void run_step() {
    program_.schedule.order(static_cast<std::size_t>(position_.pp)).for_each([&](Slot slot) { run_slot(slot); });
    memory_.release_micro_batches();
    for (const UpdatePart part : kStepEnd) {
      model_.for_each_instance([&](const Instance& instance) { run_update(part, instance); });
      if (part == UpdatePart::norm)
        result_.gradient_norms.push_back(norm_.exchange([&](const OpCall& call) { ops_.run(call); }));
    }
    memory_.release_micro_batches();
  }

  // ---- tasks

  // Runs the tasks that come before the next step in the list. `from`: the number of the first.
  void run_tasks_until_step(std::size_t from) {
    const std::vector<Task>& tasks = program_.tasks;
    if (tasks.empty()) return;
    runs_beside_.resize(tasks.size());
    repeated_ = 0;
    for (task_ = from;; ++task_) {
      if (task_ == tasks.size()) task_ = 0, ++iteration_;
      const Task& task = tasks[task_];
      wait_before(task);
      if (task.block == 0) return;
      for (std::int64_t i = 0; i < task.repeats; ++i)
        if (!task.beside || !run_beside(tasks_[task.block - 1u])) run_task(task.block);
      runs_beside_[task_].push_back(last_beside_);
    }
  }

  // Waits for the tasks that a task of the list waits for.
  void wait_before(const Task& task) {
    for (const After& after : task.after)
      if (background_ && program_.tasks[after.task].beside && iteration_ >= after.lag)
        background_->wait(runs_beside_[after.task][static_cast<std::size_t>(iteration_ - after.lag)]);
  }

  // Hands the task to the background's thread. Returns false if it has to run here. On a device, a task beside others
  // is only issued: what reads its results waits for its stream. A CPU works in the caller's thread, so the task gets
  // another one.
  bool run_beside(RankTask& task) {
    if (!std::exchange(tried_background_, true) && !backend_.facts().asynchronous_streams) {
      std::unique_ptr<Backend> backend = make_cpu_backend();
      if (auto communicator = communicator_.beside(*backend))
        background_ = std::make_unique<Background>(std::move(backend), std::move(communicator));
    }
    if (!background_) return false;
    std::vector<SumBeside> sums;
    bool all = true;
    task.model.for_each_instance([&](const Instance& instance) {
      for (std::size_t i = 0; i < instance.plan->ops(kUpdateBlock).size(); ++i) {
        const std::optional<SumBeside> sum = task.ops.sum_beside({instance, kOfStep, kUpdateBlock, i});
        all = all && sum.has_value();
        if (sum) sums.push_back(*sum);
      }
    });
    if (all) last_beside_ = background_->add(std::move(sums));
    return all;
  }

  void run_task(std::uint16_t block) {
    RankTask& task = tasks_[block - 1u];
    clock_.pause();  // marks are of the step's ops
    for (const UpdatePart part : kStepEnd) {
      task.model.for_each_instance([&](const Instance& instance) {
        const auto [begin, end] = instance.plan->update_range(part);
        for (std::size_t i = begin; i < end; ++i) {
          const OpCall call{instance, kOfStep, kUpdateBlock, i};
          if (call.op.is_part || instance.plan->reduces_norm(call.op)) continue;
          task.ops.run(call);
          memory_.end_lives(call, call.block, call.index);
        }
      });
      if (part == UpdatePart::norm) task.norm.exchange([&](const OpCall& call) { task.ops.run(call); });
    }
    memory_.release_micro_batches();
    clock_.go_on();
  }

  // ---- blocks

  // These run a block for all instances of a chunk, in order. After its last use a micro-batch's memory is freed.
  void run_slot(const Slot& slot) {
    const RankChunk& chunk = model_.chunks().at(slot.chunk);
    const auto micro_batch = static_cast<std::int64_t>(slot.micro_batch);
    const bool last = slot.kind == SlotKind::weight_gradient ||
                      (slot.kind == SlotKind::backward && !program_.schedule.split_backward);
    const std::size_t block = slot.kind == SlotKind::forward    ? kForwardBlock
                              : slot.kind == SlotKind::backward ? kBackwardBlock
                                                                : kWeightGradientBlock;
    run_line(block, chunk, micro_batch);
    if (!last) return;
    for (const Instance& instance : chunk.instances) memory_.release(instance, micro_batch);
  }

  void run_line(std::size_t block, const RankChunk& chunk, std::int64_t micro_batch) {
    const std::vector<InLine>& line = chunk.line(block);
    const bool backward = block == kBackwardBlock, crosses = block != kWeightGradientBlock;
    const std::int64_t behind_all = static_cast<std::int64_t>(program_.schedule.position.size()) - 1;
    const std::int64_t first = backward ? behind_all : 0, last = backward ? 0 : behind_all;
    const IssueAhead order{static_cast<std::int64_t>(line.size()), chunk.longest_ahead[block]};
    const auto issue = [&](std::int64_t at, int least, int most) {
      run_ahead(block, *line[static_cast<std::size_t>(at)].instance, micro_batch, least, most);
    };
    order.at_beginning(issue);
    Streams streams;
    for (std::size_t i = 0; i < line.size(); ++i) {
      const Instance& instance = *line[i].instance;
      if (crosses && i == 0 && chunk.position != first)
        streams = messages_.receive(chunk.position, micro_batch, backward);
      if (crosses) streams_.hand_in(instance, block, micro_batch, streams);
      run_block(block, line[i], micro_batch, [&] { order.when_starts(static_cast<std::int64_t>(i), issue); });
      if (crosses) streams_.hand_on(instance, block, micro_batch, streams);
    }
    if (crosses && chunk.position != last)
      messages_.send(chunk.position + (backward ? -1 : 1), micro_batch, backward, streams);
  }

  // Runs the block's ops that are issued between `least` and `most` instances ahead.
  void run_ahead(std::size_t block, const Instance& instance, std::int64_t micro_batch, int least, int most) {
    const std::vector<Op>& ops = instance.plan->ops(block);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!instance.plan->is_ahead(block, i) || ops[i].prefetch < least || ops[i].prefetch > most) continue;
      if (runs(ops[i], micro_batch)) run_op({instance, micro_batch, block, i});
    }
  }

  // `begun` is called when the first kernel has been issued.
  template <class Begun>
  void run_block(std::size_t block, const InLine& at, std::int64_t micro_batch, Begun begun) {
    const Instance& instance = *at.instance;
    const std::vector<Op>& ops = instance.plan->ops(block);
    const std::size_t issues_from = instance.plan->issues_ahead_from(block);
    std::size_t buckets = 0;
    bool began = false;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      const Op& op = ops[i];
      const std::size_t bucket = op.every > 1 ? buckets++ : 0;
      if (instance.plan->is_ahead(block, i)) continue;
      if (!runs(op, micro_batch)) {
        memory_.end_lives(OpCall(instance, micro_batch, block, i), block, i);
      } else if (op.every > 1) {
        for (const auto& [each, of_each] : add_to_bucket(block, bucket, at, i))
          run_op({*each, micro_batch, block, of_each});
      } else {
        run_op({instance, micro_batch, block, i});
        if (began || op.stream != Stream::compute || i < issues_from) continue;
        began = true;
        begun();
      }
    }
    if (!began) begun();
  }

  // Adds an instance's op, and returns the ops to run now: none while the bucket fills. Throws std::logic_error if the
  // bucket lacks an instance that it covers.
  std::vector<Waiting> add_to_bucket(std::size_t block, std::size_t number, const InLine& at, std::size_t op) {
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(),
                               [&](const Bucket& b) { return b.block == block && b.number == number; });
    if (bucket == buckets_.end()) bucket = buckets_.insert(buckets_.end(), Bucket{block, number, {}});
    bucket->ops.push_back({at.instance, op});
    const std::int64_t instances = instances_covered(at.instance->plan->ops(block)[op].every, at.place);
    if (instances == 0) return {};
    std::vector<Waiting> covered = std::move(bucket->ops);
    buckets_.erase(bucket);
    if (static_cast<std::int64_t>(covered.size()) != instances)
      throw std::logic_error("a bucket of " + std::to_string(instances) + " layers holds " +
                             std::to_string(covered.size()));
    return covered;
  }

  void run_op(const OpCall& call) {
    ops_.run(call);
    memory_.end_lives(call, call.block, call.index);
  }
  bool runs(const Op& op, std::int64_t micro_batch) const {
    return !op.is_part && (bit(op.when) & conditions_of(micro_batch, program_.schedule.micro_batches)) != 0;
  }

  // ---- update

  // Runs all ops but the norm's exchange.
  void run_update(UpdatePart part, const Instance& instance) {
    const std::vector<Op>& ops = instance.plan->ops(kUpdateBlock);
    const auto [begin, end] = instance.plan->update_range(part);
    const std::size_t summed = instance.plan->norm_begin();
    const bool keeps = setup_.options.keep_tensors;
    for (std::size_t i = begin; i < end; ++i) {
      if (i == summed && keeps) held_.keep_gradients(instance);
      if (ops[i].is_part || instance.plan->reduces_norm(ops[i])) continue;
      const OpCall call{instance, kOfStep, kUpdateBlock, i};
      has_turn(ops[i], instance) ? run_op(call) : memory_.end_lives(call, kUpdateBlock, i);
    }
    if (part == kStepEnd.back() && summed == ops.size() && keeps) held_.keep_gradients(instance);
  }

  bool has_turn(const Op& op, const Instance& instance) const {
    return rank_of_turn(instance.turn, program_.mesh.size(op.turns)) == position_.coordinate(op.turns);
  }

  const RunSetup& setup_;
  const Program& program_;
  Backend& backend_;
  Communicator& communicator_;
  const Position position_;
  const RankModel model_;
  TensorMemory memory_;
  const RankShared shared_;
  StepClock clock_;
  GradientNorm norm_;
  StepResults results_;
  OpRunner ops_;
  PieceStreams streams_;
  StageMessages messages_;
  std::vector<Bucket> buckets_;  // that fill
  HeldParts held_;
  std::deque<RankTask> tasks_;  // by block, from 1
  // The task of the list that the next step belongs to, and how often it has run in this iteration.
  std::size_t task_ = 0;
  std::int64_t repeated_ = 0, iteration_ = 0;
  // By task: the background's last run in each iteration. The background is made when a task first needs it.
  std::vector<std::vector<std::int64_t>> runs_beside_;
  std::int64_t last_beside_ = -1;
  bool tried_background_ = false;
  std::unique_ptr<Background> background_;
  RankResult result_;
};

}  // namespace

RankResult run_rank(std::span<const RunSetup> parts, Backend& backend, Communicator& communicator) {
  // Outlive the handler: what has failed is said before ranks end what they have under way. Deque: the backend knows
  // their index lists by address.
  std::deque<Rank> ranks;
  try {
    RankResult result;
    CarriedState carried;
    for (const RunSetup& part : parts) {
      Rank& rank = ranks.emplace_back(part, backend, communicator, std::move(carried));
      rank.run(result);
      if (&part != &parts.back()) carried = rank.leave();
    }
    communicator.finish();
    return result;
  } catch (...) {
    communicator.fail(std::current_exception());
    throw;
  }
}

}  // namespace orrery::realrun
