// Runs a lowered Program: one training step after another, on the ranks' backends. The same Program that the engines
// time; what comes out is put together into the layout of one rank, so that every layout of one scenario can be
// compared with every other; and it is measured, in the form of a prediction (measured_report.h).
//
// What is computed, and on whose behalf, is the Program's: what ops add to (Op::accumulate), what norms count
// (sim/program/gradient_norm.h), whose positions meet (Op::keys_before), what crosses a border between stages
// (sim/program/borders.h), what streams without a reader are handed (Piece::sides), whose memory a tied table is
// (Tensor::shared). Beside it stand what a step is fed (rank/inputs.h), and what a run is told: ExecutionOptions.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "realrun/backend.h"
#include "realrun/communicator.h"
#include "sim/program/program.h"
#include "sim/report/report.h"
#include "strategies/scenario.h"

namespace orrery {

struct ExecutionOptions {
  std::uint64_t seed = 1;  // of parameters and inputs: a function of (seed, parameter, element), whatever the layout
  std::int64_t steps = 1;  // the same batch each step
  double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0, momentum = 0.9;
  bool round_to_bf16 = false;  // fp32 storage: tensors of bf16 hold what bf16 can
  // Storage that nothing has written holds NaN; an op that writes NaN ends the run, naming the op.
  bool find_undefined = true;
  double watchdog_seconds = 20;  // for one wait on other ranks
  // Added to one element of one parameter before the first step: for finite differences. -1: none.
  std::int64_t nudged_parameter = -1, nudged_element = 0;
  double nudge = 0;
  bool keep_tensors = true;  // gradients and parameters come out
  // Times and memory come out. The first half of the steps gives the step time, the second half, which carries marks
  // around every op, gives the rest. Before them, warm-up steps.
  bool measure = false;
  std::int64_t warmup_steps = 0;
  std::function<void(std::size_t rank, std::int64_t step)> after_step;  // in the rank's thread
};

// A tensor as one rank would hold it, row-major.
struct WholeTensor {
  std::string name;  // "layer 1 qkv"
  std::vector<std::int64_t> sizes;
  std::vector<float> values;
};

// One op of one block, on one rank.
struct MeasuredOp {
  std::uint16_t piece = 0, op = 0;
  std::uint8_t block = 0;  // forward, backward, weight gradient, update
  double times_per_step = 0;
  std::vector<double> seconds;  // of one call, by step: the mean over the step's calls
};

// A gathered part of a parameter or of its gradient.
struct HeldPart {
  std::size_t parameter = 0;
  std::vector<std::int64_t> element;  // of the whole parameter
  std::vector<float> gradient, value;
};

// Of a dropless run whose experts have slots for all tokens: what of them held rows, which alone were sent and
// computed. Of one rank, all its layers with experts, micro-batches and steps together (recomputed forwards too).
struct RoutedRows {
  double layers = 0;
  double computed = 0, slots = 0;   // by this rank's experts, in one pass through them; and what they had room for
  double sent = 0, slots_sent = 0;  // to other ranks in one dispatch; and what would have been with all slots
  double busiest_rank = 1, busiest_expert = 1;  // rows over the mean, where that is largest
  double sum_of_busiest_ranks = 0;              // over `layers`
};

// What one rank has to say after its run.
struct RankResult {
  std::size_t rank = 0;
  std::int64_t stage = 0;
  // By step, warm-up included, unscaled; losses: this rank's share.
  std::vector<double> losses, gradient_norms;
  // By step: experts that tokens have where a router's threshold decides, of all its layers and micro-batches together,
  // and these tokens; 0 without such a router.
  std::vector<std::int64_t> active_experts, routed_tokens;
  std::vector<HeldPart> parts;  // if kept
  // If measured:
  std::vector<double> seconds_by_step;      // of all that are measured; what follows is of the last part of a run:
  std::vector<double> step_seconds;         // of the measured steps without marks
  std::vector<double> marked_step_seconds;  // of those with
  std::vector<MeasuredOp> ops;
  TimeBreakdown time;               // mean over the marked steps, scaled to nothing
  std::vector<Interval> intervals;  // of the last step
  PlacedBytes bytes_at_peak{};
  double peak_bytes = 0;  // of the device; tensors alone, in their own dtypes
  RoutedRows rows;        // layers 0: none were counted
};

struct Execution {
  // By step. A loss is the mean of the cross entropy over all positions of the global batch.
  std::vector<double> losses, gradient_norms;
  // In the order of the model: piece by piece, in each in the order of Piece::parameters; a tied head's table is left
  // out.
  std::vector<WholeTensor> gradients;   // of the last step and of what is trained, unscaled, before clipping
  std::vector<WholeTensor> parameters;  // after the last step
  // Where several ranks hold the same element: the largest difference between them, over the tensor's largest value.
  double gradient_disagreement = 0, parameter_disagreement = 0;
};

// Throws InputError for models and plans that cannot be run; all that follow do it first.
void check_runnable(const Scenario& scenario);

// Neighbouring steps of a run that have one Program. The scenario's workload.step is the first of them.
struct RunPart {
  Scenario scenario;
  Program program;
  std::int64_t steps = 1;
};
// A run of so many steps, from the workload's on: one part, unless a gate or a placement changes with the step
// (begins_anew(), strategies/strategy.h). `scenario`: a runnable() one. Throws as lower().
std::vector<RunPart> parts_of(const Scenario& scenario, std::int64_t steps);

// Lowers and runs runnable(scenario), in parts where its steps differ (strategies/strategy.h), a thread a rank. Throws
// InputError for what it cannot run (Swin, padded vocabularies that differ from one rank's), ExecutionError for
// failures on the way.
Execution execute(const Scenario& scenario, const ExecutionOptions& options = {});
// The same for a Program that the caller has lowered from `scenario` (and may have changed). Here and below that is a
// runnable() one.
Execution execute(const Scenario& scenario, const Program& program, const ExecutionOptions& options);

// The steps of it, for ranks that are not threads of this process or not on a CPU.
//
// A backend for each rank. Called in the rank's thread.
using BackendFactory = std::function<std::unique_ptr<Backend>(std::size_t rank)>;
std::vector<RankResult> execute_ranks(const Scenario& scenario, const Program& program, const ExecutionOptions& options,
                                      const BackendFactory& backend);
// Parts of a run one after the other, as many steps as they have together: warm-up steps, then the others
// (ExecutionOptions::steps does not count). Parameters and the optimizer's states go over from one to the next. What is
// measured but step times is of the last.
std::vector<RankResult> execute_ranks(std::span<const RunPart> parts, const ExecutionOptions& options,
                                      const BackendFactory& backend);
// This process's rank alone. Failures are told to the communicator and thrown.
RankResult execute_rank(const Scenario& scenario, const Program& program, const ExecutionOptions& options,
                        Backend& backend, Communicator& communicator);
RankResult execute_rank(std::span<const RunPart> parts, const ExecutionOptions& options, Backend& backend,
                        Communicator& communicator);
// Results of all ranks, in any order, in the layout of one rank. `scenario`: of the last part.
Execution assemble(const Scenario& scenario, const std::vector<RankResult>& ranks);

// As numbers, to be sent to another process.
std::vector<double> to_numbers(const RankResult& result);
RankResult rank_result_from(const std::vector<double>& numbers);

}  // namespace orrery
